//! The disk, and where tests intervene.

use super::super::beneath::Beneath;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::{fs, io};

/// First version of Linux whose `syncfs` tells that something could not be written.
const REPORTS_ERRORS: (u32, u32) = (5, 8);

/// Directory that a copy goes to.
pub(super) struct Disk {
    pub(super) beneath: Beneath,
    pub(super) gate: Box<dyn Gate>,
}

impl Disk {
    pub(super) fn new(beneath: Beneath, gate: Box<dyn Gate>) -> Disk {
        Disk { beneath, gate }
    }
}

/// What a file system has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Free {
    pub(super) bytes: u64,
    /// Files; `None` where there is no limit.
    pub(super) inodes: Option<u64>,
}

/// What tests replace, in order to end a copy at any change and to fill disks.
pub(super) trait Gate: Send + Sync {
    /// Is called before each change on the disk, which an error prevents.
    fn before_change(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns what there is room for.
    fn free(&self, directory: BorrowedFd<'_>) -> io::Result<Free> {
        let stat = rustix::fs::fstatvfs(directory)?;
        Ok(Free {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            // Those that make inodes as they need them have none to count.
            inodes: (stat.f_files > 0).then_some(stat.f_favail),
        })
    }

    /// Tells whether writing a whole file system to the disk says if that failed.
    fn whole_sync_reports_errors(&self) -> bool {
        // A version that is not known counts as an old one.
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        is_since(&release, REPORTS_ERRORS)
    }

    /// Waits until the content of a file is on the disk.
    fn sync_file(&self, file: BorrowedFd<'_>) -> Result<(), Errno> {
        rustix::fs::fdatasync(file)
    }

    /// Waits until the names in a directory are on the disk.
    fn sync_names(&self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        tolerate(rustix::fs::fsync(directory))
    }
}

/// Tells whether a version of Linux, such as `4.18.0-553.el8`, is at least another one.
fn is_since(release: &str, (major, minor): (u32, u32)) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|word| word.parse().ok());
    let found: (Option<u32>, Option<u32>) = (numbers.next(), numbers.next());
    found >= (Some(major), Some(minor))
}

/// Synchronises names, where the file system can: some know no such thing of a directory.
fn tolerate(synced: Result<(), Errno>) -> Result<(), Errno> {
    match synced {
        Err(Errno::INVAL | Errno::NOTSUP | Errno::BADF) => Ok(()),
        synced => synced,
    }
}

/// The disk as it is.
pub(super) struct Real;

impl Gate for Real {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_linux_are_compared_by_their_numbers() {
        for (release, expected) in [
            ("5.8.0-1", true),
            ("5.10.0-28-amd64\n", true),
            ("6.1", true),
            ("5.7.19", false),
            ("4.18.0-553.el8", false),
            ("", false),
            ("unknown", false),
        ] {
            assert_eq!(is_since(release, REPORTS_ERRORS), expected, "{release:?}");
        }
    }
}
