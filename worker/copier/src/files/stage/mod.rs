//! Files that are made at the destination of a copy.
//!
//! 1. [`Stage::open`] looks at what is in the places of the manifest's files, and whether there is
//!    room for the others.
//! 2. [`Stage::scan`] finds chunks that are there already (`scan`), and makes directories.
//! 3. [`Stage::write`] puts chunks into a file of another name beside the place (`staging`), which
//!    begins with what stays of the old file, and [`Stage::read`] reads chunks for the next host.
//! 4. [`Stage::finish`] gives files their names when all are whole and on the disk (`finish`).
//!
//! At any moment each place has its old file or its new one, and either is whole. What an attempt
//! left behind is found by the next by its name, which is made of the content that it is to have, and
//! is used as far as its hashes are right. Nothing outside the destination is touched: no link is
//! followed below it (`beneath`).

mod finish;
mod scan;
mod seal;
mod staging;

use super::beneath::{Beneath, Seen};
use super::index::Index;
use super::unfinished::is_staging_name;
use crate::meter::Meter;
use rlaunch_copy::{ChunkId, ChunkSet, Entry, Kind, Manifest, RelativePath, hash};
use rlaunch_files::disk::{Disk, DiskError, FEW, Real};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use staging::Active;
pub(crate) use staging::path_beside;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Error of a destination.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("cannot {operation} {}: {cause}", path.display())]
    Io { operation: &'static str, path: PathBuf, cause: io::Error },
    #[error("{} is not a directory", path.display())]
    NotDirectory { path: PathBuf },
    #[error("{} is a name that only unfinished files have", path.display())]
    Name { path: PathBuf },
    #[error(
        "{} is a directory, where a file or a link is to be, with {}, which was not copied there",
        path.display(), unknown.display()
    )]
    InTheWay { path: PathBuf, unknown: PathBuf },
    #[error("{} has room for {free} bytes, but {needed} are needed", path.display())]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    #[error("{} has room for {free} more files, but {needed} are needed", path.display())]
    NoInodes { path: PathBuf, needed: u64, free: u64 },
    #[error("what came for {} at byte {offset} is not what its hash says", path.display())]
    WrongChunk { path: PathBuf, offset: u64 },
    #[error("another copy writes to {}", path.display())]
    Busy { path: PathBuf },
    #[error("{} changed while it was copied to", path.display())]
    Changed { path: PathBuf },
    #[error("{} is not whole: {missing} chunks are missing", path.display())]
    Incomplete { path: PathBuf, missing: u32 },
}

impl StageError {
    /// Returns what helps.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            StageError::Io { cause, path, .. } => return hint_for(cause, path),
            StageError::NotDirectory { .. } => "name a directory as the destination",
            StageError::InTheWay { .. } => "move it away, or copy to another directory",
            StageError::NoSpace { path, .. } => return Some(format!("df -h {}", path.display())),
            StageError::NoInodes { path, .. } => return Some(format!("df -i {}", path.display())),
            StageError::Busy { .. } => "wait until the other copy has ended",
            StageError::Changed { .. } => "copy again; what is there is not sent again",
            StageError::Name { .. }
            | StageError::WrongChunk { .. }
            | StageError::Incomplete { .. } => return None,
        };
        Some(text.to_owned())
    }
}

fn hint_for(cause: &io::Error, path: &Path) -> Option<String> {
    match cause.kind() {
        io::ErrorKind::StorageFull => Some(format!("df -h {}", path.display())),
        io::ErrorKind::QuotaExceeded => Some("quota -s".to_owned()),
        io::ErrorKind::PermissionDenied => Some(format!("ls -ld {}", path.display())),
        _ => None,
    }
}

/// What [`Stage::finish`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Files of the manifest.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Bytes that were found in local files.
    pub unchanged: u64,
    /// Files that were made anew.
    pub made: u64,
    /// What the user may want to know.
    pub notes: Vec<String>,
}

/// State of a file that is neither in its place nor whole beside it.
const LACKING: u8 = 0;
/// State of a file whose place has what it is to contain.
const IN_PLACE: u8 = 1;
/// State of a file that is whole, and lacks nothing but its name.
const STAGED: u8 = 2;

/// Destination of a copy.
pub struct Stage {
    path: PathBuf,
    disk: Disk,
    manifest: Arc<Manifest>,
    /// What was at the place of each entry.
    before: Vec<Option<Seen>>,
    states: Vec<AtomicU8>,
    /// What the contents of entries are called in the names of unfinished files.
    contents: Vec<OnceLock<u32>>,
    index: Mutex<Index>,
    chunks: Mutex<Chunks>,
    /// Files that chunks are being written to.
    active: Mutex<HashMap<usize, Arc<Mutex<Active>>>>,
    written: Mutex<Written>,
    meter: Arc<Meter>,
    /// Whether files can share data; unknown until it is tried.
    shares_data: OnceLock<bool>,
    /// Bytes that a scan has found.
    found: AtomicU64,
    /// Whether what earlier copies brought and this one lacks is removed.
    prunes: bool,
}

