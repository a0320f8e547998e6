//! Waiting for a file descriptor to become readable.

use std::io;
use std::os::fd::RawFd;
use std::time::Instant;

/// Waits until `fd` is readable and returns `true`; returns `false` at the deadline. With a
/// deadline in the past the call does not wait.
pub(crate) fn is_readable(fd: RawFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        let mut waited = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, which lives until the call returns.
        match unsafe { libc::poll(&raw mut waited, 1, left) } {
            0 => return Ok(false),
            1.. => return Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Sets O_NONBLOCK on a descriptor, so that a read returns EAGAIN if another thread has taken the
/// event that poll(2) reported.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl(2) takes any number, and fails if it is not a descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn what_comes_is_noticed_and_what_does_not_is_not_waited_for() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let fd = other.as_raw_fd();
        assert!(!is_readable(fd, Instant::now()).unwrap());
        one.write_all(b"x").unwrap();
        assert!(is_readable(fd, Instant::now() + Duration::from_secs(5)).unwrap());
        set_nonblocking(fd).unwrap();
        let mut byte = [0; 1];
        other.read_exact(&mut byte).unwrap();
        let nothing = other.read(&mut byte).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert!(set_nonblocking(-1).is_err());
    }
}
