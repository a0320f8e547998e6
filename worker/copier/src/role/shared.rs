//! Hosts whose destination is one directory, as in a home directory that they share: one of them gets the files for all.
//!
//! Each rank puts a file of its own where the files go, and then looks for those of the others. Only the copy has to know
//! of it, since it takes a moment before anything is copied.

use crate::files::staging_name_of;
use rlaunch_copy::control::Secret;
use rlaunch_copy::hash;
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Number of times that the file is made, which somebody who tidies up may remove before it is locked.
const ATTEMPTS: u32 = 3;

/// File of a rank at the destination. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Mark {
    directory: PathBuf,
    /// Number of this copy.
    copy: u32,
    rank: u32,
    /// Locked, like every unfinished file that is of use: nobody who tidies up removes it.
    _lock: File,
}

impl Mark {
    /// Makes the file, in the innermost directory on the way to the destination that exists. Returns `None` if that is not
    /// possible, of which the copy itself will say why.
    pub(super) fn make(destination: &Path, secret: &Secret, rank: u32) -> Option<Mark> {
        let directory = destination.ancestors().find(|place| place.is_dir())?.to_owned();
        let [a, b, c, d, ..] = hash(&secret.0).0;
        let copy = u32::from_be_bytes([a, b, c, d]);
        let place = place_of(&directory, copy, rank);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        for _ in 0..ATTEMPTS {
            let lock = options.open(&place).ok()?;
            // Where there are no locks, it is a mark without.
            let _ = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive);
            if place.exists() {
                return Some(Mark { directory, copy, rank, _lock: lock });
            }
        }
        None
    }

    /// Returns the lowest rank of `ranks` that has a file in the directory: this one, if no other has.
    pub(super) fn lowest(&self, ranks: u32) -> u32 {
        let is_there =
            |rank: &u32| *rank == self.rank || place_of(&self.directory, self.copy, *rank).exists();
        (0..ranks).find(is_there).unwrap_or(self.rank)
    }
}

/// Returns where a rank has its file, whose name is that of an unfinished one, which no copy takes along.
fn place_of(directory: &Path, copy: u32, rank: u32) -> PathBuf {
    directory.join(staging_name_of(&format!("rank{rank}"), copy))
}

impl Drop for Mark {
    fn drop(&mut self) {
        // One that stays is empty.
        let _ = fs::remove_file(place_of(&self.directory, self.copy, self.rank));
    }
}

/// Returns the rank that gets the files of each rank, if `lowest` are the lowest ranks that ranks have found.
pub(super) fn receivers(lowest: &[u32]) -> Vec<u32> {
    let of = |rank: u32| lowest.get(rank as usize).copied().unwrap_or(rank).min(rank);
    let receiver = |mut rank: u32| {
        // One that began late may have been found by some and not by others.
        while of(rank) < rank {
            rank = of(rank);
        }
        rank
    };
    (0..).zip(lowest).map(|(rank, _)| receiver(rank)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_find_each_other_in_one_directory() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = |byte| Secret([byte; 32]);
        let mark = |place: &Path, rank| Mark::make(place, &secret(7), rank).unwrap();
        let marks = [
            mark(other.path(), 0),
            mark(one.path(), 1),
            // What is not there yet will be one directory, too.
            mark(&one.path().join("x/y"), 2),
            mark(&other.path().join("x"), 3),
        ];
        let another_copy = Mark::make(one.path(), &secret(8), 0).unwrap();
        let lowest = || marks.iter().map(|mark| mark.lowest(4)).collect::<Vec<_>>();
        assert_eq!(lowest(), [0, 1, 1, 0]);
        assert_eq!(another_copy.lowest(4), 0);
        drop((marks, another_copy));
        assert_eq!(fs::read_dir(one.path()).unwrap().count(), 0);
        assert!(Mark::make(Path::new("/proc/self"), &secret(7), 0).is_none());
    }

    #[test]
    fn a_mark_is_not_taken_for_what_a_copy_has_left() {
        let place = tempfile::tempdir().unwrap();
        let mark = Mark::make(place.path(), &Secret([7; 32]), 0).unwrap();
        let [entry] = <[_; 1]>::try_from(
            fs::read_dir(place.path()).unwrap().collect::<Result<Vec<_>, _>>().unwrap(),
        )
        .unwrap();
        let other = File::open(entry.path()).unwrap();
        let lock = || rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(lock(), Err(rustix::io::Errno::WOULDBLOCK));
        drop(mark);
        assert_eq!(lock(), Ok(()));
    }

    #[test]
    fn one_rank_receives_for_all_that_share_with_it() {
        assert_eq!(receivers(&[0, 1, 2]), [0, 1, 2]);
        assert_eq!(receivers(&[0, 0, 1, 3]), [0, 0, 0, 3]);
        // Higher numbers are none that a rank finds.
        assert_eq!(receivers(&[7, 1]), [0, 1]);
    }
}
