//! Seal of the copy of a working tree: what its files were like when the copy was whole. By it a host tells whether the copy
//! is still that, without the program that copies and without reading a file.

use crate::id::JobId;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// First bytes of a seal. Another version of the format has another number.
const MAGIC: &[u8] = b"rlaunch seal 3\n";

/// Seal, which is a file beside the directory of the copy. Names are those of the bytes that it was decoded from: a tree has
/// thousands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal<'a> {
    /// In the order of their paths.
    #[serde(borrow)]
    pub directories: Vec<SealedDirectory<'a>>,
}

/// Directory of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedDirectory<'a> {
    /// Path below the directory of the copy, which itself is empty.
    #[serde(borrow, with = "serde_bytes")]
    pub path: &'a [u8],
    /// Its mode, of which [`SealedDirectory::MODE`] counts.
    pub mode: u32,
    /// Files and links in it that were copied, in the order of their names. While a copy is being changed, a name may be there
    /// twice: as it was, and as it is to be.
    #[serde(borrow)]
    pub files: Vec<SealedFile<'a>>,
}

/// File or link of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedFile<'a> {
    #[serde(borrow, with = "serde_bytes")]
    pub name: &'a [u8],
    pub size: u64,
    pub inode: u64,
    /// Time of the last write, in seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// Time of the last change, which cannot be set to another one.
    pub ctime: (i64, i64),
    /// Whether a copy has put it there. What ranks have written, and is what was to be copied, is theirs.
    pub is_received: bool,
}

impl SealedDirectory<'_> {
    /// Bits of a mode that give rights, and the one that gives files the group of the directory.
    pub const MODE: u32 = 0o2777;
}

impl<'a> Seal<'a> {
    /// Place of the hash of the content among the bytes of a seal.
    pub const CONTENT: Range<usize> = MAGIC.len()..MAGIC.len() + 32;
    /// Content of a copy that is being changed: no tree has that hash. The rest of the seal still says what was copied.
    pub const UNFINISHED: [u8; 32] = [0; 32];

    /// Returns where the seal of a copy is.
    pub fn path(copy: &Path) -> PathBuf {
        beside(copy, ".seal")
    }

    /// Returns where the nodes of a job that have the same copy find that out.
    pub fn holder(copy: &Path, job: JobId) -> PathBuf {
        beside(copy, &format!(".holder.{job}"))
    }

    /// Tells whether a path is that of a copy for any job.
    pub fn is_holder(path: &Path, copy: &Path) -> bool {
        let beginning = beside(copy, ".holder.");
        path.as_os_str().as_bytes().starts_with(beginning.as_os_str().as_bytes())
    }

    /// Encodes the seal of a copy with this content, which is a hash.
    pub fn encode(&self, content: &[u8; 32]) -> Vec<u8> {
        // Nothing in it can be refused, and a vector is never full.
        let body = postcard::to_stdvec(self).unwrap_or_default();
        [MAGIC, content, &body].concat()
    }

    /// Decodes a seal, with the hash of what the copy contains.
    pub fn decode(bytes: &'a [u8]) -> Option<([u8; 32], Seal<'a>)> {
        let (content, body) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<32>()?;
        match postcard::take_from_bytes(body) {
            Ok((seal, [])) => Some((*content, seal)),
            // Half a file is none.
            Ok(_) | Err(_) => None,
        }
    }
}

fn beside(copy: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(copy);
    path.push(suffix);
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_of_one_content_and_whole() {
        let file = SealedFile {
            name: b"x\xff",
            size: 7,
            inode: 8,
            mtime: (-1, 2),
            ctime: (1 << 40, 999_999_999),
            is_received: true,
        };
        let directories = vec![
            SealedDirectory { path: b"tree", mode: 0o755, files: vec![file] },
            SealedDirectory { path: b"tree/empty", mode: 0o2775, files: Vec::new() },
        ];
        let seal = Seal { directories };
        let mut bytes = seal.encode(&[7; 32]);
        assert_eq!(Seal::decode(&bytes), Some(([7; 32], seal.clone())));
        for length in 0..bytes.len() {
            assert_eq!(Seal::decode(&bytes[..length]), None, "{length}");
        }
        assert_eq!(Seal::decode(&[bytes.clone(), vec![0]].concat()), None);
        bytes[Seal::CONTENT].copy_from_slice(&Seal::UNFINISHED);
        assert_eq!(Seal::decode(&bytes), Some((Seal::UNFINISHED, seal)));
        assert_eq!(Seal::path(Path::new("/c/ab.2")), Path::new("/c/ab.2.seal"));
        let holder = Seal::holder(Path::new("/c/ab.2"), JobId(7));
        assert!(Seal::is_holder(&holder, Path::new("/c/ab.2")), "{}", holder.display());
        assert!(!Seal::is_holder(&holder, Path::new("/c/ab")), "{}", holder.display());
    }
}
