//! Protection of registered memory against fork(2).
//!
//! After a fork, parent and child share each page until one of them writes to it; the writer gets a
//! copy. Before Linux 5.12 the writer could be the parent. The parent's registered memory is then
//! the new page, while the device still uses the old page: the device sends stale data, and
//! received data never appears. libibverbs prevents this if `ibv_fork_init` is called before the
//! first registration: it keeps registered pages out of children (`MADV_DONTFORK`). Since Linux
//! 5.12 the kernel copies such pages at the fork, and no protection is needed.
//!
//! A child that accesses such a page is killed (SIGSEGV). Memory that this crate allocates is on
//! pages of its own; application memory ([`crate::UserMr`]) may share its first and last page with
//! other data, which children then lack, too. Pages of hugetlbfs can be kept out only as a whole:
//! libibverbs determines their size if `RDMAV_HUGEPAGES_SAFE` is set, by reading all of
//! /proc/self/smaps at each registration. Setting the variable is left to the user. Without it,
//! registering such memory fails with EINVAL on kernels that need protection, and messages from the
//! memory are copied. Transparent huge pages are split by the kernel as needed.

use rdma_sys::{IBV_FORK_ENABLED, IBV_FORK_UNNEEDED};
use std::io;
use std::sync::OnceLock;

/// Safety of fork(2) in a process that has registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// Safe: the kernel copies registered pages for the child.
    Unneeded,
    /// Safe: libibverbs keeps registered pages out of children, which crash if they access one.
    Enabled,
    /// Unsafe: after a fork, RDMA may lose data.
    Disabled,
    /// libibverbs cannot be loaded, so there is no registered memory.
    NoLibrary,
}

static SAFETY: OnceLock<ForkSafety> = OnceLock::new();

/// Tells whether this process may fork. The first call enables the protection of libibverbs if it
/// is needed and no memory has been registered yet.
pub fn fork_safety() -> ForkSafety {
    *SAFETY.get_or_init(|| {
        // SAFETY: ibv_fork_init(3) has no precondition: it returns an error if memory was
        // registered before.
        let code = unsafe { rdma_sys::ibv_fork_init() };
        // SAFETY: ibv_is_fork_initialized(3) has no precondition; for a library that lacks it
        // (rdma-core before 35) the bindings return IBV_FORK_DISABLED.
        let safety = classify(code, unsafe { rdma_sys::ibv_is_fork_initialized() });
        if safety == ForkSafety::Disabled {
            let reason = io::Error::from_raw_os_error(code);
            tracing::warn!(%reason, "ibv_fork_init failed: after a fork, RDMA may lose data");
        }
        safety
    })
}

/// Enables libibverbs' protection of registered memory, if it is needed. Must be called before the
/// first call of the process into libibverbs or librdmacm.
pub(crate) fn initialize() {
    fork_safety();
}

/// Determines the safety from the results of `ibv_fork_init` and `ibv_is_fork_initialized`.
fn classify(code: i32, status: u32) -> ForkSafety {
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
        assert_eq!(classify(0, IBV_FORK_UNNEEDED), ForkSafety::Unneeded);
        assert_eq!(classify(libc::EINVAL, IBV_FORK_UNNEEDED), ForkSafety::Unneeded);
        assert_eq!(classify(0, IBV_FORK_ENABLED), ForkSafety::Enabled);
        // The library does not have ibv_is_fork_initialized.
        assert_eq!(classify(0, DISABLED), ForkSafety::Enabled);
        // Another library of the process registered memory earlier.
        assert_eq!(classify(libc::EINVAL, DISABLED), ForkSafety::Disabled);
        assert_eq!(classify(libc::ENOSYS, DISABLED), ForkSafety::Disabled);
        assert_eq!(classify(libc::EOPNOTSUPP, DISABLED), ForkSafety::NoLibrary);
    }
}
