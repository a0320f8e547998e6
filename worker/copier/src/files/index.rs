//! What files contained when they were last read, so that what is unchanged need not be read.
//!
//! There is one index per directory that was copied from or to, in the user's cache. A file whose
//! size, times and inode are those that the index has is unchanged, with git's exception: one that
//! was written to in the instant in which it was read may have been written to again without
//! another time, so it is read the next time as well.

use super::meta::{Meta, Stamp};
use super::walk::joined;
use rlaunch_bootstrap::job::seal::Seal;
use rlaunch_copy::{Hash, RelativePath, Time, hash};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{env, process};

/// First line of an index. Another version of the format has another one.
const MAGIC: &[u8] = b"rlaunch copy index 4\n";
/// Seconds for which a file is not trusted after it was written to: the times of some file systems
/// are no more accurate.
const RACY_SECS: i64 = 2;

/// What the files below one directory contained.
#[derive(Debug)]
pub struct Index {
    /// File that the index is kept in, unless the user has no directory for it.
    file: Option<PathBuf>,
    root: Vec<u8>,
    /// Where the file system of the root was mounted when it was saved; empty before.
    mount: Vec<u8>,
    known: HashMap<Vec<u8>, Known>,
    /// Whether files have come to the directory, and were not only read.
    is_received: bool,
    /// When it was saved, in seconds since 1970.
    saved_at: i64,
    is_changed: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    stamp: Stamp,
    /// Whether the content may be another without another stamp.
    is_racy: bool,
    /// Whether a copy has put it there, or has found it as it was to be. What was only read is the user's own.
    is_received: bool,
    hashes: Vec<Hash>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(with = "serde_bytes")]
    root: Vec<u8>,
    #[serde(with = "serde_bytes")]
    mount: Vec<u8>,
    is_received: bool,
    records: Vec<Record>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    #[serde(with = "serde_bytes")]
    path: Vec<u8>,
    known: Known,
}

impl Index {
    /// Loads the index of a directory. One that is missing or unreadable is empty.
    pub fn load(root: &Path) -> Index {
        Index::load_in(cache().as_deref(), root)
    }

    /// Loads the index of a directory from the directory that indexes are in.
    pub fn load_in(indexes: Option<&Path>, root: &Path) -> Index {
        let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        let root = root.into_os_string().into_vec();
        let file = indexes.map(|indexes| indexes.join(file_name(&root)));
        let stored = file.as_ref().and_then(|file| read(&fs::read(file).ok()?));
        let stored = stored.filter(|stored| stored.root == root);
        let (mount, is_received, records) = stored.map_or_else(Default::default, |stored| {
            (stored.mount, stored.is_received, stored.records)
        });
        let known = records.into_iter().map(|record| (record.path, record.known)).collect();
        let saved_at = file.as_deref().map_or(0, written_at);
        let mut index =
            Index { file, root, mount, known, is_received, saved_at, is_changed: false };
        let seal = Seal::path(&index.root());
        if let Ok(sealed) = fs::read(&seal) {
            index.saved_at = saved_at.max(written_at(&seal));
            index.adopt(&sealed);
        }
        index
    }

    /// Notes the files that an agent has put into the copy of a working tree, of which only the seal knows. What they contain
    /// is read by the next copy.
    fn adopt(&mut self, sealed: &[u8]) {
        let Some((content, seal)) = Seal::decode(sealed) else { return };
        let root = self.root();
        let received = seal.directories.iter().flat_map(|of| {
            let received = of.files.iter().filter(|file| file.is_received);
            received.map(move |file| (joined(of.path, file.name), Stamp::of_sealed(file)))
        });
        for (path, mut stamp) in received {
            if content == Seal::UNFINISHED {
                // The seal may be of a time at which the file had no name yet.
                let now = root.join(OsStr::from_bytes(&path)).symlink_metadata();
                let now = now.map(|now| Meta::of(&now).stamp());
                let Some(now) = now.ok().filter(|now| now.is_renamed(&stamp)) else { continue };
                stamp = now;
            }
            let known = self.known.get(&path);
            if known.is_none_or(|known| known.stamp.ctime() < stamp.ctime()) {
                self.is_changed = true;
                let known = Known { stamp, is_racy: true, is_received: true, hashes: Vec::new() };
                self.known.insert(path, known);
            }
        }
    }

