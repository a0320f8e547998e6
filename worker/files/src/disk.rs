//! Changes below a directory, each of which a test may prevent.

use crate::beneath::{Beneath, Seen, split};
use crate::meta::SETGID;
use rlaunch_copy::Time;
use rustix::fs::{AtFlags, FileType, Mode, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::{fs, io};

/// Number of files that are written to the disk one by one. More are written by what also waits for everything else on
/// their file systems, since each one may make the disk empty its cache.
pub const FEW: usize = 16;

/// First version of Linux whose `syncfs` tells that something could not be written.
const REPORTS_ERRORS: (u32, u32) = (5, 8);

/// Change of the disk that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}: {cause}", path.display())]
pub struct DiskError {
    pub operation: &'static str,
    /// Below the directory.
    pub path: PathBuf,
    pub cause: io::Error,
}

/// Directory that a copy goes to. Paths are relative to it.
pub struct Disk {
    pub beneath: Beneath,
    pub gate: Box<dyn Gate>,
}

impl Disk {
    pub fn new(beneath: Beneath, gate: Box<dyn Gate>) -> Disk {
        Disk { beneath, gate }
    }

    /// Changes something, unless a test says that the host has died by then.
    pub fn change<T, E: Into<io::Error>>(
        &self,
        operation: &'static str,
        path: &[u8],
        change: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, DiskError> {
        let passed = self.gate.before_change();
        let changed = passed.and_then(|()| change().map_err(E::into));
        changed.map_err(|cause| failed(operation, path, cause))
    }

    /// Changes something in the directory that a path is in.
    pub fn at_parent(
        &self,
        operation: &'static str,
        path: &[u8],
        change: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<(), Errno>,
    ) -> Result<(), DiskError> {
        let (parent, name) = split(path);
        let parent = self.beneath.directory(parent);
        let parent = parent.map_err(|cause| failed("open the directory of", path, cause))?;
        self.change(operation, path, || change(parent.as_fd(), name))
    }

    pub fn look(&self, path: &[u8]) -> Result<Option<Seen>, DiskError> {
        self.beneath.look(path).map_err(|cause| failed("look at", path, cause))
    }

    /// Removes a file or a link.
    pub fn remove(&self, path: &[u8]) -> Result<(), DiskError> {
        self.at_parent("remove", path, |parent, name| {
            rustix::fs::unlinkat(parent, name, AtFlags::empty())
        })
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, path: &[u8]) -> Result<(), DiskError> {
        // One that is open could be found there again.
        self.beneath.forget();
        self.at_parent("remove", path, |parent, name| {
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
        })
    }

    pub fn set_mode(&self, path: &[u8], mode: Mode) -> Result<(), DiskError> {
        self.at_parent("set the mode of", path, |parent, name| {
            rustix::fs::chmodat(parent, name, mode, AtFlags::empty())
        })
    }

    pub fn set_time(&self, path: &[u8], mtime: Time) -> Result<(), DiskError> {
        let times = times(mtime);
        self.at_parent("set the time of", path, |parent, name| {
            rustix::fs::utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
        })
    }

    /// Gives what was made beside a place its name.
    pub fn rename(
        &self,
        operation: &'static str,
        beside: &[u8],
        path: &[u8],
    ) -> Result<(), DiskError> {
        let (_, from) = split(beside);
        self.at_parent(operation, path, |parent, name| {
            rustix::fs::renameat(parent, from, parent, name)
        })
    }

    /// Gives a whole file its mode, which may forbid writing, and its name.
    pub fn put_file(&self, beside: &[u8], path: &[u8], mode: Mode) -> Result<(), DiskError> {
        let (_, from) = split(beside);
        self.at_parent("set the mode of", path, |parent, _| {
            rustix::fs::chmodat(parent, from, mode, AtFlags::empty())
        })?;
        self.rename("rename a file to", beside, path)
    }

    /// Makes a link beside its place.
    pub fn make_link(&self, beside: &[u8], path: &[u8], target: &[u8]) -> Result<(), DiskError> {
        if self.look(beside)?.is_some() {
            self.remove(beside)?;
        }
        let (_, from) = split(beside);
        self.at_parent("make the link", path, |parent, _| {
            rustix::fs::symlinkat(target, parent, from)
        })
    }

    /// Makes a directory that is closed to other users until it gets its mode.
    pub fn make_directory(&self, path: &[u8]) -> Result<(), DiskError> {
        self.at_parent("make", path, |parent, name| rustix::fs::mkdirat(parent, name, Mode::RWXU))
    }

    /// Gives a directory its mode and time. Returns false if there is none.
    pub fn finish_directory(
        &self,
        path: &[u8],
        mode: Mode,
        mtime: Time,
    ) -> Result<bool, DiskError> {
        let seen = self.look(path)?.filter(|seen| seen.file_type == FileType::Directory);
        let Some(seen) = seen else { return Ok(false) };
        // Files of a directory that people share get its group here too, whatever it is where they come from.
        let mode = mode.as_raw_mode() | seen.meta.mode & SETGID;
        if seen.meta.mode != mode {
            self.set_mode(path, Mode::from_raw_mode(mode))?;
        }
        if seen.meta.mtime != mtime {
            self.set_time(path, mtime)?;
        }
        Ok(true)
    }

    /// Waits until the content of a file is on the disk.
    pub fn sync_file(&self, path: &[u8], file: &File) -> Result<(), DiskError> {
        self.change("write to the disk", path, || self.gate.sync_file(file.as_fd()))
    }

    /// Waits until the names in directories are on the disk.
    pub fn sync_names<'p>(
        &self,
        directories: impl IntoIterator<Item = &'p [u8]>,
    ) -> Result<(), DiskError> {
        directories.into_iter().try_for_each(|path| {
            let directory = self.beneath.open_directory(path);
            let directory = directory.map_err(|cause| failed("open", path, cause))?;
            self.change("write to the disk", path, || self.gate.sync_names(directory.as_fd()))
        })
    }
}

fn failed(operation: &'static str, path: &[u8], cause: impl Into<io::Error>) -> DiskError {
    DiskError { operation, path: PathBuf::from(OsStr::from_bytes(path)), cause: cause.into() }
}

/// Returns times that change nothing but when something was last written to.
pub fn times(mtime: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) },
    }
}

/// What a file system has room for.
#[derive(Clone, Copy, Debug)]
pub struct Free {
    pub bytes: u64,
    /// Files; `None` where there is no limit.
    pub inodes: Option<u64>,
}

/// What tests replace, in order to end a copy at any change and to fill disks.
pub trait Gate: Send + Sync {
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
pub struct Real;

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
