//! What to sleep on: the first socket where that is enough, else an epoll(7) of several.

use crate::transport::Watched;
use nix::poll::PollFlags;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// What is watched beside the first socket.
#[derive(Debug, Default)]
pub(super) struct Watch {
    epoll: Option<Set>,
}

#[derive(Debug)]
struct Set {
    epoll: Epoll,
    /// By socket, what it is watched for.
    members: Vec<EpollFlags>,
}

impl Watch {
    /// Returns the epoll of several sockets, if there was ever one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(|set| set.epoll.0.as_fd())
    }

    /// What is ready once one of the sockets is ready for what is `wanted` of it: that of the first
    /// one comes first.
    pub(super) fn on<'l>(
        &'l mut self,
        first: &'l TcpStream,
        lanes: &[TcpStream],
        wanted: &[PollFlags],
    ) -> io::Result<Watched<'l>> {
        let (of_first, of_lanes) = wanted.split_first().unwrap_or((&PollFlags::POLLIN, &[]));
        let only_first = of_lanes.iter().all(PollFlags::is_empty);
        if only_first && of_first.contains(PollFlags::POLLIN) {
            let writable = of_first.contains(PollFlags::POLLOUT);
            let instead_of = self.fd();
            return Ok(Watched { fd: first.as_fd(), writable, instead_of });
        }
        if self.epoll.is_none() {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            self.epoll = Some(Set { epoll, members: Vec::new() });
        }
        let Some(set) = &mut self.epoll else { return Err(io::ErrorKind::OutOfMemory.into()) };
        set.members.resize(1 + lanes.len(), EpollFlags::empty());
        let sockets = std::iter::once(first).chain(lanes);
        for ((socket, member), wanted) in sockets.zip(&mut set.members).zip(wanted) {
            change(&set.epoll, socket, member, flags(*wanted))?;
        }
        let instead_of = Some(first.as_fd());
        Ok(Watched { fd: set.epoll.0.as_fd(), writable: false, instead_of })
    }
}

fn change(
    epoll: &Epoll,
    socket: &TcpStream,
    member: &mut EpollFlags,
    wanted: EpollFlags,
) -> io::Result<()> {
    if *member == wanted {
        return Ok(());
    }
    if wanted.is_empty() {
        // A member is told of the end of its stream whether it wants to or not.
        epoll.delete(socket)?;
    } else if member.is_empty() {
        epoll.add(socket, EpollEvent::new(wanted, 0))?;
    } else {
        epoll.modify(socket, &mut EpollEvent::new(wanted, 0))?;
    }
    *member = wanted;
    Ok(())
}

fn flags(wanted: PollFlags) -> EpollFlags {
    let mut flags = EpollFlags::empty();
    flags.set(EpollFlags::EPOLLIN, wanted.contains(PollFlags::POLLIN));
    flags.set(EpollFlags::EPOLLOUT, wanted.contains(PollFlags::POLLOUT));
    flags
}
