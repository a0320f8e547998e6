//! The kernel's state of TCP connections, and options of sockets.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Returns how many sent bytes a TCP peer has not acknowledged (`SIOCOUTQ`). Closing the socket may
/// lose them.
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: ioctl(2) with SIOCOUTQ, which is TIOCOUTQ, writes an int through the third argument;
    // the descriptor is open as long as it is borrowed.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a UDP socket send every datagram in one packet that routers may not fragment, whatever is
/// known of the path (`IP_PMTUDISC_PROBE`). A datagram that is larger than the interface's MTU fails
/// with `EMSGSIZE`.
pub fn never_fragment(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<()> {
    let (level, option, value) = if is_ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
    };
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, from) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: setsockopt(2) reads `length` bytes, the size of the int that `from` points to, which
    // lives until the call returns; the descriptor is open as long as it is borrowed.
    match unsafe { libc::setsockopt(fd, level, option, from, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Finds out, by repeated checks, whether the host of a TCP peer no longer responds.
#[derive(Debug, Default)]
pub struct PeerSilence {
    /// Time of the check that first found the peer not responding; `None` if the last check found
    /// it responding.
    since: Option<Instant>,
}

impl PeerSilence {
    /// Returns the time for which all checks have found that the peer does not respond, although
    /// data or probes were sent to it repeatedly (`TCP_INFO`). Returns `None` if the peer responds
    /// or was not sent anything. A peer process that does not read is not silent: its kernel still
    /// responds, and reports a full window.
    pub fn check(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
        let Some(unanswered) = unanswered_for(socket)? else {
            self.since = None;
            return Ok(None);
        };
        // The peer may have answered in between, and probes back off, so that a healthy peer that
        // is probed rarely looks silent. Only silence that was seen on consecutive checks counts.
        match self.since.map(|since| since.elapsed()) {
            Some(silent) if unanswered >= silent => Ok(Some(silent)),
            _ => {
                self.since = Some(Instant::now());
                Ok(Some(Duration::ZERO))
            }
        }
    }
}

/// Returns the time since something was received from the peer. Returns `None` if the peer is not
/// being probed or has answered.
fn unanswered_for(socket: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
    // A packet that was sent twice may have been lost once.
    const REPEATS: u8 = 2;
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let (fd, into) = (socket.as_raw_fd(), info.as_mut_ptr().cast());
    // SAFETY: getsockopt(2) writes at most `length` bytes, which is the size of what `into` points
    // to; both live until it returns, and the descriptor is open as long as it is borrowed.
    let got =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut length) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every field is an integer, so the zeros it began with are valid, as is whatever the
    // kernel has written.
    let info = unsafe { info.assume_init() };
    let since = info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv);
    // A kernel that discards data for lack of space acknowledges each probe, and is probed ever
    // more rarely. So it matters whether it has answered the last packet.
    let unanswered = info.tcpi_unacked > 0 && since > info.tcpi_last_data_sent;
    let is_asked = (unanswered && info.tcpi_retransmits >= REPEATS) || info.tcpi_probes >= REPEATS;
    Ok(is_asked.then(|| Duration::from_millis(since.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    #[test]
    fn a_peer_that_does_not_read_is_not_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _peer = listener.accept().unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        // Probes of a full window follow after 0.2 s, then 0.4 s, 0.8 s, 1.6 s.
        let mut silence = PeerSilence::default();
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            let silent = silence.check(socket.as_fd()).unwrap().unwrap_or_default();
            assert!(silent < Duration::from_secs(1), "an answer took {silent:?}");
        }
    }

    #[test]
    fn what_does_not_fit_into_a_packet_is_not_sent() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        // The MTU of loopback is 64 KiB; a container may have a smaller one.
        let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        let mtu: usize = mtu.trim().parse().unwrap();
        let too_long = vec![0; mtu.min(65_507 + 28) - 28 + 1];
        never_fragment(socket.as_fd(), false).unwrap();
        let error = socket.send_to(&too_long, address).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        socket.send_to(&[0; 1000], address).unwrap();
        assert!(never_fragment(socket.as_fd(), true).is_err(), "not an IPv6 socket");
    }

    #[test]
    fn what_a_peer_has_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _peer = listener.accept().unwrap();
        assert_eq!(unacknowledged_bytes(socket.as_fd()).unwrap(), 0);
        // More than fits into the buffers of a peer that does not read.
        while socket.write(&[0; 1 << 16]).is_ok() {}
        assert!(unacknowledged_bytes(socket.as_fd()).unwrap() > 0);
    }
}
