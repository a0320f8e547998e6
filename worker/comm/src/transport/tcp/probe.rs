//! Whether the host of a peer answers although it acknowledges no data, as behind a switch that drops full packets.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, getsockopt, socket, sockopt,
};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Connection that is begun beside a link's, between the same two addresses, to see whether the host answers. That takes
/// short packets alone, and no byte is sent over it.
#[derive(Debug)]
pub(super) struct HostProbe {
    socket: OwnedFd,
    was_refused: bool,
}

impl HostProbe {
    /// Begins a connection beside `link`'s.
    pub(super) fn beside(link: &TcpStream) -> io::Result<HostProbe> {
        HostProbe::start(link.local_addr()?, link.peer_addr()?)
    }

    fn start(mut from: SocketAddr, to: SocketAddr) -> io::Result<HostProbe> {
        from.set_port(0);
        let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Stream, flags, None)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(from))?;
        let was_refused = match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
            Ok(()) | Err(Errno::EINPROGRESS) => false,
            Err(Errno::ECONNREFUSED) => true,
            Err(error) => return Err(error.into()),
        };
        Ok(HostProbe { socket, was_refused })
    }

    /// Tells whether the host has answered, if only that nothing listens there. To be asked once: that forgets an error.
    pub(super) fn is_answered(&self) -> bool {
        if self.was_refused {
            return true;
        }
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        let is_over = poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        let is_answer = |code: i32| code == 0 || code == Errno::ECONNREFUSED as i32;
        is_over && getsockopt(&self.socket, sockopt::SocketError).is_ok_and(is_answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, SockaddrIn, getsockname, listen};
    use std::net::{SocketAddrV4, TcpListener};
    use std::time::{Duration, Instant};

    fn here(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Waits for an answer for a second.
    fn is_answered(probe: &HostProbe) -> bool {
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            if probe.is_answered() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    #[test]
    fn a_host_answers_whether_something_listens_or_not() {
        let listener = TcpListener::bind(here(0)).unwrap();
        let to = listener.local_addr().unwrap();
        assert!(is_answered(&HostProbe::start(here(0), to).unwrap()));
        let link = TcpStream::connect(to).unwrap();
        assert!(is_answered(&HostProbe::beside(&link).unwrap()));
        drop(listener);
        assert!(is_answered(&HostProbe::start(here(0), to).unwrap()));
    }

    /// A queue that is full drops what would open a connection.
    #[test]
    fn silence_is_no_answer() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        let any = SockaddrIn::from(SocketAddrV4::new([127, 0, 0, 1].into(), 0));
        bind(listener.as_raw_fd(), &any).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let port = getsockname::<SockaddrIn>(listener.as_raw_fd()).unwrap().port();
        let waiting: Vec<HostProbe> =
            (0..4).map(|_| HostProbe::start(here(0), here(port)).unwrap()).collect();
        assert!(!is_answered(waiting.last().unwrap()));
    }
}
