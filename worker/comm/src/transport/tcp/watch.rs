//! Descriptor on which a link sleeps: its socket or, once the peer has ended the stream, an
//! epoll(7) descriptor. The socket itself would stay readable from then on.

use crate::transport::WatchedFd;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// Epoll descriptor for a socket at the end of its stream. It is made when it is first needed.
#[derive(Debug, Default)]
pub(super) struct SocketWatch {
    epoll: Option<Epoll>,
    /// Whether the socket was added to the epoll descriptor, to wait for room to write.
    is_member: bool,
}

impl SocketWatch {
    /// Returns the epoll descriptor; `None` if it was never needed.
    pub(super) fn epoll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(|epoll| epoll.0.as_fd())
    }

    /// Returns the descriptor to sleep on. It becomes ready when the socket can be read, if
    /// `readable`, or written, if `writable`.
    pub(super) fn watched_fd<'l>(
        &'l mut self,
        socket: &'l TcpStream,
        readable: bool,
        writable: bool,
    ) -> io::Result<WatchedFd<'l>> {
        if readable {
            return Ok(WatchedFd { fd: socket.as_fd(), writable, instead_of: self.epoll_fd() });
        }
        if self.epoll.is_none() {
            self.epoll = Some(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        }
        let Some(epoll) = &self.epoll else { return Err(io::ErrorKind::OutOfMemory.into()) };
        if self.is_member != writable {
            if writable {
                epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLOUT, 0))?;
            } else {
                // The kernel reports the end of the stream of an added socket even if no event is
                // requested.
                epoll.delete(socket)?;
            }
            self.is_member = writable;
        }
        Ok(WatchedFd { fd: epoll.0.as_fd(), writable: false, instead_of: Some(socket.as_fd()) })
    }
}
