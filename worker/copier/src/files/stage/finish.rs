//! Giving files their names when all are whole.

use super::super::beneath::{Seen, split};
use super::super::meta::{Stamp, now};
use super::super::unfinished::{is_staging_name, lock_abandoned, stem, without_digits};
use super::super::walk::joined;
use super::staging::{mode_of, os};
use super::{Finished, IN_PLACE, STAGED, Stage, StageError, Written, lock};
use rlaunch_copy::{ChunkId, Entry, Kind, RelativePath, Time, hash};
use rustix::fs::{FileType, OFlags};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::sync::atomic::Ordering;

impl Stage {
    /// Writes everything to the disk, then gives files their names, makes links, and sets modes and
    /// times. Comes when all chunks are there.
    pub fn finish(&self) -> Result<Finished, StageError> {
        self.check_all_there()?;
        for (at, _) in self.files() {
            if self.state(at) != IN_PLACE {
                self.settle(at)?;
            }
        }
        // A name must not be on the disk before what it names.
        self.write_to_disk()?;
        let since = now();
        let mut finished = self.count_files();
        for (at, entry) in self.manifest.entries.iter().enumerate() {
            match &entry.kind {
                Kind::Directory => {}
                Kind::File { .. } if self.state(at) == STAGED => {
                    self.name(at, entry, since)?;
                    finished.made += 1;
                }
                Kind::File { .. } => self.correct(at, entry, since)?,
                Kind::Link { target } => self.link(at, entry, target, since)?,
            }
        }
        self.remove_stale()?;
        if self.prunes {
            self.prune()?;
        }
        // Before directories get modes that may forbid to open them.
        self.write_names_to_disk()?;
        // What is made in a directory sets its time, so the innermost come first.
        for entry in self.manifest.entries.iter().rev() {
            if entry.kind == Kind::Directory {
                self.finish_directory(entry)?;
            }
        }
        finished.notes.extend(self.save_index());
        Ok(finished)
    }

    /// Waits until new files are on the disk, to which much of them is on its way.
    fn write_to_disk(&self) -> Result<(), StageError> {
        let Written { files, count, file_systems } = std::mem::take(&mut *lock(&self.written));
        if files.len() == count {
            return files.into_iter().try_for_each(|(at, file)| self.sync_file(at, &file));
        }
        if !self.disk.gate.whole_sync_reports_errors() {
            let is_staged = |(at, _): &(usize, &Entry)| self.state(*at) == STAGED;
            return self.files().filter(is_staged).try_for_each(|(at, _)| {
                let path = self.staging_path(at);
                let file = self.disk.beneath.file(&path, OFlags::RDONLY);
                self.sync_file(at, &file.map_err(|cause| self.failed("open", &path, cause))?)
            });
        }
        file_systems.into_values().try_for_each(|file| {
            self.change("write to the disk", b"", || rustix::fs::syncfs(&file))
        })
    }

    fn sync_file(&self, at: usize, file: &File) -> Result<(), StageError> {
        self.on_disk(self.disk.sync_file(self.manifest.entries[at].path.as_bytes(), file))
    }

    /// Waits until the new names are on the disk, too: each directory is written once.
    fn write_names_to_disk(&self) -> Result<(), StageError> {
        let mut directories = BTreeSet::new();
        for (at, entry) in self.manifest.entries.iter().enumerate() {
            let is_new = match &entry.kind {
                Kind::File { .. } => self.state(at) == STAGED,
                Kind::Link { .. } => true,
                Kind::Directory => self.before[at].is_none_or(|seen| !is_directory(&seen)),
            };
            if is_new {
                directories.insert(split(entry.path.as_bytes()).0);
            }
        }
        self.on_disk(self.disk.sync_names(directories))
    }

    fn check_all_there(&self) -> Result<(), StageError> {
        let chunks = lock(&self.chunks);
        let is_missing =
            |id: &u32| !chunks.old.contains(ChunkId(*id)) && !chunks.staged.contains(ChunkId(*id));
        for (at, entry) in self.files() {
            let missing = self.manifest.chunks_of(at).filter(is_missing).count() as u32;
            if missing > 0 {
                return Err(StageError::Incomplete { path: self.place(&entry.path), missing });
            }
        }
        Ok(())
    }

