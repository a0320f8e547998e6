//! Patches: what makes a tree of one version that of another where little has changed, with the content of its files.
//!
//! A patch travels in one message to a host that has the former version. Larger changes, and those in which a directory takes
//! the place of a file or the other way round, go down the chain.

use crate::chunks::Hash;
use crate::manifest::{Entry, Kind, Manifest, ManifestError, RelativePath, Time};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Maximum number of files, links and directories that a patch changes. Each costs a host some system calls; of more, the
/// chain is no slower.
pub const MAX_CHANGED: usize = 64;
/// Maximum number of bytes of a patch's files. It is sent to each host by itself, and encrypted for each; a chain sends
/// bytes once.
pub const MAX_BYTES: u64 = 1 << 20;

/// Returns where the list of a tree's files is that takes the place of another list once hosts have what it says.
pub fn next_list(list: &Path) -> PathBuf {
    list.with_extension("new")
}

/// Differences between two versions of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Entries of the new version, by index: what is new or changed, and the directories of all that changes.
    pub put: BTreeSet<usize>,
    /// Files and links that are gone.
    pub removed: Vec<RelativePath>,
    /// Directories that are gone, the outer ones first.
    pub left: Vec<RelativePath>,
}

impl Difference {
    /// Compares two versions; `None` if what differs is no patch. Times of directories do not count: they also change by
    /// files that are not copied.
    pub fn between(before: &Manifest, now: &Manifest) -> Option<Difference> {
        let mut difference = Difference::default();
        let (mut old, mut new) = (before.entries.iter().peekable(), now.entries.iter().peekable());
        let (mut at, mut changed, mut bytes) = (0, 0, 0);
        while old.peek().is_some() || new.peek().is_some() {
            let order = match (old.peek(), new.peek()) {
                (Some(a), Some(b)) if a.path == b.path => Ordering::Equal,
                (Some(a), Some(b)) => a.path.cmp(&b.path),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            let gone = if order.is_le() { old.next() } else { None };
            let come = if order.is_ge() { new.next() } else { None };
            let index = at;
            at += usize::from(come.is_some());
            let path = match (gone, come) {
                (Some(gone), Some(come)) if is_same(gone, come) => continue,
                (Some(gone), Some(come)) if is_directory(gone) != is_directory(come) => {
                    return None;
                }
                (_, Some(come)) => {
                    bytes += come.size();
                    difference.put.insert(index);
                    &come.path
                }
                (Some(gone), None) => {
                    let list = if is_directory(gone) {
                        &mut difference.left
                    } else {
                        &mut difference.removed
                    };
                    list.push(gone.path.clone());
                    &gone.path
                }
                (None, None) => continue,
            };
            changed += 1;
            if changed > MAX_CHANGED || bytes > MAX_BYTES {
                return None;
            }
            difference.put.extend(directory_of(path, now));
        }
        Some(difference)
    }
}

/// Returns the entry of the directory that a path is in, unless that is the destination or gone.
fn directory_of(path: &RelativePath, now: &Manifest) -> Option<usize> {
    let parent = RelativePath::new(path.parent()?).ok()?;
    now.entries.binary_search_by(|entry| entry.path.cmp(&parent)).ok()
}

fn is_directory(entry: &Entry) -> bool {
    entry.kind == Kind::Directory
}

fn is_same(a: &Entry, b: &Entry) -> bool {
    let same_time = is_directory(b) || a.mtime == b.mtime;
    same_time && a.mode == b.mode && a.kind == b.kind
}

/// Changes that turn a copy of one version of a tree into one of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// Hash of what the tree contains afterwards ([`Manifest::content`]).
    pub content: Hash,
    /// In the order of their paths.
    pub entries: Vec<PatchEntry>,
    /// Files and links to be removed.
    pub removed: Vec<RelativePath>,
    /// Directories that are no part of the tree any more, the outer ones first. One in which something else is stays.
    pub left: Vec<RelativePath>,
}

