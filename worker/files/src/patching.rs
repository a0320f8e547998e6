//! A copy of a working tree becomes that of another version by a patch, as the program that copies would make it.
//!
//! Files are made beside their places and get their names when all are on the disk, so that at any moment each place has its
//! old file or its new one, and either is whole. Until the end the seal says that the copy is unfinished, with both: whoever
//! comes next compares all of it, and knows what has come with the copy.

use crate::beneath::{Beneath, Seen, split};
use crate::disk::{Disk, DiskError, Real, times};
use crate::meta::{Meta, Stamp};
use crate::sealing;
use rlaunch_bootstrap::job::seal::{Seal, SealedDirectory, SealedFile};
use rlaunch_copy::{Patch, PatchEntry, Put, RelativePath};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Rights that the owner of a directory needs in order to make files in it.
const OWNER: u32 = 0o700;

/// Reason why a copy is not what a patch makes of it.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    #[error("cannot open the copy: {0}")]
    Open(io::Error),
    #[error("its seal cannot be read")]
    NoSeal,
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{0} is a directory where a file is to be, or the other way round")]
    InTheWay(RelativePath),
    #[error("{0} changed meanwhile")]
    Changed(RelativePath),
}

/// Patches a copy that is what its seal says, which has these bytes.
pub fn patch(copy: &Path, sealed: &[u8], patch: &Patch) -> Result<(), PatchError> {
    let disk = Disk::new(Beneath::open(copy).map_err(PatchError::Open)?, Box::new(Real));
    patch_on(&disk, copy, sealed, patch)
}

fn patch_on(disk: &Disk, copy: &Path, sealed: &[u8], patch: &Patch) -> Result<(), PatchError> {
    let (_, seal) = Seal::decode(sealed).ok_or(PatchError::NoSeal)?;
    let directories = seal.directories.into_iter().map(|directory| (directory.path, directory));
    let patching = Patching { disk, patch, before: directories.collect() };
    patching.check_places()?;
    disk.change("unseal", b".", || sealing::unseal(copy))?;
    patching.make_directories()?;
    let files = patching.make_files()?;
    // A name must not be on the disk before what it names. One by one: more would also wait for all that others write.
    files.iter().try_for_each(|(path, file)| disk.sync_file(path, file))?;
    drop(files);
    let both = patching.sealed_meanwhile()?;
    disk.change("seal", b".", || sealing::seal(copy, &both, &Seal::UNFINISHED))?;
    patching.name()?;
    patching.remove()?;
    // Before directories get modes that may forbid to open them.
    disk.sync_names(patching.renamed_in())?;
    patching.finish_directories()?;
    let directories = patching.sealed_now()?;
    let seal = Seal { directories: directories.into_values().collect() };
    Ok(disk.change("seal", b".", || sealing::seal(copy, &seal, &patch.content.0))?)
}

struct Patching<'a> {
    disk: &'a Disk,
    patch: &'a Patch,
    /// What was sealed, by the paths of directories.
    before: BTreeMap<&'a [u8], SealedDirectory<'a>>,
}

impl<'a> Patching<'a> {
    /// Checks that no file takes the place of a directory, nor a directory that of a file: ranks may have made it.
    fn check_places(&self) -> Result<(), PatchError> {
        for PatchEntry { path, put, .. } in &self.patch.entries {
            let seen = self.disk.look(path.as_bytes())?;
            if seen.is_some_and(|seen| is_directory(&seen) != (*put == Put::Directory)) {
                return Err(PatchError::InTheWay(path.clone()));
            }
        }
        Ok(())
    }

