mod disk;
mod resume;

use super::*;
use crate::files::{How, Original, Part, manifest, walk};
use rlaunch_bootstrap::job::seal::{Seal, SealedDirectory};
use rlaunch_copy::{CHUNK, Hash, Time};
use rlaunch_files::disk::{Free, Gate};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const MEGA: usize = CHUNK as usize;
const MINUTE: Duration = Duration::from_secs(60);

/// Disk of a host that dies before a change, or that has little room.
struct Fate {
    /// Changes until the host dies.
    changes: Arc<AtomicUsize>,
    free: Free,
}

impl Gate for Fate {
    fn before_change(&self) -> io::Result<()> {
        let next = |left: usize| left.checked_sub(1);
        let passed = self.changes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        passed.map(drop).map_err(|_| io::Error::other("the host died"))
    }

    fn free(&self, _: BorrowedFd<'_>) -> io::Result<Free> {
        Ok(self.free)
    }
}

const ROOMY: Free = Free { bytes: u64::MAX, inodes: None };

/// A source, a destination, and the indexes of the latter.
struct Two {
    from: TempDir,
    to: TempDir,
    indexes: TempDir,
}

/// What a copy did.
#[derive(Debug)]
struct Copied {
    finished: Finished,
    /// Chunks that came.
    received: u32,
}

impl Two {
    fn new() -> Two {
        let directory = || tempfile::tempdir().unwrap();
        Two { from: directory(), to: directory(), indexes: directory() }
    }

    fn source(&self, name: &str) -> PathBuf {
        self.from.path().join(name)
    }

    fn target(&self, name: &str) -> PathBuf {
        self.to.path().join(name)
    }

    fn original(&self) -> Original {
        let walk = walk(self.from.path(), &How::All).unwrap();
        let manifest = manifest(&walk, &mut Index::none(), 2, &|_| ()).unwrap();
        Original::new(vec![Part { at: None, root: walk.root, manifest }]).unwrap()
    }

    fn open(&self, original: &Original, gate: impl Gate + 'static) -> Result<Stage, StageError> {
        let disk = Disk::new(Beneath::open(self.to.path()).unwrap(), Box::new(gate));
        let index = Index::load_in(Some(self.indexes.path()), self.to.path());
        Stage::open_with(self.to.path(), Arc::clone(original.manifest()), index, disk)
    }

    fn copy(&self) -> Copied {
        self.copy_by(Real).unwrap()
    }

    fn copy_by(&self, gate: impl Gate + 'static) -> Result<Copied, StageError> {
        let original = self.original();
        let stage = self.open(&original, gate)?;
        let received = receive(&stage, &original)?;
        Ok(Copied { finished: stage.finish()?, received })
    }

    /// Copies until the host dies before the change of this number.
    fn copy_until(&self, change: usize) -> Result<Copied, StageError> {
        self.copy_by(Fate { changes: Arc::new(AtomicUsize::new(change)), free: ROOMY })
    }

    /// Asserts that the destination has what the source has, and nothing else.
    fn assert_same(&self) {
        assert_eq!(snapshot(self.to.path()), snapshot(self.from.path()));
    }
}

