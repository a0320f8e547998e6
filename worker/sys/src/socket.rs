//! What the kernel knows of a socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How many bytes of a TCP socket its peer has not acknowledged (`SIOCOUTQ`): while there are any, to
/// close it may lose them.
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: ioctl(2) with SIOCOUTQ, which TIOCOUTQ is, writes an int to where the third argument
    // points; the descriptor is open as long as it is borrowed.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a TCP socket's peer is still there, and be it only its kernel: one look after the other.
#[derive(Debug, Default)]
pub struct PeerSilence {
    /// When a look first found it asked again and again, and nothing has come of it since.
    asked: Option<Instant>,
}

impl PeerSilence {
    /// For how long looks have found that the peer answers nothing, although its kernel is asked
    /// again and again (`TCP_INFO`); `None` where there is no reason for worry. A process that reads
    /// nothing is none: its kernel says that it has no room.
    pub fn check(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
        let Some(heard) = last_heard_of_the_asked(socket)? else {
            self.asked = None;
            return Ok(None);
        };
        // It may have answered since and have been asked once more. And who is asked ever more rarely
        // was heard long ago although it has answered each time: only what was seen counts.
        match self.asked.map(|asked| asked.elapsed()) {
            Some(silent) if heard >= silent => Ok(Some(silent)),
            _ => {
                self.asked = Some(Instant::now());
                Ok(Some(Duration::ZERO))
            }
        }
    }
}

/// For how long nothing has come of the peer of a TCP socket; `None` where it is not being asked, or
/// has answered.
fn last_heard_of_the_asked(socket: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
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
    // SAFETY: every field is an integer, so that the zeroes it began with are valid, as is whatever
    // the kernel has written.
    let info = unsafe { info.assume_init() };
    let since = info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv);
    // A kernel that throws data away for want of room says so each time, and is asked again later
    // and later: what counts is whether it has answered what was sent last.
    let unanswered = info.tcpi_unacked > 0 && since > info.tcpi_last_data_sent;
    let is_asked = (unanswered && info.tcpi_retransmits >= REPEATS) || info.tcpi_probes >= REPEATS;
    Ok(is_asked.then(|| Duration::from_millis(since.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn a_peer_that_does_not_read_is_not_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _peer = listener.accept().unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        // Probes of the full window come after 0.2 s, 0.4 s more, 0.8 s, 1.6 s.
        let mut silence = PeerSilence::default();
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            let silent = silence.check(socket.as_fd()).unwrap().unwrap_or_default();
            assert!(silent < Duration::from_secs(1), "an answer took {silent:?}");
        }
    }

    #[test]
    fn what_a_peer_has_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _peer = listener.accept().unwrap();
        assert_eq!(unacknowledged_bytes(socket.as_fd()).unwrap(), 0);
        // More than its peer, who reads nothing, has room for.
        while socket.write(&[0; 1 << 16]).is_ok() {}
        assert!(unacknowledged_bytes(socket.as_fd()).unwrap() > 0);
    }
}