    /// Makes new directories, and lets files be made in those that are there.
    fn make_directories(&self) -> Result<(), PatchError> {
        for path in self.directories().map(|entry| entry.path.as_bytes()) {
            match self.disk.look(path)? {
                None => self.disk.make_directory(path)?,
                Some(seen) if seen.meta.mode & OWNER != OWNER => {
                    self.disk.set_mode(path, Mode::from_raw_mode(seen.meta.mode | OWNER))?;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Makes files and links beside their places. Locks the files, so that no other copy removes them as leftovers.
    fn make_files(&self) -> Result<Vec<(&'a [u8], File)>, PatchError> {
        let mut made = Vec::new();
        for entry in &self.patch.entries {
            let path = entry.path.as_bytes();
            let (beside, data) = match &entry.put {
                Put::Directory => continue,
                Put::File { beside, data } => (beside.as_bytes(), data),
                Put::Link { beside, target } => {
                    self.disk.make_link(beside.as_bytes(), path, target)?;
                    self.disk.set_time(beside.as_bytes(), entry.mtime)?;
                    continue;
                }
            };
            if self.disk.look(beside)?.is_some() {
                self.disk.remove(beside)?;
            }
            let options = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let make = || self.disk.beneath.file(beside, options);
            let mut file = self.disk.change("make", path, make)?;
            // Some network file systems have no locks.
            let _ = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            self.disk.change("write", path, || file.write_all(data))?;
            let time = times(entry.mtime);
            self.disk.change("set the time of", path, || rustix::fs::futimens(&file, &time))?;
            made.push((path, file));
        }
        Ok(made)
    }

    /// Gives files and links their names.
    fn name(&self) -> Result<(), PatchError> {
        for entry in &self.patch.entries {
            let path = entry.path.as_bytes();
            match &entry.put {
                Put::Directory => {}
                Put::File { beside, .. } => {
                    let mode = Mode::from_raw_mode(entry.mode & 0o777);
                    self.disk.put_file(beside.as_bytes(), path, mode)?;
                }
                Put::Link { beside, .. } => {
                    self.disk.rename("rename a link to", beside.as_bytes(), path)?;
                }
            }
        }
        Ok(())
    }

    /// Removes what is gone, if a copy has put it there and it has not been written to since, and directories that are then
    /// empty.
    fn remove(&self) -> Result<(), PatchError> {
        for path in self.patch.removed.iter().map(RelativePath::as_bytes) {
            let seen = self.disk.look(path)?.map(|seen| seen.meta.stamp());
            if seen.is_some() && seen == self.received(path) {
                self.disk.remove(path)?;
            }
        }
        for path in self.patch.left.iter().rev() {
            match self.disk.remove_directory(path.as_bytes()) {
                Err(DiskError { cause, .. }) if has_more(&cause) => {}
                removed => removed?,
            }
        }
        Ok(())
    }

    /// Returns what a file was like when it was sealed, if a copy had put it there.
    fn received(&self, path: &[u8]) -> Option<Stamp> {
        let (parent, name) = split(path);
        let files = &self.before.get(parent)?.files;
        let at = files.binary_search_by(|file| file.name.cmp(name)).ok()?;
        files[at].is_received.then(|| Stamp::of_sealed(&files[at]))
    }

    /// Returns what is to be sealed until all files have their names: what was in their places, and what is beside them.
    fn sealed_meanwhile(&self) -> Result<Seal<'a>, PatchError> {
        let mut directories = self.before.clone();
        for entry in &self.patch.entries {
            let Some(beside) = entry.put.beside() else { continue };
            let seen = self.disk.look(beside.as_bytes())?;
            let stamp = seen.ok_or_else(|| PatchError::Changed(entry.path.clone()))?.meta.stamp();
            let (path, name) = split(entry.path.as_bytes());
            let made = || SealedDirectory { path, mode: 0, files: Vec::new() };
            let files = &mut directories.entry(path).or_insert_with(made).files;
            let at = files.partition_point(|file| file.name <= name);
            files.insert(at, stamp.sealed(name, true));
        }
        Ok(Seal { directories: directories.into_values().collect() })
    }

    /// Returns the directories that have new names.
    fn renamed_in(&self) -> BTreeSet<&'a [u8]> {
        let paths = self.patch.entries.iter().filter(|entry| {
            let is_there = self.before.contains_key(entry.path.as_bytes());
            entry.put != Put::Directory || !is_there
        });
        paths.map(|entry| split(entry.path.as_bytes()).0).collect()
    }

    fn finish_directories(&self) -> Result<(), PatchError> {
        // What is made in a directory sets its time, so the innermost come first.
        let directories: Vec<&PatchEntry> = self.directories().collect();
        for PatchEntry { path, mode, mtime, .. } in directories.into_iter().rev() {
            let mode = Mode::from_raw_mode(mode & SealedDirectory::MODE);
            if !self.disk.finish_directory(path.as_bytes(), mode, *mtime)? {
                return Err(PatchError::Changed(path.clone()));
            }
        }
        Ok(())
    }

    fn directories(&self) -> impl Iterator<Item = &'a PatchEntry> {
        self.patch.entries.iter().filter(|entry| entry.put == Put::Directory)
    }

    /// Returns what is to be sealed now.
    fn sealed_now(mut self) -> Result<BTreeMap<&'a [u8], SealedDirectory<'a>>, PatchError> {
        let patch = self.patch;
        for path in &patch.left {
            self.before.remove(path.as_bytes());
        }
        for (parent, name) in patch.removed.iter().map(|path| split(path.as_bytes())) {
            if let Some(directory) = self.before.get_mut(parent) {
                directory.files.retain(|file| file.name != name);
            }
        }
        for entry in &patch.entries {
            let path = entry.path.as_bytes();
            if entry.put == Put::Directory {
                self.directory(&entry.path, path)?;
                continue;
            }
            let seen = self.disk.look(path)?.filter(|seen| is_put(seen, entry));
            let stamp = seen.ok_or_else(|| PatchError::Changed(entry.path.clone()))?.meta.stamp();
            let (parent, name) = split(path);
            let files = &mut self.directory(&entry.path, parent)?.files;
            put_sorted(files, stamp.sealed(name, true));
        }
        Ok(self.before)
    }

    /// Returns a directory as it is to be sealed, with the mode that it has now. `of` is what it is asked for.
    fn directory(
        &mut self,
        of: &RelativePath,
        path: &'a [u8],
    ) -> Result<&mut SealedDirectory<'a>, PatchError> {
        let opened = self.disk.beneath.directory(path);
        let stat = opened.and_then(rustix::fs::fstat);
        let mode = stat
            .map_err(|_| PatchError::Changed(of.clone()))
            .map(|stat| Meta::of_stat(&stat))?
            .mode;
        let made = || SealedDirectory { path, mode, files: Vec::new() };
        let directory = self.before.entry(path).or_insert_with(made);
        directory.mode = mode;
        Ok(directory)
    }
}

fn is_directory(seen: &Seen) -> bool {
    seen.file_type == FileType::Directory
}

/// Tells whether a place still has what was put there. Ranks may have written to it since.
fn is_put(seen: &Seen, entry: &PatchEntry) -> bool {
    let is_it = match &entry.put {
        Put::Directory => is_directory(seen),
        Put::File { data, .. } => {
            seen.file_type == FileType::RegularFile && seen.meta.size == data.len() as u64
        }
        Put::Link { .. } => seen.file_type == FileType::Symlink,
    };
    is_it && seen.meta.mtime.secs == entry.mtime.secs
}

fn put_sorted<'a>(files: &mut Vec<SealedFile<'a>>, file: SealedFile<'a>) {
    match files.binary_search_by(|other| other.name.cmp(file.name)) {
        Ok(at) => files[at] = file,
        Err(at) => files.insert(at, file),
    }
}

/// Tells whether a directory could not be removed because it has more than what was copied, or was gone.
fn has_more(cause: &io::Error) -> bool {
    let errno = Errno::from_io_error(cause);
    matches!(errno, Some(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR))
}

#[cfg(test)]
#[path = "patching_tests.rs"]
mod tests;