/// What is to be on the disk before files get their names.
#[derive(Default)]
struct Written {
    /// The first [`FEW`] files, by their entries. They are open since before anything was written, so that an error of the
    /// disk meanwhile is not lost.
    files: Vec<(usize, Arc<File>)>,
    /// Number of all.
    count: usize,
    /// A file of each file system, by its device.
    file_systems: HashMap<u64, File>,
}

/// Which chunks are there.
struct Chunks {
    /// In files that are in their places.
    old: ChunkSet,
    /// In files beside them.
    staged: ChunkSet,
}

impl Stage {
    /// Opens a destination, and makes its directory if it does not exist. What its files contain is not noted if they are
    /// not kept.
    pub fn open(
        destination: &Path,
        manifest: Arc<Manifest>,
        is_kept: bool,
    ) -> Result<Stage, StageError> {
        if destination.exists() && !destination.is_dir() {
            return Err(StageError::NotDirectory { path: destination.to_owned() });
        }
        let beneath = Beneath::open(destination);
        let beneath = beneath.map_err(|cause| failed("open", destination, cause))?;
        // After the directory is there: the index goes by where links on the way to it lead.
        let index = if is_kept { Index::load(destination) } else { Index::none() };
        Stage::open_with(destination, manifest, index, Disk::new(beneath, Box::new(Real)))
    }

    /// Opens a destination that is there, with an index of the caller's.
    #[cfg(test)]
    pub(super) fn open_at(
        destination: &Path,
        manifest: Arc<Manifest>,
        index: Index,
    ) -> Result<Stage, StageError> {
        let beneath = Beneath::open(destination);
        let beneath = beneath.map_err(|cause| failed("open", destination, cause))?;
        Stage::open_with(destination, manifest, index, Disk::new(beneath, Box::new(Real)))
    }

    fn open_with(
        destination: &Path,
        manifest: Arc<Manifest>,
        mut index: Index,
        disk: Disk,
    ) -> Result<Stage, StageError> {
        index.mark_received();
        let chunks = ChunkSet::new(manifest.chunk_count());
        let mut stage = Stage {
            path: destination.to_owned(),
            disk,
            before: Vec::new(),
            states: manifest.entries.iter().map(|_| AtomicU8::new(LACKING)).collect(),
            contents: manifest.entries.iter().map(|_| OnceLock::new()).collect(),
            index: Mutex::new(index),
            chunks: Mutex::new(Chunks { old: chunks.clone(), staged: chunks }),
            active: Mutex::default(),
            written: Mutex::default(),
            meter: Arc::default(),
            shares_data: OnceLock::new(),
            found: AtomicU64::new(0),
            prunes: false,
            manifest,
        };
        let looks = stage.manifest.entries.iter().map(|entry| stage.look(entry.path.as_bytes()));
        stage.before = looks.collect::<Result<_, _>>()?;
        stage.check_places()?;
        stage.check_room_for_new()?;
        Ok(stage)
    }

    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Lets [`Stage::finish`] remove what earlier copies to the destination brought and this one lacks.
    pub fn prune_at_end(&mut self) {
        self.prunes = true;
    }

    /// Forgets what files contained, so that a scan reads all of them.
    pub fn distrust(&self) {
        lock(&self.index).clear();
    }

    /// Reads a chunk that is there into `buffer`, which then has nothing else.
    ///
    /// # Panics
    ///
    /// Panics if the manifest has no such chunk.
    pub fn read(&self, id: ChunkId, buffer: &mut Vec<u8>) -> Result<(), StageError> {
        let place = self.manifest.chunk(id);
        let entry = &self.manifest.entries[place.entry];
        let file = self.open_holding(id, place.entry, entry)?;
        buffer.resize(place.length as usize, 0);
        file.read_exact_at(buffer, place.offset).map_err(|cause| {
            if cause.kind() == io::ErrorKind::UnexpectedEof {
                StageError::Changed { path: self.place(&entry.path) }
            } else {
                self.failed("read", entry.path.as_bytes(), cause)
            }
        })
    }

    /// Opens the file that has a chunk.
    fn open_holding(&self, id: ChunkId, at: usize, entry: &Entry) -> Result<File, StageError> {
        let final_path = entry.path.as_bytes();
        if lock(&self.chunks).staged.contains(id) {
            match self.disk.beneath.file(&self.staging_path(at), OFlags::RDONLY) {
                // It has its name by now.
                Err(Errno::NOENT) => {}
                file => return file.map_err(|cause| self.failed("open", final_path, cause)),
            }
        }
        // Also while the file is replaced: the new one has this chunk at the same place.
        let file = self.disk.beneath.file(final_path, OFlags::RDONLY);
        file.map_err(|cause| self.failed("open", final_path, cause))
    }