    /// Loads the indexes of all directories of this host that files have come to.
    pub fn all() -> Vec<Index> {
        cache().map_or_else(Vec::new, |cache| Index::all_in(&cache))
    }

    /// Loads them from the directory that indexes are in.
    pub(super) fn all_in(indexes: &Path) -> Vec<Index> {
        let files = fs::read_dir(indexes).into_iter().flatten().flatten();
        let stored = files.filter_map(|file| {
            let stored = read(&fs::read(file.path()).ok()?)?;
            // Of this host, and not of one that has the same home directory.
            let is_own = file_name(&stored.root) == file.file_name() && stored.is_received;
            is_own.then_some(PathBuf::from(OsString::from_vec(stored.root)))
        });
        let roots: Vec<PathBuf> = stored.collect();
        roots.iter().map(|root| Index::load_in(Some(indexes), root)).collect()
    }

    pub(super) fn root(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.root.clone()))
    }

    /// Returns the time at which it was last saved, in seconds since 1970.
    pub(super) fn saved_at(&self) -> i64 {
        self.saved_at
    }

    /// Notes that files come to the directory.
    pub fn mark_received(&mut self) {
        self.is_changed |= !self.is_received;
        self.is_received = true;
    }

    /// Removes the file that it is kept in, if nothing is left of what came to the directory. That is not known of a disk that
    /// is absent, nor is it if a copy has saved the index meanwhile.
    pub(super) fn remove_file_if_all_is_gone(&self) {
        let Some(file) = &self.file else { return };
        let root = self.root();
        let is_there = |path: &[u8]| root.join(OsStr::from_bytes(path)).symlink_metadata().is_ok();
        let now = Index::load_in(file.parent(), &root);
        if !now.has_its_disk() || self.paths().chain(now.paths()).any(is_there) {
            return;
        }
        // One that stays is looked at again.
        let _ = fs::remove_file(file);
    }

    /// Tells whether the file system is mounted that the directory was on.
    fn has_its_disk(&self) -> bool {
        self.mount.is_empty() || mount_of(&self.root()).as_os_str().as_bytes() == self.mount
    }

    /// Pretends that the directory was on a disk that is mounted elsewhere.
    #[cfg(test)]
    pub(super) fn move_to_disk(&mut self, mount: &Path) {
        self.is_changed = true;
        self.mount = mount.as_os_str().as_bytes().to_vec();
        let Some(file) = self.file.clone() else { return };
        fs::write(file, self.encode()).unwrap();
    }

    /// Makes an index that knows nothing and is kept nowhere.
    pub fn none() -> Index {
        Index {
            file: None,
            root: Vec::new(),
            mount: Vec::new(),
            known: HashMap::new(),
            is_received: false,
            saved_at: 0,
            is_changed: false,
        }
    }

    /// Forgets everything, so that all files are read.
    pub fn clear(&mut self) {
        self.is_changed |= !self.known.is_empty();
        self.known.clear();
    }

    /// Returns the hashes of a file's chunks, if the file is unchanged.
    pub fn lookup(&self, path: &RelativePath, stamp: &Stamp) -> Option<&[Hash]> {
        let known = self.known.get(path.as_bytes());
        let known = known.filter(|known| known.stamp == *stamp && !known.is_racy);
        known.map(|known| known.hashes.as_slice())
    }

    /// Returns what a file was like that was last read or copied there.
    pub(super) fn stamp(&self, path: &RelativePath) -> Option<&Stamp> {
        self.known.get(path.as_bytes()).map(|known| &known.stamp)
    }

    /// Tells whether a file is one that was copied there, to all appearances.
    pub fn knows(&self, path: &[u8], stamp: &Stamp) -> bool {
        self.known.get(path).is_some_and(|known| known.is_received && known.stamp == *stamp)
    }

    /// Notes what a file contains that was read from `since` on.
    pub fn insert(&mut self, path: &RelativePath, stamp: Stamp, hashes: &[Hash], since: Time) {
        let before = self.known.get(path.as_bytes());
        // An agent notes no hashes of what it puts there.
        let is_received = before.is_some_and(|known| {
            let has_hashes = known.hashes == hashes || known.hashes.is_empty();
            known.is_received && known.stamp == stamp && has_hashes
        });
        self.note(path, stamp, hashes, since, is_received);
    }

    /// Notes what a file contains that was copied there: it was written, and its time set, at `since`.
    pub fn receive(&mut self, path: &RelativePath, stamp: Stamp, hashes: &[Hash], since: Time) {
        self.note(path, stamp, hashes, since, true);
    }

    fn note(
        &mut self,
        path: &RelativePath,
        stamp: Stamp,
        hashes: &[Hash],
        since: Time,
        is_received: bool,
    ) {
        let is_racy = stamp.mtime().secs.saturating_add(RACY_SECS) >= since.secs;
        let is_known = self.known.get(path.as_bytes()).is_some_and(|known| {
            known.stamp == stamp
                && (known.is_racy, known.is_received) == (is_racy, is_received)
                && known.hashes == hashes
        });
        if !is_known {
            self.is_changed = true;
            let known = Known { stamp, is_racy, is_received, hashes: hashes.to_vec() };
            self.known.insert(path.as_bytes().to_vec(), known);
        }
    }

    /// Iterates over the paths of files and links that were copied there.
    pub fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let received = self.known.iter().filter(|(_, known)| known.is_received);
        received.map(|(path, _)| path.as_slice())
    }

    /// Forgets a file.
    pub fn remove(&mut self, path: &[u8]) {
        self.is_changed |= self.known.remove(path).is_some();
    }

    /// Returns the number of files that it knows.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Forgets the files for which `is_there` is false.
    pub fn retain(&mut self, is_there: impl Fn(&[u8]) -> bool) {
        let before = self.known.len();
        self.known.retain(|path, _| is_there(path));
        self.is_changed |= self.known.len() < before;
    }

    /// Writes the index, if anything in it has changed. Nobody but the user can read it.
    pub fn save(&mut self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.is_changed) else { return Ok(()) };
        let Some(directory) = file.parent() else { return Ok(()) };
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        self.mount = mount_of(&self.root()).into_os_string().into_vec();
        let bytes = self.encode();
        // Of this process alone: two that save at the same time must not write to one file.
        let temporary = file.with_extension(format!("{}.new", process::id()));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(&temporary).and_then(|mut new| new.write_all(&bytes));
        // Without a sync: half a file is one that nobody believes.
        let saved = written.and_then(|()| fs::rename(&temporary, file));
        if saved.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        self.is_changed &= saved.is_err();
        saved
    }

    fn encode(&self) -> Vec<u8> {
        let records = self.known.iter();
        let records =
            records.map(|(path, known)| Record { path: path.clone(), known: known.clone() });
        let (root, mount, is_received) = (self.root.clone(), self.mount.clone(), self.is_received);
        let stored = Stored { root, mount, is_received, records: records.collect() };
        // Nothing in it can be refused, and a vector is never full.
        let body = postcard::to_stdvec(&stored).unwrap_or_default();
        [MAGIC, &hash(&body).0, &body].concat()
    }
}

/// Returns when a file was written, in seconds since 1970.
fn written_at(file: &Path) -> i64 {
    fs::metadata(file).map_or(0, |metadata| metadata.mtime())
}

/// Returns the directory that indexes are in.
fn cache() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("rlaunch/copy"))
}

/// Returns where the file system is mounted that a path is on, or what exists on the way to it.
fn mount_of(path: &Path) -> PathBuf {
    let device = |path: &Path| fs::metadata(path).ok().map(|metadata| metadata.dev());
    let on_the_way = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let is_on_it = |place: &&Path| device(place) == device(on_the_way);
    on_the_way.ancestors().take_while(is_on_it).last().unwrap_or(on_the_way).to_owned()
}

fn read(bytes: &[u8]) -> Option<Stored> {
    let (sum, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<32>()?;
    (hash(body).0 == *sum).then(|| postcard::from_bytes(body).ok())?
}

/// Returns the name of the index of a directory on this host: homes are often shared by hosts, each
/// of which has disks of its own.
fn file_name(root: &[u8]) -> OsString {
    let host = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = hash(&[host.as_slice(), b"\0", root].concat()).to_string();
    OsString::from(format!("{}.index", &name[..32]))
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