#[test]
fn a_seal_has_what_is_there() {
    let two = Two::new();
    fs::create_dir_all(two.source("sub/empty")).unwrap();
    put(&two.source("sub/x"), b"four");
    put(&two.source("y"), b"");
    symlink("x", two.source("sub/link")).unwrap();
    for (name, mode) in [("sub", 0o755), ("sub/empty", 0o2750)] {
        fs::set_permissions(two.source(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    two.copy();
    // A second copy changes nothing, and knows the same.
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    receive(&stage, &original).unwrap();
    stage.finish().unwrap();
    stage.seal().unwrap();
    let path = Seal::path(two.to.path());
    let content = original.manifest().content().0;
    let bytes = fs::read(&path).unwrap();
    let (of, seal) = Seal::decode(&bytes).unwrap();
    assert_eq!(of, content);
    let found = seal.directories.iter().flat_map(|directory| {
        let path = |name: &[u8]| {
            two.to.path().join(OsStr::from_bytes(directory.path)).join(OsStr::from_bytes(name))
        };
        directory.files.iter().map(move |file| (path(file.name), file))
    });
    let mut names = Vec::new();
    for (path, file) in found {
        let there = fs::symlink_metadata(&path).unwrap();
        assert_eq!((there.len(), there.ino()), (file.size, file.inode), "{}", path.display());
        assert_eq!((there.mtime(), there.mtime_nsec()), file.mtime, "{}", path.display());
        assert_eq!((there.ctime(), there.ctime_nsec()), file.ctime, "{}", path.display());
        names.push(path.strip_prefix(two.to.path()).unwrap().display().to_string());
    }
    assert_eq!(names, ["y", "sub/link", "sub/x"]);
    let directories = seal.directories.iter().map(|of| (of.path, of.mode));
    let top = fs::metadata(two.to.path()).unwrap().mode() & SealedDirectory::MODE;
    let expected = [(&b""[..], top), (&b"sub"[..], 0o755), (&b"sub/empty"[..], 0o2750)];
    assert_eq!(directories.collect::<Vec<_>>(), expected);
    stage.unseal().unwrap();
    let unsealed = fs::read(&path).unwrap();
    assert_eq!(Seal::decode(&unsealed), Some((Seal::UNFINISHED, seal)));
    fs::remove_file(path).unwrap();
}

/// Writes all chunks that a scan does not find. Returns their number.
fn receive(stage: &Stage, original: &Original) -> Result<u32, StageError> {
    let mut wanted = ChunkSet::full(original.manifest().chunk_count());
    stage.scan(&mut |found| wanted.subtract(&found))?;
    let mut buffer = Vec::new();
    for id in wanted.iter() {
        original.read(id, &mut buffer).unwrap();
        stage.write(id, &buffer)?;
    }
    Ok(wanted.count())
}

/// What is at a place: mode and time, content or target.
#[derive(Clone, PartialEq, Eq)]
struct Node {
    mode: u32,
    mtime: (i64, i64),
    what: What,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum What {
    Directory,
    File(Hash),
    Link(PathBuf),
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:o} {:?} {:?}", self.mode, self.mtime, self.what)
    }
}

fn node(path: &Path) -> Node {
    let metadata = fs::symlink_metadata(path).unwrap();
    let what = if metadata.is_dir() {
        What::Directory
    } else if metadata.is_symlink() {
        What::Link(fs::read_link(path).unwrap())
    } else {
        What::File(hash(&fs::read(path).unwrap()))
    };
    Node { mode: metadata.mode() & 0o777, mtime: (metadata.mtime(), metadata.mtime_nsec()), what }
}

fn snapshot(root: &Path) -> BTreeMap<PathBuf, Node> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let node = node(&path);
            if node.what == What::Directory {
                left.push(path.clone());
            }
            all.insert(path.strip_prefix(root).unwrap().to_owned(), node);
        }
    }
    all
}

/// Content that differs in every chunk and for every seed.
fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at % 253) as u8 ^ (at / MEGA) as u8 ^ seed).collect()
}

/// Writes a file as if that had been a minute ago, so that indexes believe its time.
fn put(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    age(path);
}

fn age(path: &Path) {
    set_time(path, SystemTime::now() - MINUTE);
}

