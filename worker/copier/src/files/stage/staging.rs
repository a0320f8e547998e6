//! Files beside the places of those that are made anew.

use super::super::beneath::{Seen, split};
use super::super::hashing::{is_zeros, is_zeros_hash};
use super::super::meta::{Meta, SETGID};
use super::super::unfinished::staging_name;
use super::super::walk::joined;
use super::{FEW, LACKING, STAGED, Stage, StageError, lock};
use rlaunch_copy::{CHUNK, ChunkId, Entry, Kind, hash};
use rlaunch_files::disk::times;
use rustix::fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// File system whose files are in memory: asking it for space fills that with zeros, which takes as
/// long as writing.
const TMPFS: i64 = 0x0102_1994;
/// Rights by which an owner can go on with an unfinished file.
const WRITABLE: u32 = 0o600;
/// Most bytes of one write. For large ones the kernel takes pages of the page cache from the large blocks of memory that are
/// free, which many hypervisors have taken back: to get them again costs more than a few calls.
const PIECE: usize = 256 << 10;
/// Number of times that an unfinished file is opened which another copy renames at that moment, or somebody removes.
const ATTEMPTS: usize = 3;
/// Time after which an unfinished file is opened again that somebody has locked.
const TIDYING: Duration = Duration::from_millis(200);

/// File that chunks are being written to.
#[derive(Default)]
pub(super) struct Active {
    file: Option<Arc<File>>,
    /// Turn of a writer. The kernel lets one thread write to a file at a time, and those that wait for it keep their
    /// processors busy: with more streams than processors that costs a third of the speed.
    turn: Arc<Mutex<()>>,
    /// Chunks that it lacks.
    left: u32,
    /// Whether everything that was not written reads as zeros.
    is_blank: bool,
}

