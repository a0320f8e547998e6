//! Files that no other process has open.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `F_SETSIG` of fcntl(2).
const F_SETSIG: c_int = 10;

/// Does something while nothing but `file` has its file open or mapped, in whatever namespace: others
/// that open it meanwhile wait (this is a write lease, fcntl(2)). `None` where it is in use, belongs to
/// another user, or the kernel does not say: before Linux 5.3 it takes every file in memory for one in
/// use.
pub fn while_unused<T>(file: &File, does: impl FnOnce() -> T) -> Option<T> {
    let set = |command: c_int, value: c_int| {
        // SAFETY: fcntl(2) with these commands takes a number and touches no memory.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // That somebody waits is told by a signal, which ends a process unless it is one to be ignored.
    set(F_SETSIG, libc::SIGURG).ok()?;
    set(libc::F_SETLEASE, c_int::from(libc::F_WRLCK)).ok()?;
    let done = does();
    // A lease that cannot be given back goes with the file.
    let _ = set(libc::F_SETLEASE, c_int::from(libc::F_UNLCK));
    Some(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_open_elsewhere_is_in_use() {
        let directory = std::env::temp_dir().join(format!("rlaunch-lease-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("file");
        std::fs::write(&path, "x").unwrap();
        let file = File::open(&path).unwrap();
        let unused = while_unused(&file, || 7);
        let other = File::options().write(true).open(&path).unwrap();
        assert_eq!(while_unused(&file, || 7), None);
        drop(other);
        assert_eq!(while_unused(&file, || 7), unused, "a lease was not given back");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