fn set_time(path: &Path, time: SystemTime) {
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

/// A tree with one of everything.
fn varied(two: &Two) {
    put(&two.source("empty"), b"");
    put(&two.source("small"), b"small");
    put(&two.source("large"), &content(3 * MEGA + 17, 1));
    put(&two.source("deep/er/exact"), &content(2 * MEGA, 2));
    put(&two.source("run.sh"), b"#!/bin/sh\n");
    set_mode(&two.source("run.sh"), 0o750);
    put(&two.from.path().join(OsStr::from_bytes(b"\xff\xfe name\n")), b"odd");
    fs::create_dir(two.source("bare")).unwrap();
    symlink("small", two.source("link")).unwrap();
    symlink("/nowhere/at/all", two.source("dangling")).unwrap();
    let long = "n".repeat(255);
    put(&two.source(&long), b"long name");
    put(&two.source("deep/read-only/x"), b"x");
    set_mode(&two.source("deep/read-only"), 0o555);
}

#[test]
fn a_tree_arrives_whole_with_modes_and_times() {
    let two = Two::new();
    varied(&two);
    let copied = two.copy();
    two.assert_same();
    assert_eq!((copied.finished.files, copied.finished.made), (8, 8));
    assert_eq!((copied.received, copied.finished.unchanged), (4 + 2 + 5, 0));
    assert_eq!(copied.finished.bytes, (5 * MEGA + 17 + 5 + 10 + 3 + 9 + 1) as u64);
}

#[test]
fn what_is_unchanged_is_neither_received_nor_touched() {
    let two = Two::new();
    varied(&two);
    two.copy();
    let inodes = |two: &Two| {
        let paths: Vec<_> = snapshot(two.to.path()).into_keys().collect();
        let with_ctime = |path: &PathBuf| {
            let metadata = fs::symlink_metadata(two.to.path().join(path)).unwrap();
            (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
        };
        paths.iter().map(with_ctime).collect::<Vec<_>>()
    };
    let before = inodes(&two);
    let again = two.copy();
    two.assert_same();
    // A directory that files may not be made in is one in which they may for a while.
    assert_eq!((again.received, again.finished.made), (0, 0));
    assert_eq!(again.finished.unchanged, again.finished.bytes);
    let closed = inode(&two.target("deep/read-only"));
    for (before, after) in before.iter().zip(inodes(&two)) {
        assert!(*before == after || after.0 == closed, "{before:?} {after:?}");
    }
}

#[test]
fn the_index_saves_reading() {
    let two = Two::new();
    put(&two.source("a"), b"abc");
    two.copy();
    let stage = two.open(&two.original(), Real).unwrap();
    let seen = stage.old_file(0).unwrap();
    let path = &stage.manifest.entries[0].path;
    assert_eq!(lock(&stage.index).lookup(path, &seen.meta.stamp()), Some(&[hash(b"abc")][..]));
    let mut batch = ChunkSet::new(1);
    assert_eq!(stage.pieces(&mut batch).unwrap().len(), 0);
    assert!(batch.is_full());
    stage.distrust();
    assert_eq!(stage.pieces(&mut batch).unwrap().len(), 1);
}

#[test]
fn only_changed_chunks_are_received() {
    let two = Two::new();
    let mut bytes = content(10 * MEGA + 5, 3);
    put(&two.source("a"), &bytes);
    two.copy();
    bytes[4 * MEGA + 99] ^= 1;
    put(&two.source("a"), &bytes);
    // Both by the index and by reading.
    assert_eq!(two.copy().received, 1);
    two.assert_same();
    bytes[0] ^= 1;
    bytes[10 * MEGA + 4] ^= 1;
    put(&two.source("a"), &bytes);
    fs::remove_dir_all(two.indexes.path()).unwrap();
    let copied = two.copy();
    assert_eq!((copied.received, copied.finished.made), (2, 1));
    assert_eq!(copied.finished.unchanged, 9 * CHUNK);
    two.assert_same();
}

#[test]
fn files_become_longer_and_shorter() {
    let two = Two::new();
    let bytes = content(4 * MEGA, 4);
    for (length, received) in [
        (2 * MEGA, 2),
        (4 * MEGA, 2),
        (3 * MEGA, 0),
        (3 * MEGA - 1, 1),
        (0, 0),
        (1, 1),
        (3 * MEGA + 1, 4),
    ] {
        put(&two.source("a"), &bytes[..length]);
        let copied = two.copy();
        two.assert_same();
        // What an index knows of a longer file does not say what its beginning is.
        assert_eq!(copied.received, received, "{length}");
    }
}

#[test]
fn a_file_of_another_mode_or_time_is_not_made_anew() {
    let two = Two::new();
    put(&two.source("a"), b"abc");
    two.copy();
    let before = inode(&two.target("a"));
    set_mode(&two.source("a"), 0o640);
    set_time(&two.source("a"), SystemTime::now() - 2 * MINUTE);
    assert_eq!(two.copy().finished.made, 0);
    two.assert_same();
    assert_eq!(inode(&two.target("a")), before);
}

#[test]
fn kinds_change_into_each_other() {
    let makers: [fn(&Path); 4] = [
        |path| put(path, b"file"),
        |path| {
            put(&path.join("sub/x"), b"x");
            put(&path.join("y"), &content(MEGA + 1, 5));
            symlink("y", path.join("l")).unwrap();
        },
        |path| symlink("elsewhere", path).unwrap(),
        |path| fs::create_dir(path).unwrap(),
    ];
    for (first, from) in makers.iter().enumerate() {
        for (second, to) in makers.iter().enumerate() {
            let two = Two::new();
            from(&two.source("a"));
            two.copy();
            two.assert_same();
            let removed = fs::remove_dir_all(two.source("a"));
            removed.or_else(|_| fs::remove_file(two.source("a"))).unwrap();
            to(&two.source("a"));
            two.copy();
            let expected = snapshot(two.from.path());
            let mut there = snapshot(two.to.path());
            if (first, second) == (1, 3) {
                // What is in a directory that stays is not removed: somebody may need it.
                there.retain(|path, _| expected.contains_key(path));
            }
            assert_eq!(there, expected, "{first} {second}");
        }
    }
}

#[test]
fn a_directory_with_files_that_nobody_copied_is_not_removed() {
    let two = Two::new();
    put(&two.source("a/x"), b"x");
    two.copy();
    put(&two.target("a/sub/result"), b"precious");
    fs::remove_dir_all(two.source("a")).unwrap();
    put(&two.source("a"), b"file");
    let error = two.copy_by(Real).unwrap_err();
    let StageError::InTheWay { unknown, .. } = &error else { panic!("{error}") };
    assert_eq!(*unknown, two.target("a/sub/result"));
    assert_eq!(fs::read(two.target("a/x")).unwrap(), b"x");
    // Nor is one that somebody wrote to after it was copied.
    fs::remove_dir_all(two.target("a/sub")).unwrap();
    fs::write(two.target("a/x"), "mine").unwrap();
    assert!(matches!(two.copy_by(Real), Err(StageError::InTheWay { .. })));
    assert_eq!(fs::read(two.target("a/x")).unwrap(), b"mine");
}

#[test]
fn files_that_only_the_destination_has_stay() {
    let two = Two::new();
    put(&two.source("a"), b"a");
    put(&two.target("out/result"), b"mine");
    put(&two.target("log"), b"mine");
    two.copy();
    assert_eq!(fs::read(two.target("out/result")).unwrap(), b"mine");
    assert_eq!(fs::read(two.target("log")).unwrap(), b"mine");
}

#[test]
fn nothing_is_written_through_links_of_the_destination() {
    let (two, outside) = (Two::new(), tempfile::tempdir().unwrap());
    put(&outside.path().join("x"), b"old");
    put(&outside.path().join("y"), b"old");
    put(&two.source("dir/x"), b"new");
    put(&two.source("y"), b"new");
    symlink(outside.path(), two.target("dir")).unwrap();
    symlink(outside.path().join("y"), two.target("y")).unwrap();
    two.copy();
    two.assert_same();
    for name in ["x", "y"] {
        assert_eq!(fs::read(outside.path().join(name)).unwrap(), b"old");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 2);
}

#[test]
fn nothing_is_written_through_a_link_that_appears_meanwhile() {
    let (two, outside) = (Two::new(), tempfile::tempdir().unwrap());
    put(&two.source("dir/x"), b"new");
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    stage.scan(&mut |_| ()).unwrap();
    fs::remove_dir(two.target("dir")).unwrap();
    symlink(outside.path(), two.target("dir")).unwrap();
    let error = stage.write(ChunkId(0), b"new").unwrap_err();
    assert!(matches!(error, StageError::Io { .. }), "{error}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn names_of_unfinished_files_are_refused() {
    let two = Two::new();
    let entry = Entry {
        path: RelativePath::new(".a.rlaunch-00000000").unwrap(),
        mode: 0o644,
        mtime: Time { secs: 0, nanos: 0 },
        kind: Kind::File { size: 0, chunks: Vec::new(), sparse: false },
    };
    let manifest = Arc::new(Manifest::new(vec![entry]).unwrap());
    let error = Stage::open(two.to.path(), manifest, true).err().unwrap();
    assert!(matches!(error, StageError::Name { .. }), "{error}");
}

#[test]
fn a_destination_that_is_a_file_is_refused() {
    let two = Two::new();
    put(&two.target("a"), b"a");
    let manifest = Arc::new(Manifest::new(Vec::new()).unwrap());
    let error = Stage::open(&two.target("a"), manifest, true).err().unwrap();
    assert!(matches!(error, StageError::NotDirectory { .. }), "{error}");
}

#[test]
fn nobody_else_sees_what_is_not_finished() {
    let two = Two::new();
    put(&two.source("dir/a"), &content(2 * MEGA, 6));
    set_mode(&two.source("dir/a"), 0o666);
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    stage.scan(&mut |_| ()).unwrap();
    stage.write(ChunkId(0), &content(2 * MEGA, 6)[..MEGA]).unwrap();
    let seen = snapshot(two.to.path());
    let modes: Vec<u32> = seen.values().map(|node| node.mode).collect();
    assert_eq!(modes, [0o700, 0o600], "{seen:?}");
}

#[test]
fn a_wrong_chunk_is_not_written() {
    let two = Two::new();
    put(&two.source("a"), b"abc");
    let stage = two.open(&two.original(), Real).unwrap();
    stage.scan(&mut |_| ()).unwrap();
    for wrong in [&b"abd"[..], b"ab", b"abcd", b""] {
        let error = stage.write(ChunkId(0), wrong).unwrap_err();
        assert!(matches!(error, StageError::WrongChunk { offset: 0, .. }), "{error}");
    }
    assert_eq!(snapshot(two.to.path()).len(), 0);
    let error = stage.finish().unwrap_err();
    assert!(matches!(error, StageError::Incomplete { missing: 1, .. }), "{error}");
}

#[test]
fn chunks_are_written_by_many_threads_in_any_order() {
    let two = Two::new();
    put(&two.source("a"), &content(24 * MEGA + 3, 7));
    put(&two.source("b"), &content(8 * MEGA, 8));
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    stage.scan(&mut |_| ()).unwrap();
    let next = AtomicUsize::new(0);
    let count = original.manifest().chunk_count();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut buffer = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed) as u32;
                    if number >= count {
                        break;
                    }
                    // 7 has no factor in common with 33.
                    let id = ChunkId(number * 7 % count);
                    original.read(id, &mut buffer).unwrap();
                    stage.write(id, &buffer).unwrap();
                    // Once more is no harm.
                    stage.write(id, &buffer).unwrap();
                }
            });
        }
    });
    stage.finish().unwrap();
    two.assert_same();
    assert!(stage.verify(2).is_empty());
}

