//! What a tree of files contains.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::chunks::{CHUNK, ChunkId, Hash, hash};

/// Maximum number of entries.
pub const MAX_ENTRIES: usize = 4 << 20;
/// Maximum length of a path and of a link's target, in bytes: Linux takes no longer ones.
pub const MAX_PATH: usize = 4095;
/// Maximum length of a part of a path, in bytes.
pub const MAX_NAME: usize = 255;
/// Maximum length of an encoded manifest, in bytes. That of 10 TiB of files has 330 MiB.
pub const MAX_ENCODED: usize = 2 << 30;

/// Error of a manifest that nobody may act upon.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("{0:?} is no path below the destination")]
    Path(String),
    #[error("{0} is there twice")]
    Twice(RelativePath),
    #[error("{0} comes before what is to come first")]
    Order(RelativePath),
    #[error("the directory that {0} is in is missing")]
    NoParent(RelativePath),
    #[error("{0} has bits of a mode that do not exist, or a time that does not")]
    Metadata(RelativePath),
    #[error("{path} has {bytes} bytes, but {chunks} chunks")]
    Chunks { path: RelativePath, bytes: u64, chunks: usize },
    #[error("{0} is a link to nothing that can exist")]
    Target(RelativePath),
    #[error("{0} files and directories, {MAX_ENTRIES} at most")]
    TooMany(usize),
    #[error("more than {} chunks", u32::MAX)]
    TooLarge,
    #[error("list of files of more than {MAX_ENCODED} bytes")]
    TooLong,
    #[error("unreadable list of files")]
    Unreadable,
}

/// Path of an entry below the destination: parts with `/` between them, none of them empty, `.` or
/// `..`. It need not be UTF-8.
///
/// Paths are ordered part by part, so that a directory comes before what is in it, and what is in it
/// before everything else.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "serde_bytes::ByteBuf", into = "serde_bytes::ByteBuf")]
pub struct RelativePath(Vec<u8>);

impl RelativePath {
    /// Makes a path. Fails if it is absolute, leads out of the directory it is in, or cannot exist.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<RelativePath, ManifestError> {
        let bytes = bytes.into();
        let is_part = |part: &[u8]| {
            !part.is_empty() && part.len() <= MAX_NAME && part != b"." && part != b".."
        };
        let fits = bytes.len() <= MAX_PATH && !bytes.contains(&0);
        if fits && bytes.split(|byte| *byte == b'/').all(is_part) {
            Ok(RelativePath(bytes))
        } else {
            Err(ManifestError::Path(String::from_utf8_lossy(&bytes).into_owned()))
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Iterates over the parts of the path.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// Returns the bytes of the path of the directory that it is in, unless that is the destination.
    pub fn parent(&self) -> Option<&[u8]> {
        let slash = self.0.iter().rposition(|byte| *byte == b'/')?;
        Some(&self.0[..slash])
    }

    /// Returns the last part of the path.
    pub fn name(&self) -> &[u8] {
        let slash = self.0.iter().rposition(|byte| *byte == b'/');
        &self.0[slash.map_or(0, |slash| slash + 1)..]
    }
}

impl Ord for RelativePath {
    fn cmp(&self, other: &RelativePath) -> Ordering {
        // No byte of a part is 0, so a slash that counts as 0 is less than any.
        let key = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
        self.0.iter().map(key).cmp(other.0.iter().map(key))
    }
}

impl PartialOrd for RelativePath {
    fn partial_cmp(&self, other: &RelativePath) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl TryFrom<serde_bytes::ByteBuf> for RelativePath {
    type Error = ManifestError;

    fn try_from(bytes: serde_bytes::ByteBuf) -> Result<RelativePath, ManifestError> {
        RelativePath::new(bytes.into_vec())
    }
}

impl From<RelativePath> for serde_bytes::ByteBuf {
    fn from(path: RelativePath) -> serde_bytes::ByteBuf {
        serde_bytes::ByteBuf::from(path.0)
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

/// Time since 1970, negative before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    pub secs: i64,
    /// Nanoseconds, less than 10^9.
    pub nanos: u32,
}

/// Content of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Directory,
    File {
        size: u64,
        /// Hash of each chunk.
        chunks: Vec<Hash>,
        /// Whether it has holes, so that chunks of zeros are to be holes again.
        sparse: bool,
    },
    Link {
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
}

/// File, directory or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub path: RelativePath,
    /// Permissions, at most 0o7777.
    pub mode: u32,
    pub mtime: Time,
    pub kind: Kind,
}

/// All entries below a destination. It has been checked, however it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Entry>", into = "Vec<Entry>")]
pub struct Manifest {
    /// Entries in the order of their paths. Whoever changes them calls [`Manifest::check`] again.
    pub entries: Vec<Entry>,
    /// First chunk of each entry, and the number of all chunks.
    starts: Vec<u32>,
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace<'a> {
    /// Index of the file in [`Manifest::entries`].
    pub entry: usize,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    pub hash: &'a Hash,
}

impl Manifest {
    /// Sorts entries and checks them, as [`Manifest::check`] does.
    pub fn new(mut entries: Vec<Entry>) -> Result<Manifest, ManifestError> {
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Manifest { entries, starts: Vec::new() }.check()
    }

    /// Decodes what [`Manifest::encode`] has encoded, and checks it.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let entries = postcard::from_bytes(bytes).map_err(|_| ManifestError::Unreadable)?;
        Manifest { entries, starts: Vec::new() }.check()
    }

    /// Encodes the manifest.
    pub fn encode(&self) -> Vec<u8> {
        todo!()
    }

    /// Checks that entries are sorted and no two have one path, that the directory of each is there
    /// before it, that numbers of chunks match sizes, and that all that is counted can be counted.
    pub fn check(mut self) -> Result<Manifest, ManifestError> {
        todo!()
    }

    /// Returns the number of chunks of all files.
    pub fn chunk_count(&self) -> u32 {
        todo!()
    }

    /// Returns the number of bytes of all files.
    pub fn bytes(&self) -> u64 {
        todo!()
    }

    /// Returns where a chunk is.
    ///
    /// # Panics
    ///
    /// Panics if the manifest has no such chunk. [`crate::Hop::awaits`] tells of one that a neighbour
    /// sends.
    pub fn chunk(&self, id: ChunkId) -> ChunkPlace<'_> {
        todo!()
    }

    /// Returns the chunks of an entry; none but those of a file has any.
    pub fn chunks_of(&self, entry: usize) -> Range<u32> {
        self.starts[entry]..self.starts[entry + 1]
    }

    /// Returns the name of this manifest: the hash of what [`Manifest::encode`] returns.
    pub fn digest(&self) -> Hash {
        hash(&self.encode())
    }
}
