//! The disk, and where tests intervene.

use super::super::beneath::Beneath;
use std::io;
use std::os::fd::BorrowedFd;

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
}

/// The disk as it is.
pub(super) struct Real;

impl Gate for Real {}