#[test]
fn chunks_can_be_read_at_any_time() {
    let two = Two::new();
    let mut bytes = content(3 * MEGA + 9, 9);
    put(&two.source("a"), &bytes);
    two.copy();
    bytes[MEGA] ^= 1;
    put(&two.source("a"), &bytes);
    put(&two.source("b"), b"new");
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    let mut had = ChunkSet::new(5);
    stage.scan(&mut |found| had.union_with(&found)).unwrap();
    let (mut expected, mut buffer) = (Vec::new(), Vec::new());
    let mut assert_readable = |had: &ChunkSet| {
        for id in had.iter() {
            original.read(id, &mut expected).unwrap();
            stage.read(id, &mut buffer).unwrap();
            assert_eq!(buffer, expected, "{id:?}");
        }
    };
    assert_eq!(had.count(), 3);
    assert_readable(&had);
    let mut chunk = Vec::new();
    for id in [1, 4] {
        original.read(ChunkId(id), &mut chunk).unwrap();
        stage.write(ChunkId(id), &chunk).unwrap();
        had.insert(ChunkId(id));
        assert_readable(&had);
    }
    stage.finish().unwrap();
    assert_readable(&had);
}

#[test]
fn verification_finds_what_has_the_right_size_and_the_wrong_content() {
    let two = Two::new();
    varied(&two);
    two.copy();
    let large = fs::File::options().write(true).open(two.target("large")).unwrap();
    let time = large.metadata().unwrap().modified().unwrap();
    large.write_all_at(b"?", 2 * CHUNK).unwrap();
    large.set_modified(time).unwrap();
    fs::remove_file(two.target("small")).unwrap();
    let stage = two.open(&two.original(), Real).unwrap();
    let wrong: Vec<String> = stage.verify(2).iter().map(ToString::to_string).collect();
    assert_eq!(wrong, ["large", "small"]);
}

