//! Detection of fork(2): what a parent made is not its child's to use or to close.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks between the process that first called [`ForkGeneration::current`] and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Runs in the child of each fork(2).
extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Has `child` run in the children of fork(2) from here on.
///
/// # Safety
/// `child` does only what is allowed between fork(2) and execve(2).
#[cfg(not(target_env = "gnu"))]
unsafe fn at_fork(child: extern "C" fn()) {
    // SAFETY: the caller's promise is all that it asks for.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Has `child` run in the children of fork(2) from here on. glibc has `pthread_atfork` in no shared
/// library, but in archives whose names differ by version; each of its copies calls this.
///
/// # Safety
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
    // SAFETY: the handle is this library's own, which the compiler's start-up code defines: by it the
    // handler is forgotten when the library is unloaded. The rest is the caller's promise.
    unsafe { __register_atfork(None, None, Some(child), &raw const __dso_handle) };
}

/// The process that something was made in. A child that fork(2) makes has copies of its parent's
/// sockets, device mappings and locks; to use or to close them would do so in the parent's name.
/// The check is one load, no system call.
///
/// A child made by the bare system call, without the C library, is not noticed: neither are its
/// `pthread_atfork` handlers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkGeneration(u64);

impl ForkGeneration {
    /// Notes this process as the maker.
    pub fn current() -> ForkGeneration {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler is a function of this program, does nothing but add to an atomic
            // number, which is allowed between fork(2) and execve(2) in any process, and never
            // unwinds. Where there is no memory for it, forks go unnoticed and nothing else changes.
            unsafe { at_fork(count) };
        });
        ForkGeneration(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is a child that was forked since.
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
            // SAFETY: it ends the process at once, and runs nothing of the harness.
            unsafe { libc::_exit(40 + code) };
        }
        let mut status = 0;
        // SAFETY: the child is this thread's own, and the status an int that lives until then.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 41);
        assert!(!created_in.is_inherited());
    }
}
