//! Hashes of files, by several threads.
//!
//! Files are read in pieces, so that one large file keeps all threads busy as well as many small
//! ones. Holes are not read.

use super::index::Index;
use super::meta::{Meta, now};
use super::walk::{FoundKind, Walk, is_gone};
use crate::meter::Meter;
use rlaunch_copy::{CHUNK, Entry, Hash, Kind, Manifest, ManifestError, RelativePath, Time, hash};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

/// Number of chunks that a thread reads before it takes another piece.
const PIECE: u64 = 16;
/// Number of results that wait for the thread that takes them.
const QUEUE: usize = 64;
/// Number of times that a file that changes is read.
const ATTEMPTS: usize = 3;
/// Content of a hole.
static ZEROS: [u8; CHUNK as usize] = [0; CHUNK as usize];

/// Error of files of which no manifest can be made.
#[derive(Debug, thiserror::Error)]
pub enum HashError {
    #[error("cannot read {}: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("{} changes while it is read", path.display())]
    Changes { path: PathBuf },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

/// Part of a file that one thread reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which file it is, for the caller.
    pub(super) file: usize,
    /// First chunk.
    pub(super) first: u64,
    /// Offset at which the piece ends, in bytes.
    pub(super) end: u64,
    /// Whether the file has holes.
    pub(super) is_sparse: bool,
}

impl Piece {
    /// Cuts the first `bytes` bytes of a file into pieces.
    pub(super) fn of(file: usize, bytes: u64, is_sparse: bool) -> impl Iterator<Item = Piece> {
        let starts = (0..bytes.div_ceil(CHUNK)).step_by(PIECE as usize);
        starts.map(move |first| {
            let end = bytes.min((first + PIECE) * CHUNK);
            Piece { file, first, end, is_sparse }
        })
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.end - self.first * CHUNK
    }

    fn hashes(&self, file: &File, buffer: &mut Vec<u8>, meter: &Meter) -> io::Result<Vec<Hash>> {
        let offsets = (self.first * CHUNK..self.end).step_by(CHUNK as usize);
        let hashes = offsets.map(|offset| {
            let length = (self.end - offset).min(CHUNK) as usize;
            if self.is_sparse && is_hole(file, offset, length as u64) {
                return Ok(hash(&ZEROS[..length]));
            }
            buffer.resize(length, 0);
            let begin = Instant::now();
            file.read_exact_at(buffer, offset)?;
            let read = Instant::now();
            meter.disk(read - begin);
            let hash = hash(buffer);
            meter.cpu(read.elapsed());
            Ok(hash)
        });
        hashes.collect()
    }
}

/// Tells whether a part of a file is nothing but a hole.
fn is_hole(file: &File, offset: u64, length: u64) -> bool {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data >= offset + length,
        // No data until the end of the file, if the part is in the file.
        Err(Errno::NXIO) => file.metadata().is_ok_and(|metadata| metadata.len() >= offset + length),
        Err(_) => false,
    }
}

/// Tells whether bytes are what a hole reads as.
pub(super) fn is_zeros(bytes: &[u8]) -> bool {
    ZEROS.get(..bytes.len()).is_some_and(|zeros| zeros == bytes)
}

/// Tells whether a chunk of this length and hash is what a hole reads as.
pub(super) fn is_zeros_hash(length: u32, of: &Hash) -> bool {
    ZEROS.get(..length as usize).is_some_and(|zeros| hash(zeros) == *of)
}

/// Returns how many threads hash at the same time.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(16)
}

/// Opens a file to read it. Fails at once if something else has taken its place since it was found, such as a named pipe
/// that nobody writes to.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is no file any more"))
    }
}

/// Receiver of the hashes of a piece's chunks.
type Each<'e> = &'e mut dyn FnMut(&Piece, io::Result<Vec<Hash>>) -> ControlFlow<()>;