#[test]
fn thousands_of_files_arrive() {
    let two = Two::new();
    for number in 0..2000 {
        let name = format!("{}/{}/{number}", number % 10, number % 7);
        put(&two.source(&name), number.to_string().as_bytes());
    }
    let copied = two.copy();
    assert_eq!((copied.received, copied.finished.made), (2000, 2000));
    two.assert_same();
    assert_eq!(two.copy().received, 0);
}

#[test]
fn a_tree_loses_what_came_with_it_and_is_gone() {
    let two = Two::new();
    fs::create_dir_all(two.source("old/deep")).unwrap();
    fs::create_dir(two.source("mixed")).unwrap();
    for name in ["old/deep/a", "mixed/a", "mixed/changed", "stays"] {
        fs::write(two.source(name), name).unwrap();
    }
    symlink("a", two.source("old/link")).unwrap();
    two.copy();
    fs::write(two.target("mixed/own"), "own").unwrap();
    fs::write(two.target("mixed/changed"), "of a rank").unwrap();
    fs::write(two.target("own"), "own").unwrap();
    fs::remove_dir_all(two.source("old")).unwrap();
    fs::remove_dir_all(two.source("mixed")).unwrap();
    // Any other copy leaves them there.
    two.copy();
    assert!(two.target("old/deep/a").exists());
    let original = two.original();
    let mut stage = two.open(&original, Real).unwrap();
    stage.prune_at_end();
    receive(&stage, &original).unwrap();
    stage.finish().unwrap();
    let gone = |name: &str| two.target(name).symlink_metadata().is_err();
    assert!(gone("old") && gone("mixed/a"));
    for (name, content) in
        [("mixed/own", "own"), ("mixed/changed", "of a rank"), ("own", "own"), ("stays", "stays")]
    {
        assert_eq!(fs::read_to_string(two.target(name)).unwrap(), content);
    }
}

