//! What the file system says about a file.

use rlaunch_bootstrap::job::seal::SealedFile;
use rlaunch_copy::Time;
use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bits of a mode that are copied: those that give rights to users. A program that runs as its owner
/// is to be installed by whoever may.
const MODE: u32 = 0o777;
/// Bit of a directory whose files get its group.
pub const SETGID: u32 = 0o2000;
/// Unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;

/// What the file system says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub size: u64,
    /// Permissions, and [`SETGID`] of a directory.
    pub mode: u32,
    pub mtime: Time,
    pub ctime: Time,
    pub device: u64,
    pub inode: u64,
    /// Bytes on the disk.
    pub allocated: u64,
}

/// What tells that a file has not been written to. Without the device, whose number may be another
/// after a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    size: u64,
    mtime: Time,
    ctime: Time,
    inode: u64,
}

impl Meta {
    pub fn of(metadata: &Metadata) -> Meta {
        Meta {
            size: metadata.size(),
            mode: mode(metadata.mode()),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            ctime: time(metadata.ctime(), metadata.ctime_nsec()),
            device: metadata.dev(),
            inode: metadata.ino(),
            allocated: metadata.blocks() * BLOCK,
        }
    }

    pub fn of_stat(stat: &Stat) -> Meta {
        Meta {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: mode(stat.st_mode),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            device: stat.st_dev,
            inode: stat.st_ino,
            allocated: u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK,
        }
    }

    /// Tells whether the file has holes.
    pub fn is_sparse(&self) -> bool {
        self.allocated < self.size
    }

    pub fn stamp(&self) -> Stamp {
        Stamp { size: self.size, mtime: self.mtime, ctime: self.ctime, inode: self.inode }
    }
}

impl Stamp {
    pub fn mtime(&self) -> Time {
        self.mtime
    }

    /// Returns when the file was last changed, which cannot be set to another time.
    pub fn ctime(&self) -> Time {
        self.ctime
    }

    /// Returns what a file was like when it was sealed.
    pub fn of_sealed(file: &SealedFile<'_>) -> Stamp {
        let [mtime, ctime] = [file.mtime, file.ctime].map(|(secs, nanos)| time(secs, nanos));
        Stamp { size: file.size, mtime, ctime, inode: file.inode }
    }

    /// Tells whether this is the other file, whatever its name and mode are: both change the time of the last change.
    pub fn is_renamed(&self, other: &Stamp) -> bool {
        Stamp { ctime: other.ctime, ..*self } == *other
    }

    /// Returns what a seal has of a file of this name.
    pub fn sealed<'n>(&self, name: &'n [u8], is_received: bool) -> SealedFile<'n> {
        let time = |of: Time| (of.secs, of.nanos.into());
        let (mtime, ctime) = (time(self.mtime), time(self.ctime));
        SealedFile { name, size: self.size, inode: self.inode, mtime, ctime, is_received }
    }
}

/// Returns what is copied of a mode.
fn mode(raw: u32) -> u32 {
    let is_directory = FileType::from_raw_mode(raw) == FileType::Directory;
    raw & if is_directory { MODE | SETGID } else { MODE }
}

fn time(secs: i64, nanos: impl TryInto<u32>) -> Time {
    // No file system has a second of more nanoseconds; a manifest with one would be refused.
    let nanos = nanos.try_into().ok().filter(|nanos| *nanos < 1_000_000_000);
    Time { secs, nanos: nanos.unwrap_or(0) }
}

/// Returns the time that it is.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() }
}
