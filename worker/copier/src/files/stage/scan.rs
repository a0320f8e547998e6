//! What is there already.

use super::super::hashing::{Piece, hash_pieces, threads};
use super::super::meta::now;
use super::finish::is_directory;
use super::{IN_PLACE, Stage, StageError, lock};
use rlaunch_copy::{CHUNK, ChunkId, ChunkSet, Kind};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// Number of chunks that are found before they are passed on.
const BATCH: u32 = 256;

/// Rights that the owner of a directory needs in order to make files in it.
const OWNER: u32 = 0o700;

/// Which of the two files of an entry a piece is of: pieces have one number for both.
const OLD: usize = 0;
const STAGED: usize = 1;

impl Stage {
    /// Finds chunks that are in their places or in unfinished files, and passes them on while it
    /// reads. Then checks that there is room for the rest, and makes directories.
    ///
    /// A file that the index knows is not read.
    pub fn scan(&self, found: &mut dyn FnMut(ChunkSet)) -> Result<(), StageError> {
        let since = now();
        let none = ChunkSet::new(self.manifest.chunk_count());
        let mut batch = none.clone();
        let pieces = self.pieces(&mut batch)?;
        self.pass_on(&mut batch, found);
        let open = |file: usize| self.open_piece(file);
        hash_pieces(&pieces, threads(), &self.meter, &open, &mut |piece, hashes| {
            // What cannot be read is not there, and is made anew.
            for (hash, id) in hashes.unwrap_or_default().iter().zip(self.first_of(piece)..) {
                if self.manifest.chunk(ChunkId(id)).hash == hash {
                    self.mark(ChunkId(id), piece.file % 2);
                    batch.insert(ChunkId(id));
                }
            }
            if batch.count() >= BATCH {
                self.pass_on(&mut batch, found);
            }
            ControlFlow::Continue(())
        });
        self.pass_on(&mut batch, found);
        for (at, entry) in self.files() {
            let is_whole = {
                let chunks = lock(&self.chunks);
                self.manifest.chunks_of(at).all(|id| chunks.old.contains(ChunkId(id)))
            };
            if let Some(seen) = self.old_file(at)
                && is_whole
                && seen.meta.size == entry.size()
            {
                self.set_state(at, IN_PLACE);
                let stamp = seen.meta.stamp();
                let mut index = lock(&self.index);
                if index.lookup(&entry.path, &stamp).is_none() {
                    index.insert(&entry.path, stamp, entry.chunks(), since);
                }
            }
        }
        self.open_directories()?;
        self.check_room_for_rest()?;
        self.make_directories()
    }

    /// Marks the chunks that the index knows, and returns what is to be read.
    pub(super) fn pieces(&self, batch: &mut ChunkSet) -> Result<Vec<Piece>, StageError> {
        let mut pieces = Vec::new();
        for (at, entry) in self.files() {
            let range = self.manifest.chunks_of(at);
            let mut is_same = false;
            if let Some(seen) = self.old_file(at) {
                let index = lock(&self.index);
                if let Some(hashes) = index.lookup(&entry.path, &seen.meta.stamp()) {
                    let pairs = range.clone().zip(entry.chunks().iter().zip(hashes));
                    for (id, _) in pairs.filter(|(_, (wanted, hash))| wanted == hash) {
                        self.mark(ChunkId(id), OLD);
                        batch.insert(ChunkId(id));
                    }
                    is_same = hashes == entry.chunks();
                } else {
                    let bytes = seen.meta.size.min(entry.size());
                    pieces.extend(Piece::of(at * 2 + OLD, bytes, seen.meta.is_sparse()));
                }
            }
            if is_same || range.is_empty() {
                continue;
            }
            if let Some(seen) = self.leftover(at)? {
                let bytes = seen.meta.size.min(entry.size());
                pieces.extend(Piece::of(at * 2 + STAGED, bytes, seen.meta.is_sparse()));
            }
        }
        Ok(pieces)
    }

    fn open_piece(&self, file: usize) -> io::Result<File> {
        let at = file / 2;
        let path = self.manifest.entries[at].path.as_bytes();
        let staged = (file % 2 == STAGED).then(|| self.staging_path(at));
        let file = self.disk.beneath.file(staged.as_deref().unwrap_or(path), OFlags::RDONLY);
        file.map_err(io::Error::from)
    }

    /// Returns the first chunk of a piece.
    fn first_of(&self, piece: &Piece) -> u32 {
        // A file has no more chunks than the manifest, which counts them so.
        self.manifest.chunks_of(piece.file / 2).start + piece.first as u32
    }

