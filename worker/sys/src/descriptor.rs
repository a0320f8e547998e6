//! File descriptors of this process, leases, which tell whether another process has a file open, and writeback.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Makes `descriptor` refer to the open file of `target`, and closes the file to which it referred. Whoever uses
/// the descriptor uses the new file from the next system call on.
pub fn redirect(descriptor: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let (from, to) = (target.as_raw_fd(), descriptor.as_raw_fd());
    // SAFETY: dup3(2) takes no pointers. Both descriptors are open as long as they are borrowed, and
    // `descriptor` remains open for its owner, since the call replaces its file in one step.
    match unsafe { libc::dup3(from, to, libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Makes the kernel begin to write a part of a file to the disk (sync_file_range(2)), without waiting for its end: that is
/// what fdatasync(2) does later, with less left to write. May wait while the disk's queue is full.
pub fn begin_writeback(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let number = |bytes: u64| i64::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput.into());
    let (offset, length): (io::Result<i64>, io::Result<i64>) = (number(offset), number(length));
    let (offset, length) = (offset?, length?);
    // SAFETY: sync_file_range(2) takes numbers alone; the descriptor is open as long as `file` is borrowed.
    match unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Command `F_SETSIG` of fcntl(2).
const F_SETSIG: c_int = 10;

/// Runs `works` while no process in any namespace has the file open or mapped except through
/// `file`; processes that open it meanwhile wait (this is a write lease, fcntl(2)). Returns `None`,
/// without running `works`, if the file is in use or belongs to another user, or if the kernel
/// cannot tell: before Linux 5.3, every file on tmpfs counts as in use.
pub fn while_unused<T>(file: &File, works: impl FnOnce() -> T) -> Option<T> {
    let set = |command: c_int, value: c_int| {
        // SAFETY: fcntl(2) with these commands takes a number and touches no memory.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // The kernel signals that another process waits. The default signal would end this process;
    // SIGURG is ignored.
    set(F_SETSIG, libc::SIGURG).ok()?;
    set(libc::F_SETLEASE, c_int::from(libc::F_WRLCK)).ok()?;
    let result = works();
    // If this fails, the lease ends when the file is closed.
    let _ = set(libc::F_SETLEASE, c_int::from(libc::F_UNLCK));
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write, pipe};
    use std::os::fd::AsFd;

    #[test]
    fn a_redirected_descriptor_writes_elsewhere() {
        let (mut former, mut writer) = pipe().unwrap();
        let (mut new, target) = pipe().unwrap();
        redirect(writer.as_fd(), target.as_fd()).unwrap();
        drop(target);
        writer.write_all(b"x").unwrap();
        drop(writer);
        let mut read = String::new();
        former.read_to_string(&mut read).unwrap();
        assert_eq!(read, "");
        new.read_to_string(&mut read).unwrap();
        assert_eq!(read, "x");
    }

    #[test]
    fn writeback_is_of_files_alone() {
        let path = std::env::temp_dir().join(format!("rlaunch-writeback-{}", std::process::id()));
        std::fs::write(&path, "x").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        begin_writeback(&file, 0, 1).unwrap();
        // What is behind the end has nothing to write.
        begin_writeback(&file, 1 << 40, 1).unwrap();
        assert!(begin_writeback(&file, u64::MAX, 1).is_err());
        std::fs::remove_file(&path).unwrap();
        let (pipe, _writer) = pipe().unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        assert!(begin_writeback(&pipe, 0, 1).is_err());
    }

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
        assert_eq!(while_unused(&file, || 7), unused, "a lease was not released");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