/// Reads pieces of files by `threads` threads, and passes on their hashes in any order until `each`
/// breaks.
pub(super) fn hash_pieces(
    pieces: &[Piece],
    threads: usize,
    meter: &Meter,
    open: &(dyn Fn(usize) -> io::Result<File> + Sync),
    each: Each<'_>,
) {
    let (next, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, results) = sync_channel(QUEUE);
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, pieces.len().max(1)) {
            let (sender, next, is_stopped) = (sender.clone(), &next, &is_stopped);
            scope.spawn(move || {
                let mut buffer = Vec::new();
                // The next piece is often of the same file.
                let mut last: Option<(usize, File)> = None;
                while !is_stopped.load(Ordering::Relaxed) {
                    let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        break;
                    };
                    let file = match last.take().filter(|(file, _)| *file == piece.file) {
                        Some((_, file)) => Ok(file),
                        None => open(piece.file),
                    };
                    let hashes = file.and_then(|file| {
                        let hashes = piece.hashes(&file, &mut buffer, meter);
                        last = Some((piece.file, file));
                        hashes
                    });
                    if sender.send((piece, hashes)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (piece, hashes) in results {
            if each(piece, hashes).is_break() {
                is_stopped.store(true, Ordering::Relaxed);
                // The channel closes, so that no thread waits to send.
                break;
            }
        }
    });
}

/// Makes the manifest of files, of which those are read that the index does not know. Passes on how
/// many bytes more are known whenever that changes.
///
/// What has disappeared since the walk is left out. A file that changes is read again, and one that
/// only ever grows is taken as long as it was.
pub fn manifest(
    walk: &Walk,
    index: &mut Index,
    threads: usize,
    progress: &impl Fn(u64),
) -> Result<Manifest, HashError> {
    let mut files = Files::new(walk, index, progress);
    for attempt in 1..=ATTEMPTS {
        if files.left.is_empty() {
            break;
        }
        let since = now();
        files.read(threads, progress)?;
        files.settle(index, since, attempt == ATTEMPTS)?;
    }
    // Other files of the directory may be copied at other times, but those that are gone never will.
    if index.len() > walk.files() {
        index.retain(|path| {
            let Ok(path) = RelativePath::new(path) else { return false };
            let is_listed = walk.entries.binary_search_by(|found| found.path.cmp(&path)).is_ok();
            is_listed || fs::symlink_metadata(walk.place(&path)).is_ok()
        });
    }
    let entries = walk.entries.iter().zip(files.metas).zip(files.hashes);
    let entries = entries.filter_map(|((found, meta), hashes)| {
        let kind = match &found.kind {
            FoundKind::Directory => Kind::Directory,
            FoundKind::Link { target } => Kind::Link { target: target.clone() },
            FoundKind::File => {
                Kind::File { size: meta.size, chunks: hashes?, sparse: meta.is_sparse() }
            }
        };
        Some(Entry { path: found.path.clone(), mode: meta.mode, mtime: meta.mtime, kind })
    });
    Ok(Manifest::new(entries.collect())?)
}

/// Files whose hashes are looked for.
struct Files<'a> {
    walk: &'a Walk,
    /// What files were like before they were read.
    metas: Vec<Meta>,
    /// Hashes of each entry that is a file; `None` until it is known, or if it is gone.
    hashes: Vec<Option<Vec<Hash>>>,
    /// Entries that are to be read.
    left: Vec<usize>,
    /// Entries that were shorter than expected.
    is_short: Vec<bool>,
}

impl<'a> Files<'a> {
    fn new(walk: &'a Walk, index: &Index, progress: &impl Fn(u64)) -> Files<'a> {
        let metas: Vec<Meta> = walk.entries.iter().map(|found| found.meta).collect();
        let mut left = Vec::new();
        let hashes = walk.entries.iter().enumerate().map(|(at, found)| {
            if found.kind != FoundKind::File {
                return None;
            }
            let known = index.lookup(&found.path, &found.meta.stamp());
            let known = known.filter(|known| known.len() as u64 == found.meta.size.div_ceil(CHUNK));
            if known.is_some() {
                progress(found.meta.size);
            } else {
                left.push(at);
            }
            known.map(<[Hash]>::to_vec)
        });
        let hashes = hashes.collect();
        let is_short = vec![false; metas.len()];
        Files { walk, metas, hashes, left, is_short }
    }

    /// Reads what is left, each file as long as it was.
    fn read(&mut self, threads: usize, progress: &impl Fn(u64)) -> Result<(), HashError> {
        let Files { walk, metas, hashes, left, is_short } = self;
        let mut pieces = Vec::new();
        for &at in &*left {
            let meta = &metas[at];
            hashes[at] = Some(vec![Hash([0; 32]); meta.size.div_ceil(CHUNK) as usize]);
            is_short[at] = false;
            pieces.extend(Piece::of(at, meta.size, meta.is_sparse()));
        }
        let open = |at: usize| open_file(&walk.place(&walk.entries[at].path));
        let mut failed = None;
        hash_pieces(&pieces, threads, &Meter::default(), &open, &mut |piece, read| {
            match read {
                Ok(read) => {
                    progress(piece.bytes());
                    if let Some(hashes) = &mut hashes[piece.file] {
                        let first = piece.first as usize;
                        hashes[first..first + read.len()].copy_from_slice(&read);
                    }
                }
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof || is_gone(&cause) => {
                    is_short[piece.file] = true;
                }
                Err(cause) => {
                    let path = walk.place(&walk.entries[piece.file].path);
                    failed = Some(HashError::Read { path, cause });
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        failed.map_or(Ok(()), Err)
    }

    /// Takes the hashes of files that did not change while they were read, and leaves the others for
    /// another attempt, unless it was the last.
    fn settle(&mut self, index: &mut Index, since: Time, is_last: bool) -> Result<(), HashError> {
        for at in std::mem::take(&mut self.left) {
            let path = &self.walk.entries[at].path;
            let place = self.walk.place(path);
            let metadata = match fs::metadata(&place) {
                Err(cause) if is_gone(&cause) => {
                    self.hashes[at] = None;
                    continue;
                }
                metadata => {
                    metadata.map_err(|cause| HashError::Read { path: place.clone(), cause })?
                }
            };
            let meta = Meta::of(&metadata);
            if meta.stamp() == self.metas[at].stamp() && !self.is_short[at] {
                let hashes = self.hashes[at].as_deref().unwrap_or_default();
                index.insert(path, meta.stamp(), hashes, since);
            } else if !is_last {
                self.metas[at] = meta;
                self.left.push(at);
            } else if self.is_short[at] || !metadata.is_file() {
                return Err(HashError::Changes { path: place });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "hashing_tests.rs"]
mod tests;