    fn mark(&self, id: ChunkId, which: usize) {
        let mut chunks = lock(&self.chunks);
        let set = if which == OLD { &mut chunks.old } else { &mut chunks.staged };
        set.insert(id);
    }

    fn pass_on(&self, batch: &mut ChunkSet, found: &mut dyn FnMut(ChunkSet)) {
        if batch.is_empty() {
            return;
        }
        let empty = ChunkSet::new(batch.len());
        found(std::mem::replace(batch, empty));
    }

    /// Checks that there is room for what lacks. Files that share their data with old ones need it
    /// only for what is new.
    fn check_room_for_rest(&self) -> Result<(), StageError> {
        let (mut bytes, mut inodes, mut unchanged) = (0, 0, 0);
        for (at, entry) in self.files() {
            let (in_old, in_any, had) = self.count(at);
            unchanged += had;
            let Kind::File { size, sparse, .. } = entry.kind else { continue };
            if self.state(at) == IN_PLACE || sparse {
                continue;
            }
            if in_old > 0 && self.shares_data.get().is_none() && self.leftover(at)?.is_none() {
                self.try_sharing(at)?;
            }
            let leftover = self.leftover(at)?;
            inodes += u64::from(leftover.is_none());
            let chunks = self.manifest.chunks_of(at).len() as u64;
            bytes += if in_old > 0 && self.shares_data.get() == Some(&true) {
                (chunks - in_any) * CHUNK
            } else {
                size.saturating_sub(leftover.map_or(0, |seen| seen.meta.allocated))
            };
        }
        self.found.store(unchanged, Ordering::Relaxed);
        self.check_room(bytes, inodes)
    }

    /// Returns how many chunks of a file are in its place, how many are anywhere, and how many bytes
    /// the latter have.
    fn count(&self, at: usize) -> (u64, u64, u64) {
        let chunks = lock(&self.chunks);
        let (mut in_old, mut in_any, mut bytes) = (0, 0, 0);
        for id in self.manifest.chunks_of(at).map(ChunkId) {
            let is_old = chunks.old.contains(id);
            in_old += u64::from(is_old);
            if is_old || chunks.staged.contains(id) {
                in_any += 1;
                bytes += u64::from(self.manifest.chunk(id).length);
            }
        }
        (in_old, in_any, bytes)
    }

    /// Lets files be made in directories that are there, even if that was not allowed before.
    fn open_directories(&self) -> Result<(), StageError> {
        let directories = self.manifest.entries.iter().zip(&self.before);
        for (entry, before) in directories.filter(|(entry, _)| entry.kind == Kind::Directory) {
            let Some(seen) = before.filter(is_directory) else { continue };
            if seen.meta.mode & OWNER != OWNER {
                let mode = Mode::from_raw_mode(seen.meta.mode | OWNER);
                self.on_disk(self.disk.set_mode(entry.path.as_bytes(), mode))?;
            }
        }
        Ok(())
    }

    /// Makes directories, in the places of files and links too. Nobody else can look into them
    /// before they have their modes.
    fn make_directories(&self) -> Result<(), StageError> {
        for (entry, before) in self.manifest.entries.iter().zip(&self.before) {
            let is_there = before.is_some_and(|seen| is_directory(&seen));
            if entry.kind != Kind::Directory || is_there {
                continue;
            }
            let path = entry.path.as_bytes();
            if before.is_some() {
                self.remove(path)?;
                lock(&self.index).remove(path);
            }
            self.on_disk(self.disk.make_directory(path))?;
        }
        Ok(())
    }

    /// Hashes files in their places, and returns the entries that do not have their content. One
    /// may be there several times.
    pub(super) fn hash_in_place(&self, threads: usize) -> Vec<usize> {
        let mut wrong = Vec::new();
        let mut pieces = Vec::new();
        for (at, entry) in self.files() {
            match self.look(entry.path.as_bytes()) {
                Ok(Some(seen)) if seen.meta.size == entry.size() => {
                    pieces.extend(Piece::of(at * 2 + OLD, entry.size(), seen.meta.is_sparse()));
                }
                Ok(_) | Err(_) => wrong.push(at),
            }
        }
        let open = |file: usize| self.open_piece(file);
        hash_pieces(&pieces, threads, &self.meter, &open, &mut |piece, hashes| {
            let at = piece.file / 2;
            let wanted = &self.manifest.entries[at].chunks()[piece.first as usize..];
            let is_right = hashes.is_ok_and(|hashes| wanted.starts_with(&hashes));
            if !is_right {
                wrong.push(at);
            }
            ControlFlow::Continue(())
        });
        wrong
    }
}
