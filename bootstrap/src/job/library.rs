//! What ranks link and import: `librlaunch.so`, and below `python/` the package `rlaunch`.
//!
//! A node keeps it beside its agent, in a directory that is named by its content. What travels, once
//! to each node, is an [`LibraryArchive`], compressed by zlib and cut into parts.

use crate::frame::FrameError;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::path::{Component, Path, PathBuf};

/// The directory for Python's search path, below the library's own.
pub const PYTHON: &str = "python";
/// The largest archive that a node takes, in bytes before compression.
pub const MAX_ARCHIVE: usize = 64 << 20;

/// Where a node's ranks find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LibrarySource {
    /// In this directory: the node is the launcher's own machine.
    Directory(#[serde(with = "crate::serde_path")] PathBuf),
    /// Beside the agent, once it has been there.
    Cached(LibraryName),
}

/// A library by its content: SHA-256, as [`LibraryDigest`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryName(pub [u8; 32]);

impl LibraryName {
    /// The directory's name: `library-` and 32 hexadecimal digits.
    pub fn directory(&self) -> String {
        let digits = self.0[..16].iter().map(|byte| format!("{byte:02x}"));
        digits.fold(LIBRARY_PREFIX.to_owned(), |name, byte| name + &byte)
    }
}

/// How the names of libraries' directories begin.
pub const LIBRARY_PREFIX: &str = "library-";

/// What a node says of its library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLibrary {
    /// The directory.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// Otherwise it has to be sent.
    pub is_present: bool,
}

/// The files of a library, in the order in which they are counted by [`LibraryDigest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryArchive(pub Vec<ArchivedFile>);

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchivedFile {
    /// Below the library's directory.
    pub path: String,
    /// All of it.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
}

impl ArchivedFile {
    /// Whether the path stays below the directory.
    pub fn is_inside(&self) -> bool {
        let mut parts = Path::new(&self.path).components();
        !self.path.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
    }
}

impl LibraryArchive {
    /// As bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        postcard::to_stdvec(self).map_err(FrameError::Encode)
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<LibraryArchive, FrameError> {
        let unreadable = |source| FrameError::Unreadable { length: bytes.len(), source };
        postcard::from_bytes(bytes).map_err(unreadable)
    }

    /// What it is called.
    pub fn name(&self) -> LibraryName {
        let mut digest = LibraryDigest::default();
        for file in &self.0 {
            digest.begin(&file.path, file.content.len() as u64);
            digest.update(&file.content);
        }
        digest.finish()
    }
}

/// Finds the name of a library, a file after the other, without having it in memory.
#[derive(Clone, Debug, Default)]
pub struct LibraryDigest(Sha256);

impl LibraryDigest {
    /// The next file, and its size in bytes.
    pub fn begin(&mut self, path: &str, size: u64) {
        self.0.update((path.len() as u64).to_le_bytes());
        self.0.update(path);
        self.0.update(size.to_le_bytes());
    }

    /// More of its content.
    pub fn update(&mut self, content: &[u8]) {
        self.0.update(content);
    }

    /// The name.
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
    fn paths_stay_below_the_directory() {
        for inside in ["librlaunch.so", "python/rlaunch/__init__.py"] {
            assert!(file(inside, b"").is_inside(), "{inside}");
        }
        for outside in ["", "/etc/passwd", "../x", "python/../../x", "./x"] {
            assert!(!file(outside, b"").is_inside(), "{outside}");
        }
    }
}
