//! What a tree of files contains.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::chunks::{CHUNK, ChunkId, Hash, hash};

/// Maximum number of entries.
pub const MAX_ENTRIES: usize = 4 << 20;
/// Maximum length of a path and of a link's target, in bytes: Linux takes no longer ones.
pub const MAX_PATH: usize = 4095;
/// Maximum length of a part of a path, in bytes.
pub const MAX_NAME: usize = 255;
/// Maximum length of an encoded manifest, in bytes. That of 10 TiB of files has 330 MiB.
pub const MAX_ENCODED: usize = 2 << 30;

/// Reason why a manifest is refused.
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
#[serde(try_from = "ByteBuf")]
pub struct RelativePath(#[serde(with = "serde_bytes")] Vec<u8>);

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

impl TryFrom<ByteBuf> for RelativePath {
    type Error = ManifestError;

    fn try_from(bytes: ByteBuf) -> Result<RelativePath, ManifestError> {
        RelativePath::new(bytes.into_vec())
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

impl Entry {
    /// Returns the length of a file in bytes, 0 of anything else.
    pub fn size(&self) -> u64 {
        if let Kind::File { size, .. } = self.kind { size } else { 0 }
    }

    /// Returns the hashes of a file's chunks; nothing else has any.
    pub fn chunks(&self) -> &[Hash] {
        if let Kind::File { chunks, .. } = &self.kind { chunks } else { &[] }
    }

    fn check(&self) -> Result<(), ManifestError> {
        let path = || self.path.clone();
        if self.mode > 0o7777 || self.mtime.nanos >= 1_000_000_000 {
            return Err(ManifestError::Metadata(path()));
        }
        match &self.kind {
            Kind::File { size, chunks, .. } if size.div_ceil(CHUNK) != chunks.len() as u64 => {
                Err(ManifestError::Chunks { path: path(), bytes: *size, chunks: chunks.len() })
            }
            Kind::Link { target }
                if target.is_empty() || target.len() > MAX_PATH || target.contains(&0) =>
            {
                Err(ManifestError::Target(path()))
            }
            Kind::Directory | Kind::File { .. } | Kind::Link { .. } => Ok(()),
        }
    }

    /// Returns the length that the encoded entry has at most, in bytes.
    fn most_encoded(&self) -> usize {
        let target = if let Kind::Link { target } = &self.kind { target.len() } else { 0 };
        // All numbers at their longest are 40 bytes, and each hash has its length before it.
        40 + self.path.as_bytes().len() + target + 33 * self.chunks().len()
    }
}

/// All entries below a destination. It has been checked, however it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        let unreadable = |_| ManifestError::Unreadable;
        // An entry takes many times the memory of its few bytes, so their number is looked at first.
        let (count, _) = postcard::take_from_bytes::<usize>(bytes).map_err(unreadable)?;
        if count > MAX_ENTRIES {
            return Err(ManifestError::TooMany(count));
        }
        let (entries, rest) = postcard::take_from_bytes(bytes).map_err(unreadable)?;
        if !rest.is_empty() {
            return Err(ManifestError::Unreadable);
        }
        Manifest { entries, starts: Vec::new() }.check()
    }

    /// Returns a hash of the manifest without the times of directories, which also change by files that are not copied.
    pub fn content(&self) -> Hash {
        let timeless = |entry: &Entry| match entry.kind {
            Kind::Directory => Entry { mtime: Time { secs: 0, nanos: 0 }, ..entry.clone() },
            Kind::File { .. } | Kind::Link { .. } => entry.clone(),
        };
        let entries = self.entries.iter().map(timeless).collect();
        hash(&Manifest { entries, starts: Vec::new() }.encode())
    }

    /// Encodes the manifest.
    pub fn encode(&self) -> Vec<u8> {
        // Nothing that a manifest consists of can be refused, and a vector is never full.
        postcard::to_stdvec(&self.entries).unwrap_or_default()
    }

    /// Checks that entries are sorted and no two have one path, that the directory of each is there
    /// before it, that numbers of chunks match sizes, and that nothing exceeds its limit.
    pub fn check(mut self) -> Result<Manifest, ManifestError> {
        if self.entries.len() > MAX_ENTRIES {
            return Err(ManifestError::TooMany(self.entries.len()));
        }
        check_tree(&self.entries)?;
        let mut encoded = 0;
        let mut chunks = 0;
        self.starts.clear();
        for entry in &self.entries {
            entry.check()?;
            self.starts.push(chunks);
            encoded += entry.most_encoded();
            // Also keeps the number of chunks far below 2^32.
            if encoded > MAX_ENCODED {
                return Err(ManifestError::TooLong);
            }
            chunks += entry.chunks().len() as u32;
        }
        self.starts.push(chunks);
        Ok(self)
    }

    /// Returns the number of chunks of all files.
    pub fn chunk_count(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the number of bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(Entry::size).sum()
    }

    /// Returns where a chunk is.
    ///
    /// # Panics
    ///
    /// Panics if the manifest has no such chunk. Of one that a neighbour names,
    /// [`crate::Hop::awaits`] tells first whether it may come.
    pub fn chunk(&self, id: ChunkId) -> ChunkPlace<'_> {
        assert!(id.0 < self.chunk_count(), "no chunk {} in {}", id.0, self.chunk_count());
        // Entries without chunks start where the next one does; the last of these has the chunk.
        let entry = self.starts.partition_point(|start| *start <= id.0) - 1;
        let file = &self.entries[entry];
        let index = id.0 - self.starts[entry];
        let offset = u64::from(index) * CHUNK;
        let length = (file.size() - offset).min(CHUNK) as u32;
        ChunkPlace { entry, offset, length, hash: &file.chunks()[index as usize] }
    }

    /// Returns the chunks of an entry; none but those of a file has any.
    pub fn chunks_of(&self, entry: usize) -> Range<u32> {
        self.starts[entry]..self.starts[entry + 1]
    }
}