    /// Checks a chunk, and writes it. One that is there already is not written again. Comes after
    /// the scan, from any number of threads.
    ///
    /// # Panics
    ///
    /// Panics if the manifest has no such chunk.
    pub fn write(&self, id: ChunkId, bytes: &[u8]) -> Result<(), StageError> {
        let place = self.manifest.chunk(id);
        let (at, offset) = (place.entry, place.offset);
        let begin = Instant::now();
        let is_wrong = bytes.len() as u64 != u64::from(place.length) || hash(bytes) != *place.hash;
        self.meter.cpu(begin.elapsed());
        if is_wrong {
            let path = self.place(&self.manifest.entries[at].path);
            return Err(StageError::WrongChunk { path, offset });
        }
        let is_there = {
            let chunks = lock(&self.chunks);
            chunks.old.contains(id) || chunks.staged.contains(id)
        };
        if is_there {
            return Ok(());
        }
        let begin = Instant::now();
        let written = self.write_new(at, id, offset, bytes);
        self.meter.disk(begin.elapsed());
        written
    }

    /// Hashes all files in their places. Returns those that do not contain what they are to.
    pub fn verify(&self, threads: usize) -> Vec<RelativePath> {
        let mut wrong = self.hash_in_place(threads);
        wrong.sort_unstable();
        wrong.dedup();
        wrong.into_iter().map(|at| self.manifest.entries[at].path.clone()).collect()
    }

    fn look(&self, path: &[u8]) -> Result<Option<Seen>, StageError> {
        self.disk.beneath.look(path).map_err(|cause| self.failed("look at", path, cause))
    }

    /// Returns what was in the place of an entry, if it was a file.
    fn old_file(&self, at: usize) -> Option<Seen> {
        self.before[at].filter(|seen| seen.file_type == FileType::RegularFile)
    }

    /// Iterates over the entries that are files.
    fn files(&self) -> impl Iterator<Item = (usize, &Entry)> {
        let entries = self.manifest.entries.iter().enumerate();
        entries.filter(|(_, entry)| matches!(entry.kind, Kind::File { .. }))
    }

    fn state(&self, at: usize) -> u8 {
        self.states[at].load(Ordering::Acquire)
    }

    fn set_state(&self, at: usize, state: u8) {
        self.states[at].store(state, Ordering::Release);
    }

    fn place(&self, path: &RelativePath) -> PathBuf {
        self.path.join(OsStr::from_bytes(path.as_bytes()))
    }

    fn failed(
        &self,
        operation: &'static str,
        path: &[u8],
        cause: impl Into<io::Error>,
    ) -> StageError {
        failed(operation, &self.path.join(OsStr::from_bytes(path)), cause)
    }

    /// Changes something on the disk, unless a test says that the host has died by then.
    fn change<T>(
        &self,
        operation: &'static str,
        path: &[u8],
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, StageError> {
        self.on_disk(self.disk.change(operation, path, change))
    }

    /// Names what a change of the disk was to by its whole path.
    fn on_disk<T>(&self, changed: Result<T, DiskError>) -> Result<T, StageError> {
        changed.map_err(|DiskError { operation, path, cause }| {
            failed(operation, &self.path.join(path), cause)
        })
    }

    /// Checks that no entry has the name of an unfinished file, and that a directory in the place of
    /// a file or a link has nothing in it but what was copied there.
    fn check_places(&self) -> Result<(), StageError> {
        for (entry, before) in self.manifest.entries.iter().zip(&self.before) {
            if is_staging_name(entry.path.name()) {
                return Err(StageError::Name { path: self.place(&entry.path) });
            }
            let was_directory = before.is_some_and(|seen| seen.file_type == FileType::Directory);
            if was_directory && entry.kind != Kind::Directory {
                self.clear(entry.path.as_bytes(), false)?;
            }
        }
        Ok(())
    }

    /// Checks that there is room for files that are not there at all.
    fn check_room_for_new(&self) -> Result<(), StageError> {
        let (mut bytes, mut inodes) = (0, 0);
        for (at, entry) in self.manifest.entries.iter().enumerate() {
            if self.before[at].is_some() {
                continue;
            }
            inodes += 1;
            if let Kind::File { size, sparse: false, .. } = entry.kind {
                let leftover = self.leftover(at)?;
                inodes -= u64::from(leftover.is_some());
                bytes += size.saturating_sub(leftover.map_or(0, |seen| seen.meta.allocated));
            }
        }
        self.check_room(bytes, inodes)
    }

    fn check_room(&self, bytes: u64, inodes: u64) -> Result<(), StageError> {
        let free = self.disk.gate.free(self.disk.beneath.root());
        let free = free.map_err(|cause| self.failed("ask for the free space of", b"", cause))?;
        let path = self.path.clone();
        if bytes > free.bytes {
            return Err(StageError::NoSpace { path, needed: bytes, free: free.bytes });
        }
        match free.inodes {
            Some(free) if inodes > free => Err(StageError::NoInodes { path, needed: inodes, free }),
            Some(_) | None => Ok(()),
        }
    }
}

fn failed(operation: &'static str, path: &Path, cause: impl Into<io::Error>) -> StageError {
    StageError::Io { operation, path: path.to_owned(), cause: cause.into() }
}

/// Locks what stays consistent even if a thread panicked with the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
