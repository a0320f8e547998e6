use super::*;
use rlaunch_bootstrap::job::seal::{SealedDirectory, SealedFile};
use rlaunch_files::sealing;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;

fn path(text: &str) -> RelativePath {
    RelativePath::new(text).unwrap()
}

/// Makes a file that was written a minute ago, and returns its stamp.
fn old_file(root: &TempDir, name: &str) -> Stamp {
    let file = fs::File::create(root.path().join(name)).unwrap();
    let minute_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    file.set_modified(minute_ago).unwrap();
    Meta::of(&file.metadata().unwrap()).stamp()
}

/// Returns an index of `root` that knows `a` and was saved, and the stamp of `a`.
fn saved(indexes: &TempDir, root: &TempDir) -> (Index, Stamp) {
    let stamp = old_file(root, "a");
    let mut index = Index::load_in(Some(indexes.path()), root.path());
    assert_eq!(index.lookup(&path("a"), &stamp), None);
    index.receive(&path("a"), stamp, &[hash(b"x")], now());
    index.save().unwrap();
    (index, stamp)
}

fn now() -> Time {
    super::super::meta::now()
}

#[test]
fn what_was_saved_is_loaded_for_the_same_directory_alone() {
    let (indexes, root, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, stamp) = saved(&indexes, &root);
    let index = Index::load_in(Some(indexes.path()), root.path());
    assert_eq!(index.lookup(&path("a"), &stamp), Some(&[hash(b"x")][..]));
    assert_eq!(index.lookup(&path("b"), &stamp), None);
    assert!(!Index::load_in(Some(indexes.path()), other.path()).knows(b"a", &stamp));
}

#[test]
fn a_file_with_another_stamp_is_not_known() {
    let (root, mut index) = (tempfile::tempdir().unwrap(), Index::none());
    let stamp = old_file(&root, "a");
    index.receive(&path("a"), stamp, &[], now());
    // Another inode, even if all times are equal.
    let other = old_file(&root, "b");
    assert_eq!(index.lookup(&path("a"), &other), None);
    assert!(!index.knows(b"a", &other));
    assert!(index.lookup(&path("a"), &stamp).is_some());
}

#[test]
fn a_file_written_to_in_the_instant_of_reading_is_read_again() {
    let root = tempfile::tempdir().unwrap();
    let file = fs::File::create(root.path().join("a")).unwrap();
    let stamp = Meta::of(&file.metadata().unwrap()).stamp();
    let mut index = Index::none();
    index.receive(&path("a"), stamp, &[], now());
    assert_eq!(index.lookup(&path("a"), &stamp), None);
    // It is one that was copied all the same.
    assert!(index.knows(b"a", &stamp));
    let later = Time { secs: now().secs + 10, nanos: 0 };
    index.receive(&path("a"), stamp, &[], later);
    assert!(index.lookup(&path("a"), &stamp).is_some());
}

#[test]
fn what_was_only_read_is_the_users_own() {
    let (root, mut index) = (tempfile::tempdir().unwrap(), Index::none());
    let stamp = old_file(&root, "a");
    index.insert(&path("a"), stamp, &[hash(b"x")], now());
    assert!(index.lookup(&path("a"), &stamp).is_some());
    assert!(!index.knows(b"a", &stamp) && index.paths().next().is_none());
    // What was copied there and is read as it was stays what it is.
    index.receive(&path("a"), stamp, &[hash(b"x")], now());
    index.insert(&path("a"), stamp, &[hash(b"x")], now());
    assert!(index.knows(b"a", &stamp));
    index.insert(&path("a"), stamp, &[hash(b"y")], now());
    assert!(!index.knows(b"a", &stamp));
}

/// The seal is written before files get their names, which changes the time of their last change.
#[test]
fn of_an_unfinished_copy_files_are_known_that_have_got_their_names_since() {
    let (indexes, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stamp = old_file(&root, "a");
    let load = |content: [u8; 32]| {
        let file = SealedFile { ctime: (1, 0), ..stamp.sealed(b"a", true) };
        let directories = vec![SealedDirectory { path: b"", mode: 0o700, files: vec![file] }];
        sealing::seal(root.path(), &Seal { directories }, &content).unwrap();
        Index::load_in(Some(indexes.path()), root.path())
    };
    assert!(load(Seal::UNFINISHED).knows(b"a", &stamp));
    assert!(!load([7; 32]).knows(b"a", &stamp));
    let other = old_file(&root, "a");
    let index = load(Seal::UNFINISHED);
    assert!(!index.knows(b"a", &other) && index.paths().next().is_none());
    fs::remove_file(Seal::path(root.path())).unwrap();
}

#[test]
fn nobody_else_can_read_an_index() {
    let (above, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let indexes = above.path().join("rlaunch/copy");
    let mut index = Index::load_in(Some(&indexes), root.path());
    index.receive(&path("a"), old_file(&root, "a"), &[], now());
    index.save().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let files: Vec<_> = fs::read_dir(&indexes).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!((mode(&indexes), mode(&files[0])), (0o700, 0o600));
}

#[test]
fn a_damaged_index_is_empty() {
    let (indexes, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (index, stamp) = saved(&indexes, &root);
    let file = index.file.clone().unwrap();
    let whole = fs::read(&file).unwrap();
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        assert!(!Index::load_in(Some(indexes.path()), root.path()).knows(b"a", &stamp), "{length}");
    }
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(&file, &flipped).unwrap();
    assert!(!Index::load_in(Some(indexes.path()), root.path()).knows(b"a", &stamp));
}

#[test]
fn what_has_not_changed_is_not_written() {
    let (indexes, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut index, stamp) = saved(&indexes, &root);
    let file = index.file.clone().unwrap();
    fs::remove_file(&file).unwrap();
    index.receive(&path("a"), stamp, &[hash(b"x")], now());
    index.save().unwrap();
    assert!(!file.exists());
    index.retain(|path| path != b"a");
    index.save().unwrap();
    assert!(file.exists());
}
