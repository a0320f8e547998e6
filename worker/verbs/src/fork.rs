//! fork(2) beside a device that reads and writes this process's memory.
//!
//! Until a page is written to, a process that forks shares it with its child; whoever writes first
//! gets a copy. Before Linux 5.12 that could be the parent, whose registered memory then is a page
//! that the device knows nothing of: it sends what was there at the fork, and what it receives is
//! never seen. libibverbs prevents that on request, which has to come before it registers anything:
//! it keeps registered pages from children altogether (`MADV_DONTFORK`). Newer kernels copy such
//! pages when they fork, and nothing is to be done.
//!
//! Where pages are kept from children, a child that touches one dies of it. What this crate
//! allocates lies on whole pages of its own; memory that is lent shares its first and its last page
//! with its neighbours while it is registered. Huge pages that a program has mapped itself
//! (hugetlbfs) are kept from children as a whole or not at all: libibverbs asks the kernel for their
//! size if `RDMAV_HUGEPAGES_SAFE` is in the environment, by reading all of /proc/self/smaps at each
//! registration. That is for the user to choose; without it, registering such memory fails (EINVAL)
//! where pages have to be kept from children, and messages from it are copied. Transparent huge
//! pages are divided by the kernel as needed.

use rdma_sys::{IBV_FORK_ENABLED, IBV_FORK_UNNEEDED};
use std::io;
use std::sync::OnceLock;

/// Whether this process may fork while devices know its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// The kernel copies what devices know.
    Unneeded,
    /// libibverbs keeps what devices know from children.
    Enabled,
    /// Data may be lost after a fork.
    Disabled,
    /// There is no libibverbs.
    NoLibrary,
}

static SAFETY: OnceLock<ForkSafety> = OnceLock::new();

/// Whether this process may fork. The first call makes it so, if that is possible.
pub fn fork_safety() -> ForkSafety {
    *SAFETY.get_or_init(|| {
        // SAFETY: ibv_fork_init(3) has no requirement but to come before memory is registered, and
        // says so where it does not.
        let code = unsafe { rdma_sys::ibv_fork_init() };
        // SAFETY: ibv_is_fork_initialized(3) takes nothing and has no requirement; libraries that
        // lack it (before 35) are taken for ones that say "disabled".
        let safety = of(code, unsafe { rdma_sys::ibv_is_fork_initialized() });
        if safety == ForkSafety::Disabled {
            let reason = io::Error::from_raw_os_error(code);
            tracing::warn!(%reason, "ibv_fork_init failed: after a fork, RDMA may lose data");
        }
        safety
    })
}

/// To be called before the first verb of a process, in whichever library it is.
pub(crate) fn prepare() {
    fork_safety();
}

/// Answers of both calls.
fn of(code: i32, status: u32) -> ForkSafety {
    match (code, status) {
        (_, IBV_FORK_UNNEEDED) => ForkSafety::Unneeded,
        (libc::EOPNOTSUPP, _) => ForkSafety::NoLibrary,
        (0, _) | (_, IBV_FORK_ENABLED) => ForkSafety::Enabled,
        _ => ForkSafety::Disabled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_libraries_old_and_new_say_is_understood() {
        const DISABLED: u32 = rdma_sys::IBV_FORK_DISABLED;
        assert_eq!(of(0, IBV_FORK_UNNEEDED), ForkSafety::Unneeded);
        assert_eq!(of(libc::EINVAL, IBV_FORK_UNNEEDED), ForkSafety::Unneeded);
        assert_eq!(of(0, IBV_FORK_ENABLED), ForkSafety::Enabled);
        // One that cannot be asked.
        assert_eq!(of(0, DISABLED), ForkSafety::Enabled);
        // Another library of the program has registered memory before.
        assert_eq!(of(libc::EINVAL, DISABLED), ForkSafety::Disabled);
        assert_eq!(of(libc::ENOSYS, DISABLED), ForkSafety::Disabled);
        assert_eq!(of(libc::EOPNOTSUPP, DISABLED), ForkSafety::NoLibrary);
    }
}
