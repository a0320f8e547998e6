//! What the kernel knows of a socket.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// How many bytes of a TCP socket its peer has not acknowledged (`SIOCOUTQ`): while there are any, to
/// close it may lose them.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: ioctl(2) with SIOCOUTQ, which TIOCOUTQ is, writes an int to where the third argument
    // points; the descriptor is open as long as it is borrowed.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// For how long nothing has come of a TCP socket's peer, not even from its kernel, although it was
/// asked again and again (`TCP_INFO`); `None` where there is no reason for worry. A process that
/// reads nothing is none: its kernel says that it has no room.
pub fn silence(socket: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
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
        // Probes of the full window begin after 0.2 s.
        let until = std::time::Instant::now() + Duration::from_secs(2);
        while std::time::Instant::now() < until {
            assert_eq!(silence(socket.as_fd()).unwrap(), None);
        }
    }

    #[test]
    fn what_a_peer_has_is_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _peer = listener.accept().unwrap();
        assert_eq!(unacknowledged(socket.as_fd()).unwrap(), 0);
        // More than its peer, who reads nothing, has room for.
        while socket.write(&[0; 1 << 16]).is_ok() {}
        assert!(unacknowledged(socket.as_fd()).unwrap() > 0);
    }
}
