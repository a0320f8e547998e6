//! Detection of fork(2), for resources that a child must neither use nor close.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the process that first called [`ForkGeneration::current`] and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Counts a fork; runs in the child of each fork(2).
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Registers `child` to run in all children of fork(2) from now on.
///
/// # Safety
///
/// `child` does only what is allowed between fork(2) and execve(2).
#[cfg(not(target_env = "gnu"))]
unsafe fn at_fork(child: extern "C" fn()) {
    // SAFETY: the caller guarantees what is required of the handler.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Registers `child` to run in all children of fork(2) from now on. `pthread_atfork` is not in
/// glibc's shared library, only in static archives with names that differ by version; all of its
/// copies call this function.
///
/// # Safety
///
/// `child` does only what is allowed between fork(2) and execve(2).
#[cfg(target_env = "gnu")]
unsafe fn at_fork(child: extern "C" fn()) {
    use std::ffi::c_void;

    type Handler = Option<extern "C" fn()>;
    unsafe extern "C" {
        static __dso_handle: c_void;
        fn __register_atfork(
            prepare: Handler,
            parent: Handler,
            child: Handler,
            library: *const c_void,
        ) -> i32;
    }
    // SAFETY: the handle is this library's own, defined by the compiler's start-up code, so that
    // the handler is removed when the library is unloaded. The caller guarantees the rest.
    unsafe { __register_atfork(None, None, Some(child), &raw const __dso_handle) };
}

/// Process in which a resource was created. A fork(2) child has copies of its parent's sockets,
/// device mappings and locks; using or closing them would interfere with the parent. The check is
/// one load, without a system call.
///
/// A child made by the bare system call, without the C library, is not detected, because its
/// `pthread_atfork` handlers do not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGeneration(u64);

impl ForkGeneration {
    /// Returns the generation of this process.
    pub fn current() -> ForkGeneration {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler is a function of this program that only adds to an atomic number,
            // which is allowed between fork(2) and execve(2), and never unwinds. If there is no
            // memory to register it, forks are not detected, and nothing else changes.
            unsafe { at_fork(count_fork) };
        });
        ForkGeneration(FORKS.load(Ordering::Relaxed))
    }

    /// Tells whether this process was forked, directly or not, from the process of this value.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_knows_what_its_parent_made() {
        let created_in = ForkGeneration::current();
        // SAFETY: the child calls nothing but a load and `_exit`, which any child may.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code =
                i32::from(created_in.is_inherited() && !ForkGeneration::current().is_inherited());
            // SAFETY: `_exit` ends the process at once, without running anything of the test
            // harness.
            unsafe { libc::_exit(40 + code) };
        }
        let mut status = 0;
        // SAFETY: the child was forked here, and `status` is an int that lives until the call
        // returns.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 41);
        assert!(!created_in.is_inherited());
    }
}
