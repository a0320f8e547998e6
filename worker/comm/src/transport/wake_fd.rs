//! What wakes a thread that sleeps on file descriptors.

use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Readable from when it is rung until it is heard; how often it was rung does not matter.
#[derive(Debug)]
pub(crate) struct WakeFd(EventFd);

impl WakeFd {
    pub(crate) fn new() -> io::Result<WakeFd> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(WakeFd(EventFd::from_flags(flags)?))
    }

    pub(crate) fn wake(&self) {
        // It fails where it has been rung 2⁶⁴ times and not heard.
        let _ = self.0.write(1);
    }

    /// How often it was rung since it was heard last.
    pub(crate) fn clear(&self) -> u64 {
        // It fails where it has not been rung, or another thread has heard it.
        self.0.read().unwrap_or(0)
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    #[test]
    fn it_is_readable_until_it_is_heard() {
        let bell = WakeFd::new().unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert_eq!(bell.clear(), 0);
        assert!(!is_readable());
        bell.wake();
        bell.wake();
        assert!(is_readable());
        assert_eq!(bell.clear(), 2);
        assert!(!is_readable(), "however often it was rung");
    }
}