/// Checks paths: what is in a directory follows it, and nothing is in what is none.
fn check_tree(entries: &[Entry]) -> Result<(), ManifestError> {
    // Directories that the entry is in, outermost first.
    let mut around: Vec<&RelativePath> = Vec::new();
    let mut last: Option<&RelativePath> = None;
    for entry in entries {
        let path = &entry.path;
        match last.map(|last| last.cmp(path)) {
            Some(Ordering::Equal) => return Err(ManifestError::Twice(path.clone())),
            Some(Ordering::Greater) => return Err(ManifestError::Order(path.clone())),
            Some(Ordering::Less) | None => {}
        }
        let parent = path.parent();
        while around.last().is_some_and(|around| Some(around.as_bytes()) != parent) {
            around.pop();
        }
        if parent.is_some() && around.is_empty() {
            return Err(ManifestError::NoParent(path.clone()));
        }
        if entry.kind == Kind::Directory {
            around.push(path);
        }
        last = Some(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelativePath {
        RelativePath::new(text).unwrap()
    }

    fn entry(text: &str, kind: Kind) -> Entry {
        Entry { path: path(text), mode: 0o644, mtime: Time { secs: 1_700_000_000, nanos: 5 }, kind }
    }

    fn file(text: &str, size: u64) -> Entry {
        let chunks = (0..size.div_ceil(CHUNK)).map(|index| hash(&index.to_le_bytes())).collect();
        entry(text, Kind::File { size, chunks, sparse: false })
    }

    fn directory(text: &str) -> Entry {
        entry(text, Kind::Directory)
    }

    fn link(text: &str, target: &str) -> Entry {
        entry(text, Kind::Link { target: target.into() })
    }

    #[test]
    fn paths_that_lead_out_are_refused() {
        let refused = ["", "/", "/etc", "..", "a/../b", "a/..", "./a", "a/.", "a//b", "a/", "a\0b"];
        for text in refused {
            let error = RelativePath::new(text).unwrap_err();
            assert_eq!(error, ManifestError::Path(text.into()));
            let encoded = postcard::to_stdvec(&ByteBuf::from(text)).unwrap();
            assert!(postcard::from_bytes::<RelativePath>(&encoded).is_err(), "{text:?}");
        }
        for text in ["a", "...", "..a", ".git/config", "a b\n"] {
            assert_eq!(path(text).as_bytes(), text.as_bytes());
        }
        assert!(RelativePath::new(vec![b'a'; MAX_NAME]).is_ok());
        assert!(RelativePath::new(vec![b'a'; MAX_NAME + 1]).is_err());
        assert!(RelativePath::new("a/".repeat(MAX_PATH / 2) + "a").is_ok());
        assert!(RelativePath::new("a/".repeat(MAX_PATH / 2 + 1) + "a").is_err());
        assert_eq!(RelativePath::new(b"\xff/b".to_vec()).unwrap().name(), b"b");
    }

    #[test]
    fn parts_of_a_path() {
        let deep = path("a/bc/d");
        assert_eq!(deep.parent(), Some(&b"a/bc"[..]));
        assert_eq!(deep.name(), b"d");
        assert_eq!(deep.parts().collect::<Vec<_>>(), [&b"a"[..], b"bc", b"d"]);
        assert_eq!((path("a").parent(), path("a").name()), (None, &b"a"[..]));
    }

    #[test]
    fn a_directory_is_followed_by_what_is_in_it() {
        let unsorted = vec![file("a-b", 1), file("a/b", 1), directory("a"), file("a.c", 1)];
        let manifest = Manifest::new(unsorted).unwrap();
        let paths: Vec<_> = manifest.entries.iter().map(|entry| entry.path.to_string()).collect();
        assert_eq!(paths, ["a", "a/b", "a-b", "a.c"]);
        let unsorted = Manifest { entries: vec![file("b", 0), file("a", 0)], starts: Vec::new() };
        assert_eq!(unsorted.check(), Err(ManifestError::Order(path("a"))));
    }

    #[test]
    fn nothing_is_below_a_file_or_a_link_or_nothing() {
        for above in
            [file("a", 0), link("a", "/etc"), directory("b"), directory("a-"), file("a.", 0)]
        {
            let refused = Manifest::new(vec![above, file("a/passwd", 1)]);
            assert_eq!(refused, Err(ManifestError::NoParent(path("a/passwd"))));
        }
        let twice = Manifest::new(vec![directory("a"), link("a", "/etc"), file("a/x", 1)]);
        assert_eq!(twice, Err(ManifestError::Twice(path("a"))));
        let grandchild = Manifest::new(vec![directory("a"), file("a/b/c", 1)]);
        assert_eq!(grandchild, Err(ManifestError::NoParent(path("a/b/c"))));
        let left =
            Manifest::new(vec![directory("a"), directory("a/b"), file("a/c", 1), file("d", 1)]);
        assert!(left.is_ok());
    }

    #[test]
    fn entries_that_cannot_be_are_refused() {
        let refused = |entry: Entry| Manifest::new(vec![entry]).unwrap_err();
        let x = || path("x");
        let wrong = |size, chunks: usize| {
            let hashes = vec![Hash([0; 32]); chunks];
            refused(entry("x", Kind::File { size, chunks: hashes, sparse: true }))
        };
        for (bytes, chunks) in [(0, 1), (1, 0), (CHUNK, 2), (CHUNK + 1, 1), (u64::MAX, 3)] {
            assert_eq!(wrong(bytes, chunks), ManifestError::Chunks { path: x(), bytes, chunks });
        }
        assert_eq!(refused(link("x", "")), ManifestError::Target(x()));
        assert_eq!(refused(link("x", "a\0")), ManifestError::Target(x()));
        assert_eq!(refused(link("x", &"a".repeat(MAX_PATH + 1))), ManifestError::Target(x()));
        assert_eq!(
            refused(Entry { mode: 0o100_644, ..file("x", 0) }),
            ManifestError::Metadata(x())
        );
        let mtime = Time { secs: 0, nanos: 1_000_000_000 };
        assert_eq!(refused(Entry { mtime, ..file("x", 0) }), ManifestError::Metadata(x()));
    }

    #[test]
    fn numbers_of_entries_are_looked_at_before_they_are_read() {
        let many = postcard::to_stdvec(&(MAX_ENTRIES + 1)).unwrap();
        assert_eq!(Manifest::decode(&many), Err(ManifestError::TooMany(MAX_ENTRIES + 1)));
        let endless = postcard::to_stdvec(&MAX_ENTRIES).unwrap();
        assert_eq!(Manifest::decode(&endless), Err(ManifestError::Unreadable));
        let mut longer = Manifest::new(vec![file("a", 1)]).unwrap().encode();
        longer.push(0);
        assert_eq!(Manifest::decode(&longer), Err(ManifestError::Unreadable));
        assert_eq!(Manifest::decode(&[]), Err(ManifestError::Unreadable));
    }

    #[test]
    fn chunks_are_counted_through_all_files() {
        let entries = vec![
            file("a", 0),
            file("b", 2 * CHUNK + 1),
            directory("c"),
            file("c/d", 0),
            file("e", 5),
            link("f", "e"),
        ];
        let manifest = Manifest::new(entries).unwrap();
        assert_eq!((manifest.chunk_count(), manifest.bytes()), (4, 2 * CHUNK + 6));
        let places: Vec<_> = (0..4).map(|id| manifest.chunk(ChunkId(id))).collect();
        let seen: Vec<_> = places.iter().map(|at| (at.entry, at.offset, at.length)).collect();
        let whole = CHUNK as u32;
        assert_eq!(seen, [(1, 0, whole), (1, CHUNK, whole), (1, 2 * CHUNK, 1), (4, 0, 5)]);
        assert_eq!(*places[1].hash, hash(&1_u64.to_le_bytes()));
        let ranges: Vec<_> = (0..6).map(|entry| manifest.chunks_of(entry)).collect();
        assert_eq!(ranges, [0..0, 0..3, 3..3, 3..3, 3..4, 4..4]);
    }

    #[test]
    #[should_panic(expected = "no chunk 0 in 0")]
    fn a_chunk_that_is_not_there_is_not_looked_for() {
        let _ = Manifest::new(vec![file("a", 0)]).unwrap().chunk(ChunkId(0));
    }

    #[test]
    fn equal_files_are_one_content() {
        let one = Manifest::new(vec![file("a", 1), directory("b")]).unwrap();
        let same = Manifest::new(vec![directory("b"), file("a", 1)]).unwrap();
        assert_eq!(one.content(), same.content());
        let other = Manifest::new(vec![Entry { mode: 0o600, ..file("a", 1) }, directory("b")]);
        assert_ne!(one.content(), other.unwrap().content());
        let empty = Manifest::new(Vec::new()).unwrap();
        assert_eq!(Manifest::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn the_content_of_a_tree_is_also_without_the_times_of_directories() {
        let later = |entry: Entry| Entry { mtime: Time { secs: 1_800_000_000, nanos: 0 }, ..entry };
        let content = |entries: [Entry; 2]| Manifest::new(entries.into()).unwrap().content();
        let one = content([directory("b"), file("b/a", 1)]);
        assert_eq!(content([later(directory("b")), file("b/a", 1)]), one);
        assert_ne!(content([directory("b"), later(file("b/a", 1))]), one);
        assert_ne!(content([directory("b"), file("b/c", 1)]), one);
    }

    /// Entries of random trees: each is in one of the directories before it.
    fn tree() -> impl Strategy<Value = Vec<Entry>> {
        let entry =
            ("[a-c.-]{1,3}", any::<prop::sample::Index>(), 0..4_u8, 0..3 * CHUNK, any::<i64>());
        prop::collection::vec(entry, 0..30).prop_map(|drawn| {
            let mut all: Vec<Entry> = Vec::new();
            for (name, parent, kind, size, secs) in drawn {
                let mut parents = vec![String::new()];
                let directories = all.iter().filter(|entry| entry.kind == Kind::Directory);
                parents.extend(directories.map(|entry| format!("{}/", entry.path)));
                let text = format!("{}{name}", parent.get(&parents));
                let is_taken = all.iter().any(|entry| entry.path.as_bytes() == text.as_bytes());
                if is_taken || RelativePath::new(text.as_str()).is_err() {
                    continue;
                }
                let mut entry = match kind {
                    0 | 1 => directory(&text),
                    2 => file(&text, size),
                    _ => link(&text, &name),
                };
                entry.mtime.secs = secs;
                all.push(entry);
            }
            all
        })
    }

    proptest! {
        #[test]
        fn a_manifest_survives_its_way(entries in tree()) {
            let manifest = Manifest::new(entries).unwrap();
            let encoded = manifest.encode();
            let most: usize = manifest.entries.iter().map(Entry::most_encoded).sum();
            prop_assert!(encoded.len() <= most + 5, "{} {most}", encoded.len());
            prop_assert_eq!(Manifest::decode(&encoded), Ok(manifest));
        }

        #[test]
        fn every_chunk_is_in_the_file_that_has_it(entries in tree()) {
            let manifest = Manifest::new(entries).unwrap();
            let mut next = 0;
            for (index, entry) in manifest.entries.iter().enumerate() {
                let mut bytes = 0;
                for id in manifest.chunks_of(index) {
                    let place = manifest.chunk(ChunkId(id));
                    prop_assert_eq!((id, place.entry, place.offset), (next, index, bytes));
                    bytes += u64::from(place.length);
                    next += 1;
                }
                prop_assert_eq!(bytes, entry.size());
            }
            prop_assert_eq!(next, manifest.chunk_count());
        }

        #[test]
        fn a_tree_without_one_of_its_directories_is_refused(
            entries in tree(), one in any::<prop::sample::Index>(),
        ) {
            let mut manifest = Manifest::new(entries).unwrap();
            prop_assume!(!manifest.entries.is_empty());
            let gone = manifest.entries.remove(one.index(manifest.entries.len()));
            let below = |entry: &Entry| entry.path.parent() == Some(gone.path.as_bytes());
            let is_parent = manifest.entries.iter().any(below);
            prop_assert_eq!(manifest.check().is_err(), is_parent);
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Ok(manifest) = Manifest::decode(&bytes) {
                prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
            }
        }
    }
}