    fn count_files(&self) -> Finished {
        Finished {
            files: self.files().count() as u64,
            bytes: self.manifest.bytes(),
            unchanged: self.found.load(Ordering::Relaxed),
            made: 0,
            notes: Vec::new(),
        }
    }

    /// Gives a whole file its name.
    fn name(&self, at: usize, entry: &Entry, since: Time) -> Result<(), StageError> {
        let path = entry.path.as_bytes();
        if self.before[at].is_some_and(|seen| is_directory(&seen)) {
            self.clear(path, true)?;
        }
        self.on_disk(self.disk.put_file(&self.staging_path(at), path, mode_of(entry)))?;
        // What a file has that somebody else wrote since is not known.
        let seen = self.look(path)?.filter(|seen| {
            seen.meta.size == entry.size() && seen.meta.mtime.secs == entry.mtime.secs
        });
        if let Some(seen) = seen {
            lock(&self.index).receive(&entry.path, seen.meta.stamp(), entry.chunks(), since);
        }
        Ok(())
    }

    /// Gives a file that has its content already the mode and the time that it is to have.
    fn correct(&self, at: usize, entry: &Entry, since: Time) -> Result<(), StageError> {
        let Some(seen) = self.before[at] else { return Ok(()) };
        let path = entry.path.as_bytes();
        let has_mode = seen.meta.mode == mode_of(entry).as_raw_mode();
        let has_time = seen.meta.mtime == entry.mtime;
        if has_mode && has_time {
            return Ok(());
        }
        // One that somebody writes to meanwhile keeps what it gets by that.
        if self.look(path)?.is_none_or(|now| now.meta.stamp() != seen.meta.stamp()) {
            return Ok(());
        }
        if !has_mode {
            self.on_disk(self.disk.set_mode(path, mode_of(entry)))?;
        }
        if !has_time {
            self.set_time(entry)?;
        }
        if let Some(seen) = self.look(path)? {
            lock(&self.index).receive(&entry.path, seen.meta.stamp(), entry.chunks(), since);
        }
        Ok(())
    }

    fn link(&self, at: usize, entry: &Entry, target: &[u8], since: Time) -> Result<(), StageError> {
        let path = entry.path.as_bytes();
        let seen = self.before[at];
        let is_link = seen.is_some_and(|seen| seen.file_type == FileType::Symlink);
        if !is_link || self.target(path).is_none_or(|there| there != target) {
            self.make_link(at, path, target)?;
        } else if seen.is_some_and(|seen| seen.meta.mtime == entry.mtime) {
            return Ok(());
        }
        self.set_time(entry)?;
        if let Some(seen) = self.look(path)? {
            // So that the directory that it is in may be replaced, as long as it is this link.
            lock(&self.index).receive(&entry.path, seen.meta.stamp(), &[hash(target)], since);
        }
        Ok(())
    }

    /// Makes a link beside its place, then moves it there.
    fn make_link(&self, at: usize, path: &[u8], target: &[u8]) -> Result<(), StageError> {
        let staging = self.staging_path(at);
        self.on_disk(self.disk.make_link(&staging, path, target))?;
        if self.before[at].is_some_and(|seen| is_directory(&seen)) {
            self.clear(path, true)?;
        }
        self.on_disk(self.disk.rename("rename a link to", &staging, path))
    }

    fn target(&self, path: &[u8]) -> Option<Vec<u8>> {
        let (parent, name) = split(path);
        let parent = self.disk.beneath.directory(parent).ok()?;
        let target = rustix::fs::readlinkat(&parent, name, Vec::new()).ok()?;
        Some(target.into_bytes())
    }

    fn finish_directory(&self, entry: &Entry) -> Result<(), StageError> {
        let path = entry.path.as_bytes();
        let is_there = self.disk.finish_directory(path, mode_of(entry), entry.mtime);
        if self.on_disk(is_there)? {
            Ok(())
        } else {
            Err(StageError::Changed { path: self.place(&entry.path) })
        }
    }

    fn set_time(&self, entry: &Entry) -> Result<(), StageError> {
        self.on_disk(self.disk.set_time(entry.path.as_bytes(), entry.mtime))
    }

    /// Saves the index. Returns what the user may want to know if that fails: nothing but time is
    /// lost then.
    fn save_index(&self) -> Option<String> {
        let mut index = lock(&self.index);
        index.retain(|path| {
            self.is_listed(path) || !matches!(self.disk.beneath.look(path), Ok(None))
        });
        let saved = index.save();
        saved.err().map(|cause| format!("all files will be read the next time: {cause}"))
    }

