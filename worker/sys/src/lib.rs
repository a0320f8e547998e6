//! System calls that no crate offers as a safe function, made safe here: each is one function that
//! checks what it needs and cannot be misused from outside.

use std::io;

/// Which side of a [`fork`] this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The process that called, with the child's process id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Splits the process in two. Fails with `EBUSY` when the process has more than one thread: the
/// child would hold locks whose owners do not exist in it.
pub fn fork() -> io::Result<Fork> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: fork(2) has no requirement on memory; in a process of one thread, which the line
    // above established and only this thread could change, the child may go on as the parent may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => Ok(Fork::Parent(pid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_refused() {
        // The test harness has a main thread and this one.
        let error = fork().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    }
}