impl Stage {
    /// Writes a chunk that is nowhere yet.
    pub(super) fn write_new(
        &self,
        at: usize,
        id: ChunkId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StageError> {
        let active = self.active(at);
        let (file, turn, is_blank) = {
            let mut active = lock(&active);
            (self.begin(at, &mut active)?, Arc::clone(&active.turn), active.is_blank)
        };
        let entry = &self.manifest.entries[at];
        {
            let _turn = lock(&turn);
            self.write_at(entry, &file, is_blank, offset, bytes)?;
        }
        // The disk works while more arrives. Of small files it is cheaper to write many at once. Where this is not known,
        // the end of the copy waits longer.
        if bytes.len() as u64 == CHUNK {
            let _ = rlaunch_sys::begin_writeback(&file, offset, CHUNK);
        }
        let mut active = lock(&active);
        if lock(&self.chunks).staged.insert(id) {
            active.left -= 1;
            if active.left == 0 {
                self.complete(at, &file)?;
            }
        }
        Ok(())
    }

    /// Makes sure that a file which lacks no chunk is whole beside its place.
    pub(super) fn settle(&self, at: usize) -> Result<(), StageError> {
        if self.state(at) != LACKING {
            return Ok(());
        }
        let active = self.active(at);
        let mut active = lock(&active);
        let file = self.begin(at, &mut active)?;
        if active.left == 0 { self.complete(at, &file) } else { Ok(()) }
    }

    fn active(&self, at: usize) -> Arc<Mutex<Active>> {
        Arc::clone(lock(&self.active).entry(at).or_default())
    }

    /// Finds out whether new files can share data with old ones, by that of an entry.
    pub(super) fn try_sharing(&self, at: usize) -> Result<(), StageError> {
        let path = self.staging_path(at);
        let (file, is_new) = self.open_staging(&path)?;
        if !is_new {
            // Of another attempt, which has put something into it.
            return Ok(());
        }
        let old = self.disk.beneath.file(self.manifest.entries[at].path.as_bytes(), OFlags::RDONLY);
        if let Ok(old) = &old {
            self.share(&path, old, &file)?;
        }
        // What stays of the old file is put into it when the first chunk comes, not before any is
        // asked for.
        self.remove(&path)
    }

    /// Makes a new file share the data of an old one. Returns whether that worked.
    fn share(&self, path: &[u8], old: &File, new: &File) -> Result<bool, StageError> {
        let shared = self.change("share the data of", path, || {
            Ok(rustix::fs::ioctl_ficlone(new, old).is_ok())
        })?;
        let _ = self.shares_data.set(shared);
        Ok(shared)
    }

    /// Opens the file beside an entry's place, and puts into it what stays of the old file. Others wait
    /// for that: the caller has locked `active`.
    fn begin(&self, at: usize, active: &mut Active) -> Result<Arc<File>, StageError> {
        if let Some(file) = &active.file {
            return Ok(Arc::clone(file));
        }
        let entry = &self.manifest.entries[at];
        let path = self.staging_path(at);
        let (file, is_new) = self.open_staging(&path)?;
        let range = self.manifest.chunks_of(at);
        let (kept, lost) = {
            let chunks = lock(&self.chunks);
            let ids = || range.clone().map(ChunkId);
            let is_kept = |id: &ChunkId| chunks.old.contains(*id) && !chunks.staged.contains(*id);
            let kept: Vec<ChunkId> = ids().filter(is_kept).collect();
            (kept, is_new && ids().any(|id| chunks.staged.contains(id)))
        };
        if lost {
            // Somebody removed what the scan had found.
            return Err(StageError::Changed { path: self.place(&entry.path) });
        }
        active.is_blank = is_new;
        if kept.is_empty() {
            self.allocate(entry, &file)?;
        } else {
            active.is_blank &= !self.keep(at, entry, &file, is_new, &kept)?;
        }
        let length = file.metadata().map_err(|cause| self.failed("look at", &path, cause))?.len();
        if length != entry.size() {
            self.change("resize", &path, || rustix::fs::ftruncate(&file, entry.size()))?;
        }
        let file = Arc::new(file);
        self.note_written(at, &file, &path)?;
        let mut chunks = lock(&self.chunks);
        for id in kept {
            chunks.staged.insert(id);
        }
        let is_left = |id: &u32| !chunks.staged.contains(ChunkId(*id));
        active.left = range.filter(is_left).count() as u32;
        active.file = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Opens an unfinished file for this copy alone. Returns whether it is new.
    fn open_staging(&self, path: &[u8]) -> Result<(File, bool), StageError> {
        let (parent, name) = split(path);
        let options = OFlags::RDWR | OFlags::CREATE;
        for _ in 0..ATTEMPTS {
            let seen = self.look(path)?;
            if seen.is_some_and(|seen| !is_usable(&seen)) {
                // Somebody else has put it there.
                self.remove(path)?;
            }
            let left = seen.filter(is_usable);
            if left.is_some_and(|seen| seen.meta.mode & WRITABLE != WRITABLE) {
                self.make_writable(path)?;
            }
            let is_new = self.look(path)?.filter(is_usable).is_none();
            let options = if is_new { options | OFlags::EXCL } else { options };
            let file = match self.change("make", path, || self.disk.beneath.file(path, options)) {
                Err(StageError::Io { cause, .. })
                    if cause.kind() == io::ErrorKind::AlreadyExists =>
                {
                    continue;
                }
                file => file?,
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Some network file systems have no locks.
                Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {}
                Err(Errno::WOULDBLOCK) => {
                    // Whoever removes what copies have left has it for a moment only.
                    thread::sleep(TIDYING);
                    continue;
                }
                Err(cause) => return Err(self.failed("lock", path, cause)),
            }
            // The one that had the lock may have given the file its name.
            let stat = rustix::fs::fstat(&file);
            let stat = stat.map_err(|cause| self.failed("look at", path, cause))?;
            let directory = self.disk.beneath.directory(parent);
            let directory = directory.map_err(|cause| self.failed("open", path, cause))?;
            let named = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
            if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (stat.st_dev, stat.st_ino)) {
                return Ok((file, is_new));
            }
        }
        Err(StageError::Busy { path: self.path.join(os(path)) })
    }

    /// Gives an unfinished file back the mode that it had before its last one, which it has if a host
    /// died right before the file was renamed.
    fn make_writable(&self, path: &[u8]) -> Result<(), StageError> {
        let Ok(file) = self.disk.beneath.file(path, OFlags::RDONLY) else {
            // Nothing was found in it either.
            return self.remove(path);
        };
        // A copy that has it locked is about to rename it.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            == Err(Errno::WOULDBLOCK)
        {
            return Err(StageError::Busy { path: self.path.join(os(path)) });
        }
        let mode = Mode::RUSR | Mode::WUSR;
        self.change("set the mode of", path, || rustix::fs::fchmod(&file, mode))
    }

    /// Puts what stays of the old file into the new one. Returns whether that may have put something
    /// else there as well.
    fn keep(
        &self,
        at: usize,
        entry: &Entry,
        file: &File,
        is_new: bool,
        kept: &[ChunkId],
    ) -> Result<bool, StageError> {
        let path = entry.path.as_bytes();
        let old = self.disk.beneath.file(path, OFlags::RDONLY);
        let old = old.map_err(|cause| self.failed("open", path, cause))?;
        let meta = old.metadata().map(|metadata| Meta::of(&metadata));
        let meta = meta.map_err(|cause| self.failed("look at", path, cause))?;
        // What the scan has found is there only if nobody wrote to the file since.
        if self.old_file(at).is_none_or(|seen| seen.meta.stamp() != meta.stamp()) {
            return Err(StageError::Changed { path: self.place(&entry.path) });
        }
        if is_new && self.shares_data.get() != Some(&false) && self.share(path, &old, file)? {
            return Ok(true);
        }
        self.allocate(entry, file)?;
        let is_sparse = matches!(entry.kind, Kind::File { sparse: true, .. });
        for id in kept {
            let place = self.manifest.chunk(*id);
            if is_sparse && is_new && is_zeros_hash(place.length, place.hash) {
                continue;
            }
            let range = place.offset..place.offset + u64::from(place.length);
            self.change("copy", path, || copy(&old, file, range))?;
        }
        Ok(false)
    }

    /// Asks for the space of a file, so that what is lacking is known before anything is written.
    fn allocate(&self, entry: &Entry, file: &File) -> Result<(), StageError> {
        let Kind::File { size, sparse: false, .. } = entry.kind else { return Ok(()) };
        // A single chunk is its own question.
        if size <= CHUNK || rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type == TMPFS) {
            return Ok(());
        }
        self.change("get space for", entry.path.as_bytes(), || {
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
                // File systems that cannot be asked.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
                asked => asked,
            }
        })
    }

    fn write_at(
        &self,
        entry: &Entry,
        file: &File,
        is_blank: bool,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StageError> {
        let path = entry.path.as_bytes();
        if matches!(entry.kind, Kind::File { sparse: true, .. }) && is_zeros(bytes) {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let length = bytes.len() as u64;
            let is_hole = is_blank
                || self.change("write", path, || {
                    Ok(rustix::fs::fallocate(file, hole, offset, length).is_ok())
                })?;
            if is_hole {
                return Ok(());
            }
        }
        let written = self.disk.gate.before_change().and_then(|()| {
            let mut pieces = bytes.chunks(PIECE).zip((offset..).step_by(PIECE));
            pieces.try_for_each(|(piece, at)| file.write_all_at(piece, at))
        });
        written.map_err(|cause| self.failed("write", path, cause))
    }

    /// Gives a whole file its time. Its mode comes with its name: one that forbids writing would keep
    /// the next attempt from using the file. The caller has locked its [`Active`].
    fn complete(&self, at: usize, file: &File) -> Result<(), StageError> {
        let entry = &self.manifest.entries[at];
        let path = entry.path.as_bytes();
        self.change("set the time of", path, || rustix::fs::futimens(file, &times(entry.mtime)))?;
        self.set_state(at, STAGED);
        lock(&self.active).remove(&at);
        Ok(())
    }

    /// Notes a file that is to be on the disk in the end.
    fn note_written(&self, at: usize, file: &Arc<File>, path: &[u8]) -> Result<(), StageError> {
        let noted = rustix::fs::fstat(file).map_err(io::Error::from).and_then(|stat| {
            let mut written = lock(&self.written);
            if let std::collections::hash_map::Entry::Vacant(device) =
                written.file_systems.entry(stat.st_dev)
            {
                device.insert(self.any_file_beside(path)?);
            }
            written.count += 1;
            if written.files.len() < FEW {
                written.files.push((at, Arc::clone(file)));
            }
            Ok(())
        });
        noted.map_err(|cause| self.failed("open", path, cause))
    }

    /// Opens the directory of a file, by which its file system can be written to the disk.
    fn any_file_beside(&self, path: &[u8]) -> io::Result<File> {
        Ok(self.disk.beneath.open_directory(split(path).0)?.into())
    }

    /// Returns what an earlier attempt left of a file.
    pub(super) fn leftover(&self, at: usize) -> Result<Option<Seen>, StageError> {
        Ok(self.look(&self.staging_path(at))?.filter(is_usable))
    }

    /// Returns the path of the unfinished file of an entry.
    pub(super) fn staging_path(&self, at: usize) -> Vec<u8> {
        let entry = &self.manifest.entries[at];
        path_with(entry, *self.contents[at].get_or_init(|| content_of(entry)))
    }
}

