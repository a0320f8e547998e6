//! Files that ranks link or import: `librlaunch.so`, and the Python package `rlaunch` in the
//! subdirectory `python`.
//!
//! A node keeps the files in a directory beside the agent's executable, named after a hash of their
//! content. Each node receives them once, as a [`LibraryArchive`] that is compressed with zlib and
//! split into chunks.

use crate::frame::FrameError;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Name of the subdirectory that contains the Python package.
pub const PYTHON: &str = "python";
/// Maximum size of an archive before compression, in bytes.
pub const MAX_ARCHIVE: usize = 64 << 20;

/// Location at which a node finds the library for its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LibrarySource {
    /// Directory on this node, because the node is the launcher's own machine.
    Directory(#[serde(with = "crate::serde_path")] PathBuf),
    /// Directory of this library in the cache beside the agent. If it does not exist, the launcher
    /// sends the library.
    Cached(LibraryName),
}

/// Name of a library: the SHA-256 that [`LibraryDigest`] computes from its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryName(pub [u8; 32]);

impl LibraryName {
    /// Returns the name of the library's directory: `library-` and 32 hexadecimal digits.
    pub fn directory(&self) -> String {
        let digits = self.0[..16].iter().map(|byte| format!("{byte:02x}"));
        digits.fold(LIBRARY_PREFIX.to_owned(), |name, byte| name + &byte)
    }
}

/// Prefix of the directory names of libraries.
pub const LIBRARY_PREFIX: &str = "library-";

/// Location of the library on a node, as the agent reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLibrary {
    /// Path of the library's directory.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// Whether the directory exists already; otherwise the launcher must send the library.
    pub is_present: bool,
}

/// Files of a library, in the order in which [`LibraryDigest`] hashes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryArchive(pub Vec<ArchivedFile>);

/// File of a [`LibraryArchive`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedFile {
    /// Path of the file, relative to the library's directory.
    pub path: String,
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
}

impl ArchivedFile {
    /// Tells whether the path stays inside the library's directory. Other paths must not be written
    /// to.
    pub fn is_inside(&self) -> bool {
        let mut parts = Path::new(&self.path).components();
        !self.path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
    }
}

impl LibraryArchive {
    /// Encodes the archive with postcard.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        postcard::to_stdvec(self).map_err(FrameError::Encode)
    }

    /// Encodes an archive of `files` as [`LibraryArchive::encode`] does, but keeps only one file in memory.
    pub fn write(
        files: impl ExactSizeIterator<Item = io::Result<ArchivedFile>>,
        to: &mut impl io::Write,
    ) -> io::Result<()> {
        // A list begins with its length.
        postcard::to_io(&files.len(), &mut *to).map_err(io::Error::other)?;
        for file in files {
            postcard::to_io(&file?, &mut *to).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Decodes an archive. Fails if the bytes are not an encoded archive.
    pub fn decode(bytes: &[u8]) -> Result<LibraryArchive, FrameError> {
        let unreadable = |source| FrameError::Unreadable { length: bytes.len(), source };
        postcard::from_bytes(bytes).map_err(unreadable)
    }

    /// Computes the name of the library from its files.
    pub fn name(&self) -> LibraryName {
        let mut digest = LibraryDigest::default();
        for file in &self.0 {
            digest.begin(&file.path, file.content.len() as u64);
            digest.update(&file.content);
        }
        digest.finish()
    }
}

/// Incremental hash of a library's files, so that only one chunk needs to be in memory.
#[derive(Clone, Debug, Default)]
pub struct LibraryDigest(Sha256);

impl LibraryDigest {
    /// Starts a file of `size` bytes; its content follows through [`LibraryDigest::update`].
    pub fn begin(&mut self, path: &str, size: u64) {
        self.0.update((path.len() as u64).to_le_bytes());
        self.0.update(path);
        self.0.update(size.to_le_bytes());
    }

    /// Adds a chunk of the current file's content.
    pub fn update(&mut self, content: &[u8]) {
        self.0.update(content);
    }

    /// Returns the name of the library, after all files.
    pub fn finish(self) -> LibraryName {
        LibraryName(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &[u8]) -> ArchivedFile {
        ArchivedFile { path: path.into(), content: content.into() }
    }

    #[test]
    fn a_name_tells_contents_and_paths_apart() {
        let one = LibraryArchive(vec![file("a", b"bc"), file("d", b"")]);
        assert_eq!(LibraryArchive::decode(&one.encode().unwrap()).unwrap().name(), one.name());
        assert_eq!(one.name().directory().len(), LIBRARY_PREFIX.len() + 32);
        let others = [
            vec![file("ab", b"c"), file("d", b"")],
            vec![file("a", b"b"), file("cd", b"")],
            vec![file("d", b""), file("a", b"bc")],
            vec![file("a", b"bc")],
        ];
        for other in others {
            assert_ne!(LibraryArchive(other.clone()).name(), one.name(), "{other:?}");
        }
    }

    #[test]
    fn files_that_are_written_one_by_one_are_the_same_archive() {
        let many: Vec<ArchivedFile> = (0..200).map(|n| file(&n.to_string(), &[7; 300])).collect();
        let mut written = Vec::new();
        LibraryArchive::write(many.iter().cloned().map(Ok), &mut written).unwrap();
        assert_eq!(written, LibraryArchive(many).encode().unwrap());
    }

    #[test]
    fn paths_stay_below_the_directory() {
        for inside in ["librlaunch.so", "python/rlaunch/__init__.py"] {
            assert!(file(inside, b"").is_inside(), "{inside}");
        }
        for outside in ["", "/etc/passwd", "../x", "python/../../x", "./x"] {
            assert!(!file(outside, b"").is_inside(), "{outside}");
        }
    }
}