/// File, directory or link of a patch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchEntry {
    pub path: RelativePath,
    /// Permissions, at most 0o7777.
    pub mode: u32,
    pub mtime: Time,
    pub put: Put,
}

/// New content of the place of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Put {
    Directory,
    File {
        /// Path in the same directory under which the file is made before it gets its name.
        beside: RelativePath,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    Link {
        beside: RelativePath,
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
}

impl Put {
    /// Returns under which path something is made first.
    pub fn beside(&self) -> Option<&RelativePath> {
        match self {
            Put::Directory => None,
            Put::File { beside, .. } | Put::Link { beside, .. } => Some(beside),
        }
    }
}

impl Patch {
    /// Encodes the patch.
    pub fn encode(&self) -> Vec<u8> {
        // Nothing that a patch consists of can be refused, and a vector is never full.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Decodes what [`Patch::encode`] has encoded. No path leads out of the destination, and what is made beside a place is
    /// in the same directory.
    pub fn decode(bytes: &[u8]) -> Result<Patch, ManifestError> {
        let (patch, rest) =
            postcard::take_from_bytes::<Patch>(bytes).map_err(|_| ManifestError::Unreadable)?;
        if !rest.is_empty() {
            return Err(ManifestError::Unreadable);
        }
        for entry in &patch.entries {
            let path = || entry.path.clone();
            let is_elsewhere = |beside: &RelativePath| {
                beside.parent() != entry.path.parent() || beside.name() == entry.path.name()
            };
            if entry.mode > 0o7777 || entry.mtime.nanos >= 1_000_000_000 {
                return Err(ManifestError::Metadata(path()));
            }
            if entry.put.beside().is_some_and(is_elsewhere) {
                return Err(ManifestError::Path(path().to_string()));
            }
        }
        Ok(patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::hash;

    fn path(text: &str) -> RelativePath {
        RelativePath::new(text).unwrap()
    }

    fn entry(text: &str, kind: Kind) -> Entry {
        Entry { path: path(text), mode: 0o644, mtime: Time { secs: 7, nanos: 5 }, kind }
    }

    fn file(text: &str, content: &str) -> Entry {
        // An empty file has none.
        let chunks = content.as_bytes().chunks(1 << 20).map(hash).collect();
        entry(text, Kind::File { size: content.len() as u64, chunks, sparse: false })
    }

    fn directory(text: &str) -> Entry {
        entry(text, Kind::Directory)
    }

    fn link(text: &str, target: &str) -> Entry {
        entry(text, Kind::Link { target: target.into() })
    }

    fn manifest(entries: Vec<Entry>) -> Manifest {
        Manifest::new(entries).unwrap()
    }

    fn tree() -> Vec<Entry> {
        vec![directory("a"), file("a/x", "1"), file("a/y", "2"), directory("b"), link("b/l", "x")]
    }

    /// Returns the names of what is put, removed and left.
    fn between(before: Vec<Entry>, now: Vec<Entry>) -> Option<[String; 3]> {
        let (before, now) = (manifest(before), manifest(now));
        let found = Difference::between(&before, &now)?;
        let names = |paths: Vec<RelativePath>| {
            paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let put = found.put.into_iter().map(|at| now.entries[at].path.clone()).collect();
        Some([names(put), names(found.removed), names(found.left)])
    }

    #[test]
    fn what_differs_comes_with_its_directories() {
        let same = |now: Vec<Entry>| between(tree(), now).unwrap();
        assert_eq!(same(tree()), ["", "", ""]);
        let mut other = tree();
        other[0].mtime.secs = 9;
        assert_eq!(same(other.clone()), ["", "", ""], "of a directory the time does not count");
        other[1].mtime.secs = 9;
        assert_eq!(same(other.clone()), ["a a/x", "", ""]);
        other[1] = file("a/x", "3");
        other[3].mode = 0o700;
        other[4] = link("b/l", "y");
        assert_eq!(same(other.clone()), ["a a/x b b/l", "", ""]);
        other.remove(2);
        other.extend([directory("c"), directory("c/d"), file("c/d/z", ""), file("top", "")]);
        assert_eq!(same(other), ["a a/x b b/l c c/d c/d/z top", "a/y", ""]);
        let left = vec![directory("a"), file("a/y", "2")];
        assert_eq!(same(left), ["a", "a/x b/l", "b"]);
        let mut nested = tree();
        nested.extend([directory("b/c"), file("b/c/z", "")]);
        assert_eq!(between(nested, Vec::new()).unwrap(), ["", "a/x a/y b/c/z b/l", "a b b/c"]);
        // A link may become a file.
        let mut other = tree();
        other[4] = file("b/l", "");
        assert_eq!(same(other), ["b b/l", "", ""]);
    }

    #[test]
    fn what_changes_between_directory_and_file_is_no_patch() {
        let before = vec![directory("a"), file("b", "")];
        assert_eq!(between(before.clone(), vec![file("a", ""), file("b", "")]), None);
        assert_eq!(between(before, vec![directory("a"), directory("b")]), None);
    }

    #[test]
    fn much_is_no_patch() {
        let many = |count: usize| -> Vec<Entry> {
            (0..count).map(|number| file(&format!("{number:03}"), "")).collect()
        };
        assert!(between(Vec::new(), many(MAX_CHANGED)).is_some());
        assert!(between(many(MAX_CHANGED), Vec::new()).is_some());
        assert_eq!(between(Vec::new(), many(MAX_CHANGED + 1)), None);
        assert_eq!(between(many(MAX_CHANGED + 1), Vec::new()), None);
        let half = "x".repeat(MAX_BYTES as usize / 2);
        let two = vec![file("a", &half), file("b", &half)];
        assert!(between(Vec::new(), two.clone()).is_some());
        let three = [two, vec![file("c", "x")]].concat();
        assert_eq!(between(Vec::new(), three.clone()), None);
        // Removed files do not travel.
        assert!(between(three, Vec::new()).is_some());
    }

    #[test]
    fn patches_survive_their_way_and_lead_nowhere_else() {
        let mtime = Time { secs: -1, nanos: 999_999_999 };
        let put = |beside: &str| Put::File { beside: path(beside), data: b"\0\xff".to_vec() };
        let entry = |put| PatchEntry { path: path("a/x"), mode: 0o2777, mtime, put };
        let patch = |entry: PatchEntry| Patch {
            content: hash(b"x"),
            entries: vec![entry],
            removed: vec![path("b")],
            left: vec![path("c")],
        };
        let link = Put::Link { beside: path("a/.x"), target: b"/etc".to_vec() };
        for good in [put("a/.x"), link, Put::Directory] {
            let patch = patch(entry(good));
            let bytes = patch.encode();
            assert_eq!(Patch::decode(&bytes), Ok(patch));
            for length in 0..bytes.len() {
                assert_eq!(Patch::decode(&bytes[..length]), Err(ManifestError::Unreadable));
            }
            assert!(Patch::decode(&[bytes, vec![0]].concat()).is_err());
        }
        for beside in ["b/.x", ".x", "a/x", "a/x/y"] {
            let refused = Patch::decode(&patch(entry(put(beside))).encode());
            assert_eq!(refused, Err(ManifestError::Path("a/x".into())), "{beside}");
        }
        for wrong in [
            PatchEntry { mode: 0o10_000, ..entry(Put::Directory) },
            PatchEntry { mtime: Time { nanos: 1_000_000_000, ..mtime }, ..entry(Put::Directory) },
        ] {
            let refused = Patch::decode(&patch(wrong).encode());
            assert_eq!(refused, Err(ManifestError::Metadata(path("a/x"))));
        }
    }
}
