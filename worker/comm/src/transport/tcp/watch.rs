//! What a link sleeps on: its socket, or an epoll(7) of it where the socket is not to be read.

use crate::transport::WatchedFd;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Epoll of a socket at the end of its stream, made when it is first needed.
#[derive(Debug, Default)]
pub(super) struct SocketWatch {
    epoll: Option<Epoll>,
    /// The socket is in it, watched for room to write.
    is_member: bool,
}

impl SocketWatch {
    /// Returns the epoll, if there was ever one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(|epoll| epoll.0.as_fd())
    }

    /// Returns what becomes ready when the socket is readable, if it `reads`, or writable, if it
    /// `writes`.
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
                // The kernel reports the end of a member's stream whether or not it is asked for.
                epoll.delete(socket)?;
            }
            self.is_member = writes;
        }
        Ok(WatchedFd { fd: epoll.0.as_fd(), writable: false, instead_of: Some(socket.as_fd()) })
    }
}