/// Only the seal knows what agents have put there.
#[test]
fn a_tree_loses_what_a_patch_has_put_there_and_is_gone() {
    let two = Two::new();
    for name in ["x", "sub/y", "stays"] {
        put(&two.source(name), b"old");
    }
    let sync = |seals: bool| {
        let original = two.original();
        let mut stage = two.open(&original, Real).unwrap();
        stage.unseal().unwrap();
        stage.prune_at_end();
        receive(&stage, &original).unwrap();
        stage.finish().unwrap();
        if seals {
            stage.seal().unwrap();
        }
    };
    sync(true);
    let path = |name: &str| RelativePath::new(name).unwrap();
    let entry = |name: &str| {
        let beside = path(&format!(".{name}.rlaunch-00000007"));
        let put = rlaunch_copy::Put::File { beside, data: b"new".to_vec() };
        let mtime = Time { secs: 1_700_000_000, nanos: 5 };
        rlaunch_copy::PatchEntry { path: path(name), mode: 0o644, mtime, put }
    };
    let patch = rlaunch_copy::Patch {
        content: hash(b"after"),
        entries: ["changed", "new", "own", "x"].map(entry).into(),
        removed: vec![path("sub/y")],
        left: vec![path("sub")],
    };
    let seal = Seal::path(two.to.path());
    rlaunch_files::patching::patch(two.to.path(), &fs::read(&seal).unwrap(), &patch).unwrap();
    assert!(!two.target("sub").exists());
    fs::write(two.target("changed"), "of a rank").unwrap();
    // A copy that is not finished loses none of that.
    put(&two.source("new"), b"new");
    fs::remove_dir_all(two.source("sub")).unwrap();
    sync(false);
    assert!(two.target("new").exists() && !two.target("own").exists());
    assert!(two.target("changed").exists() && two.target("x").exists());
    fs::remove_file(two.source("new")).unwrap();
    fs::remove_file(two.source("x")).unwrap();
    sync(false);
    fs::remove_file(seal).unwrap();
    let there: Vec<PathBuf> = snapshot(two.to.path()).into_keys().collect();
    assert_eq!(there, ["changed", "stays"].map(PathBuf::from));
}

