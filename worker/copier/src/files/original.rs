//! Chunks of the files that a manifest was made of.

use super::hashing::open_file;
use super::walk::is_gone;
use rlaunch_copy::{ChunkId, Entry, Kind, Manifest, ManifestError, RelativePath, hash};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::meta::Meta;

/// Number of files that are kept open. Streams send chunks in order, so a few files are enough.
const OPEN_FILES: usize = 8;
/// Mode of directories that are only there because something is put below them.
const MADE_MODE: u32 = 0o755;

/// Error of a chunk that cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum OriginalError {
    #[error("cannot read {}: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("{} changed after its copy had begun", path.display())]
    Changed { path: PathBuf },
}

impl OriginalError {
    /// Returns what helps.
    pub fn hint(&self) -> Option<String> {
        match self {
            OriginalError::Read { .. } => None,
            OriginalError::Changed { .. } => {
                Some("copy again when nothing writes to it; what is there stays".to_owned())
            }
        }
    }
}

/// Files of one directory, and where they go to.
pub struct Part {
    /// Directory below the destination; `None` for the destination itself.
    pub at: Option<RelativePath>,
    /// Directory that the files are in: [`super::Walk::root`].
    pub root: PathBuf,
    pub manifest: Manifest,
}

/// Files of all directories that are copied together.
pub struct Original {
    manifest: Arc<Manifest>,
    roots: Vec<Root>,
    /// Which of `roots` each entry is from.
    from: Vec<u32>,
    open: Mutex<Vec<(usize, Arc<File>)>>,
}

struct Root {
    path: PathBuf,
    /// Length of what an entry's path has before the path below `path`.
    prefix: usize,
}

impl Original {
    /// Puts files of several directories together. Fails if two files have the same place.
    pub fn new(parts: Vec<Part>) -> Result<Original, ManifestError> {
        let mut roots = Vec::new();
        let mut all: Vec<(Entry, u32)> = Vec::new();
        let mut directories = HashSet::new();
        for (part, number) in parts.into_iter().zip(0..) {
            let Part { at, root, manifest } = part;
            let prefix = at.as_ref().map_or(0, |at| at.as_bytes().len() + 1);
            let entries = manifest.entries.into_iter().map(|entry| below(at.as_ref(), entry));
            let made = at.as_ref().map_or_else(|| Ok(Vec::new()), |at| made_for(at, &root))?;
            for entry in made.into_iter().map(Ok).chain(entries) {
                let entry = entry?;
                // Two parts may share a directory, but no file.
                if entry.kind != Kind::Directory || directories.insert(entry.path.clone()) {
                    all.push((entry, number));
                }
            }
            roots.push(Root { path: root, prefix });
        }
        all.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
        let (entries, from) = all.into_iter().unzip();
        let manifest = Arc::new(Manifest::new(entries)?);
        Ok(Original { manifest, roots, from, open: Mutex::default() })
    }

    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Returns where a file is.
    pub fn place(&self, entry: usize) -> PathBuf {
        let root = &self.roots[self.from[entry] as usize];
        let path = self.manifest.entries[entry].path.as_bytes();
        root.path.join(OsStr::from_bytes(path.get(root.prefix..).unwrap_or_default()))
    }

    /// Reads a chunk into `buffer`, which then has nothing else.
    ///
    /// # Panics
    ///
    /// Panics if the manifest has no such chunk.
    pub fn read(&self, id: ChunkId, buffer: &mut Vec<u8>) -> Result<(), OriginalError> {
        let place = self.manifest.chunk(id);
        let entry = &self.manifest.entries[place.entry];
        let failed = |cause: io::Error| {
            let path = self.place(place.entry);
            if cause.kind() == io::ErrorKind::UnexpectedEof || is_gone(&cause) {
                OriginalError::Changed { path }
            } else {
                OriginalError::Read { path, cause }
            }
        };
        let file = self.file(place.entry).map_err(failed)?;
        buffer.resize(place.length as usize, 0);
        file.read_exact_at(buffer, place.offset).map_err(failed)?;
        // The receiver checks chunks as well, but does not know whose fault another hash is.
        let meta = Meta::of(&file.metadata().map_err(failed)?);
        let is_unchanged = meta.mtime == entry.mtime && meta.size == entry.size();
        if is_unchanged || hash(buffer) == *place.hash {
            Ok(())
        } else {
            Err(OriginalError::Changed { path: self.place(place.entry) })
        }
    }

    fn file(&self, entry: usize) -> io::Result<Arc<File>> {
        let find = |open: &[(usize, Arc<File>)]| {
            open.iter().find(|(of, _)| *of == entry).map(|(_, file)| Arc::clone(file))
        };
        // A list that a thread left in the middle of a change is still one of open files.
        let lock = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = find(&lock()) {
            return Ok(file);
        }
        let file = Arc::new(open_file(&self.place(entry))?);
        let mut open = lock();
        if open.len() == OPEN_FILES {
            open.remove(0);
        }
        open.push((entry, Arc::clone(&file)));
        Ok(file)
    }
}

/// Puts an entry below a directory.
fn below(at: Option<&RelativePath>, entry: Entry) -> Result<Entry, ManifestError> {
    let Some(at) = at else { return Ok(entry) };
    let path = [at.as_bytes(), entry.path.as_bytes()].join(&b'/');
    Ok(Entry { path: RelativePath::new(path)?, ..entry })
}

/// Returns the directories that a part needs: the last is the one that is copied, if it is one.
fn made_for(at: &RelativePath, root: &std::path::Path) -> Result<Vec<Entry>, ManifestError> {
    let meta = fs::metadata(root).map(|metadata| Meta::of(&metadata)).ok();
    let bytes = at.as_bytes();
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    let made = ends.chain([bytes.len()]).map(|end| {
        let is_root = end == bytes.len();
        let mode = meta.filter(|_| is_root).map_or(MADE_MODE, |meta| meta.mode);
        let mtime = meta.map_or(rlaunch_copy::Time { secs: 0, nanos: 0 }, |meta| meta.mtime);
        Ok(Entry { path: RelativePath::new(&bytes[..end])?, mode, mtime, kind: Kind::Directory })
    });
    made.collect()
}

#[cfg(test)]
#[path = "original_tests.rs"]
mod tests;
