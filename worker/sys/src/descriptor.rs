//! File descriptors of this process.

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
}
