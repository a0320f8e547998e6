//! Descriptor on which a link sleeps: its socket, or an epoll(7) of it once the stream has ended,
//! since the socket would stay readable.

use crate::transport::WatchedFd;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Epoll of a socket at the end of its stream, made when it is first needed.
#[derive(Debug, Default)]
pub(super) struct SocketWatch {
    epoll: Option<Epoll>,
    /// Whether the socket is a member of the epoll, watched for room to write.
    is_member: bool,
}

impl SocketWatch {
    /// Returns the epoll descriptor, if it was ever made.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(|epoll| epoll.0.as_fd())
    }

    /// Returns the descriptor that becomes ready when the socket is readable, if `reads`, or
    /// writable, if `writes`.
    pub(super) fn on<'l>(
        &'l mut self,
        socket: &'l TcpStream,
        reads: bool,
        writes: bool,
    ) -> io::Result<WatchedFd<'l>> {
        if reads {
            return Ok(WatchedFd { fd: socket.as_fd(), writable: writes, instead_of: self.fd() });
        }
        if self.epoll.is_none() {
            self.epoll = Some(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        }
        let Some(epoll) = &self.epoll else { return Err(io::ErrorKind::OutOfMemory.into()) };
        if self.is_member != writes {
            if writes {
                epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLOUT, 0))?;
            } else {
                // The kernel reports the end of a member's stream even if no event is requested.
                epoll.delete(socket)?;
            }
            self.is_member = writes;
        }
        Ok(WatchedFd { fd: epoll.0.as_fd(), writable: false, instead_of: Some(socket.as_fd()) })
    }
}