/// Returns the path of the unfinished file or link of an entry.
pub(crate) fn path_beside(entry: &Entry) -> Vec<u8> {
    path_with(entry, content_of(entry))
}

fn path_with(entry: &Entry, content: u32) -> Vec<u8> {
    let (parent, name) = split(entry.path.as_bytes());
    joined(parent, &staging_name(name, content))
}

/// Tells whether an unfinished file is of this user, so that nobody else can have a hand in it.
fn is_usable(seen: &Seen) -> bool {
    seen.file_type == FileType::RegularFile && seen.is_own
}

/// Copies a part of a file within the kernel, or else by hand.
fn copy(from: &File, to: &File, range: Range<u64>) -> Result<(), Errno> {
    let mut at = range.start;
    while at < range.end {
        let (mut from_at, mut to_at) = (at, at);
        let length = (range.end - at) as usize;
        match rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), length) {
            Ok(0)
            | Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => {
                let mut buffer = vec![0; length];
                let copied = from.read_exact_at(&mut buffer, at);
                let copied = copied.and_then(|()| to.write_all_at(&buffer, at));
                return copied.map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO));
            }
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

/// Returns a number that stands for what an entry contains. Were it that of another content, hashes
/// would tell.
fn content_of(entry: &Entry) -> u32 {
    let hash = match &entry.kind {
        Kind::Directory => hash(b""),
        Kind::Link { target } => hash(target),
        Kind::File { size, chunks, .. } => {
            let mut all = size.to_le_bytes().to_vec();
            all.extend(chunks.iter().flat_map(|chunk| chunk.0));
            hash(&all)
        }
    };
    let [a, b, c, d, ..] = hash.0;
    u32::from_be_bytes([a, b, c, d])
}

pub(super) fn mode_of(entry: &Entry) -> Mode {
    // Rights of users, and nothing that makes others run programs as this user.
    let bits = if entry.kind == Kind::Directory { 0o777 | SETGID } else { 0o777 };
    Mode::from_raw_mode(entry.mode & bits)
}

pub(super) fn os(path: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(path)
}