    /// Tells whether the manifest has an entry of this path.
    fn is_listed(&self, path: &[u8]) -> bool {
        let entries = &self.manifest.entries;
        RelativePath::new(path)
            .is_ok_and(|path| entries.binary_search_by(|entry| entry.path.cmp(&path)).is_ok())
    }

    /// Removes the files and links that earlier copies brought and this one lacks, unless somebody has
    /// written to them since, and then their directories if nothing else is in them.
    fn prune(&self) -> Result<(), StageError> {
        let gone: Vec<Vec<u8>> = {
            let index = lock(&self.index);
            index.paths().filter(|path| !self.is_listed(path)).map(<[u8]>::to_vec).collect()
        };
        let mut directories = BTreeSet::new();
        for path in gone {
            if let Some(seen) = self.look(&path)?
                && self.is_copied(&path, &seen.meta.stamp())
            {
                self.remove(&path)?;
                directories.insert(split(&path).0.to_vec());
            }
            lock(&self.index).remove(&path);
        }
        // A directory comes before what is in it, so the innermost are the last.
        while let Some(directory) = directories.pop_last() {
            if directory.is_empty() || self.is_listed(&directory) {
                continue;
            }
            let listed = self.disk.beneath.list(&directory);
            let listed = listed.map_err(|cause| self.failed("list", &directory, cause))?;
            if listed.is_empty() {
                self.remove_directory(&directory)?;
                directories.insert(split(&directory).0.to_vec());
            }
        }
        Ok(())
    }

    /// Removes an empty directory.
    fn remove_directory(&self, directory: &[u8]) -> Result<(), StageError> {
        self.on_disk(self.disk.remove_directory(directory))
    }

    /// Removes what other copies to these files have left, unless they are still running.
    fn remove_stale(&self) -> Result<(), StageError> {
        let mut made: HashMap<&[u8], HashSet<Vec<u8>>> = HashMap::new();
        for (at, entry) in self.files() {
            if self.state(at) == STAGED {
                let (parent, name) = split(entry.path.as_bytes());
                made.entry(parent).or_default().insert(stem(name));
            }
        }
        for (directory, names) in made {
            let listed = self.disk.beneath.list(directory);
            let listed = listed.map_err(|cause| self.failed("list", directory, cause))?;
            for name in listed {
                let of = without_digits(&name);
                let path = joined(directory, &name);
                if of.is_some_and(|of| names.contains(of))
                    && let Some(_lock) = lock_abandoned(&self.disk.beneath, &path)
                {
                    self.remove(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Looks whether a directory has nothing in it but what was copied there, and removes it then if
    /// `removes`.
    pub(super) fn clear(&self, directory: &[u8], removes: bool) -> Result<(), StageError> {
        self.clear_below(directory, directory, removes)
    }

    fn clear_below(&self, top: &[u8], directory: &[u8], removes: bool) -> Result<(), StageError> {
        let listed = self.disk.beneath.list(directory);
        let mut names = listed.map_err(|cause| self.failed("list", directory, cause))?;
        names.sort_unstable();
        let paths: Vec<Vec<u8>> = names.iter().map(|name| joined(directory, name)).collect();
        for path in &paths {
            let Some(seen) = self.look(path)? else { continue };
            if is_directory(&seen) {
                self.clear_below(top, path, removes)?;
                continue;
            }
            let (_, name) = split(path);
            let is_copied = self.is_copied(path, &seen.meta.stamp());
            if !is_copied && !is_staging_name(name) {
                let unknown = self.path.join(os(path));
                return Err(StageError::InTheWay { path: self.path.join(os(top)), unknown });
            }
            if removes {
                self.remove(path)?;
                lock(&self.index).remove(path);
            }
        }
        if removes { self.remove_directory(directory) } else { Ok(()) }
    }

    fn is_copied(&self, path: &[u8], stamp: &Stamp) -> bool {
        lock(&self.index).knows(path, stamp)
    }

    /// Removes a file or a link.
    pub(super) fn remove(&self, path: &[u8]) -> Result<(), StageError> {
        self.on_disk(self.disk.remove(path))
    }
}

pub(super) fn is_directory(seen: &Seen) -> bool {
    seen.file_type == FileType::Directory
}
