//! Eventfd that wakes a thread from its sleep on file descriptors.

use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Descriptor that is readable from the first [`wake`](WakeFd::wake) until
/// [`clear`](WakeFd::clear).
#[derive(Debug)]
pub(crate) struct WakeFd(EventFd);

impl WakeFd {
    pub(crate) fn new() -> io::Result<WakeFd> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(WakeFd(EventFd::from_flags(flags)?))
    }

    pub(crate) fn wake(&self) {
        // Fails only if the 64-bit counter would overflow; even then the descriptor is readable.
        let _ = self.0.write(1);
    }

    /// Makes the descriptor unreadable, and returns the number of wake-ups since the last call.
    pub(crate) fn clear(&self) -> u64 {
        // Fails if there was no wake-up, or if another thread has cleared it.
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
        let wake = WakeFd::new().unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        assert_eq!(wake.clear(), 0);
        assert!(!is_readable());
        wake.wake();
        wake.wake();
        assert!(is_readable());
        assert_eq!(wake.clear(), 2);
        assert!(!is_readable(), "however often it was woken");
    }
}
