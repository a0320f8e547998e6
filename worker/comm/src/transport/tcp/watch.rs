//! Descriptor on which a link sleeps: its socket or, once the peer has ended the stream, an
//! epoll(7) descriptor. The socket itself would stay readable from then on.

use crate::transport::WatchedFd;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Epoll descriptor for a socket at the end of its stream, made when it is first needed.
#[derive(Debug, Default)]
pub(super) struct SocketWatch {
    epoll: Option<Epoll>,
    /// Whether the socket was added to the epoll descriptor, to wait for room to write.
    is_member: bool,
}

impl SocketWatch {
    /// Returns the epoll descriptor; `None` if it was never needed.
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
                // The kernel reports the end of the stream of an added socket even if no event is
                // requested.
                epoll.delete(socket)?;
            }
            self.is_member = writes;
        }
        Ok(WatchedFd { fd: epoll.0.as_fd(), writable: false, instead_of: Some(socket.as_fd()) })
    }
}
