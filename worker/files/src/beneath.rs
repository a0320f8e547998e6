//! Opening files below a directory without following links.
//!
//! Every part of a path is opened by itself, with `O_NOFOLLOW`: a link on the way is an error, and
//! nothing outside the directory is ever reached. Directories stay open for a while, so that one with
//! many files is opened once.

use crate::meta::Meta;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

/// Number of directories that are kept open.
const OPEN_DIRECTORIES: usize = 64;

/// Directory below which files are opened.
#[derive(Debug)]
pub struct Beneath {
    root: Arc<OwnedFd>,
    open: Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>,
}

/// What is at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub file_type: FileType,
    pub meta: Meta,
    /// Whether nobody else can have put it there: it has one name, and its owner is the user.
    pub is_own: bool,
}

impl Beneath {
    /// Opens a directory, and makes it first where it does not exist, for the user alone. Links on
    /// the way to it are followed: the user named them.
    pub fn open(root: &Path) -> io::Result<Beneath> {
        if !root.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        }
        let options = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(fs::canonicalize(root)?, options, Mode::empty())?;
        Ok(Beneath { root: Arc::new(root), open: Mutex::default() })
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a directory. The empty path is the root.
    pub fn directory(&self, path: &[u8]) -> Result<Arc<OwnedFd>> {
        // A path may have more parts than a small stack has room for calls.
        let mut left = Vec::new();
        let mut above = path;
        let mut directory = loop {
            let open = self.lock().get(above).cloned();
            match open {
                Some(directory) => break directory,
                None if above.is_empty() => break Arc::clone(&self.root),
                None => left.push(above),
            }
            above = split(above).0;
        };
        let options = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for path in left.into_iter().rev() {
            let (_, name) = split(path);
            directory = Arc::new(rustix::fs::openat(&directory, name, options, Mode::empty())?);
            let mut open = self.lock();
            if open.len() >= OPEN_DIRECTORIES {
                open.clear();
            }
            open.insert(path.to_vec(), Arc::clone(&directory));
        }
        Ok(directory)
    }

    /// Opens a file.
    pub fn file(&self, path: &[u8], options: OFlags) -> Result<File> {
        let (parent, name) = split(path);
        let parent = self.directory(parent)?;
        // A pipe with nobody at its other end must not hold the copy.
        let options = options | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::openat(&parent, name, options, mode).map(File::from)
    }

    /// Looks at what is at a path. Returns `None` if nothing is, or if something on the way is no
    /// directory.
    pub fn look(&self, path: &[u8]) -> Result<Option<Seen>> {
        let (parent, name) = split(path);
        let seen = self
            .directory(parent)
            .and_then(|parent| rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW));
        match seen {
            Ok(stat) => Ok(Some(Seen {
                file_type: FileType::from_raw_mode(stat.st_mode),
                meta: Meta::of_stat(&stat),
                is_own: stat.st_nlink == 1 && stat.st_uid == rustix::process::geteuid().as_raw(),
            })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a directory for more than what is below it.
    pub fn open_directory(&self, path: &[u8]) -> Result<OwnedFd> {
        let options = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(self.directory(path)?, ".", options, Mode::empty())
    }

    /// Lists the names in a directory.
    pub fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let directory = self.open_directory(path)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Closes directories, of which some are about to be removed or replaced.
    pub fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<OwnedFd>>> {
        // A map that a thread left in the middle of a change is still one of open directories.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits a path into the directory and the name in it.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

#[cfg(test)]
#[path = "beneath_tests.rs"]
mod tests;