/// What ranks have written may be fetched into the tree, and be gone there later.
#[test]
fn what_was_there_already_is_not_that_of_a_copy() {
    let two = Two::new();
    let time = SystemTime::now() - MINUTE;
    for place in [two.source("own"), two.target("own"), two.source("x")] {
        put(&place, b"x");
        set_time(&place, time);
    }
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    receive(&stage, &original).unwrap();
    stage.finish().unwrap();
    stage.seal().unwrap();
    let path = Seal::path(two.to.path());
    let bytes = fs::read(&path).unwrap();
    let (_, seal) = Seal::decode(&bytes).unwrap();
    let files = seal.directories.iter().flat_map(|of| &of.files);
    let received: Vec<(&[u8], bool)> = files.map(|file| (file.name, file.is_received)).collect();
    assert_eq!(received, [(&b"own"[..], false), (&b"x"[..], true)]);
    // The index may be lost, and all of it comes from the seal.
    let indexes = tempfile::tempdir().unwrap();
    let index = Index::load_in(Some(indexes.path()), two.to.path());
    assert_eq!(index.paths().collect::<Vec<_>>(), [b"x"]);
    fs::remove_file(path).unwrap();
}

#[test]
fn directories_keep_the_bit_that_gives_files_their_group() {
    let two = Two::new();
    for name in ["both", "here", "there", "none"] {
        put(&two.source(name).join("x"), b"x");
    }
    set_mode(&two.source("both"), 0o2755);
    set_mode(&two.source("here"), 0o2750);
    set_mode(&two.source("both/x"), 0o2755);
    fs::create_dir(two.target("there")).unwrap();
    set_mode(&two.target("there"), 0o2700);
    two.copy();
    let mode = |name: &str| fs::metadata(two.target(name)).unwrap().mode() & 0o7777;
    let modes = ["both", "here", "there", "none", "both/x"].map(mode);
    assert_eq!(modes, [0o2755, 0o2750, 0o2755, 0o755, 0o755]);
}
