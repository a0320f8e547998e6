//! What attempts leave that end before the copy is whole, and what the next makes of it.

use super::*;

/// Changes a tree that has been copied, in every way.
fn change(two: &Two) {
    let mut bytes = content(3 * MEGA + 17, 1);
    bytes[2 * MEGA] ^= 1;
    put(&two.source("large"), &bytes);
    put(&two.source("empty"), b"no longer");
    put(&two.source("new/file"), &content(MEGA + 1, 11));
    fs::remove_file(two.source("link")).unwrap();
    symlink("large", two.source("link")).unwrap();
    fs::remove_file(two.source("small")).unwrap();
    put(&two.source("small/er"), b"in a directory");
    fs::remove_dir(two.source("bare")).unwrap();
    put(&two.source("bare"), b"a file");
}

/// Tells whether a place has what it had before or what it is to have.
fn is_old_or_new(
    path: &Path,
    there: &BTreeMap<PathBuf, Node>,
    old: &BTreeMap<PathBuf, Node>,
    new: &BTreeMap<PathBuf, Node>,
) -> bool {
    let what = |nodes: &BTreeMap<PathBuf, Node>| nodes.get(path).map(|node| node.what.clone());
    what(there) == what(old) || what(there) == what(new)
}

#[test]
fn a_host_that_dies_at_any_change_has_old_or_new_files_and_resumes() {
    let mut change_number = 0;
    loop {
        let two = Two::new();
        varied(&two);
        two.copy();
        let old = snapshot(two.to.path());
        change(&two);
        let new = snapshot(two.from.path());
        let died = two.copy_until(change_number);
        let there = snapshot(two.to.path());
        for path in there.keys().chain(old.keys()).chain(new.keys()) {
            let name = path.file_name().unwrap().as_bytes();
            let fine = is_staging_name(name) || is_old_or_new(path, &there, &old, &new);
            // A file that became a directory is removed before that is made.
            let is_between = path == Path::new("small") && !there.contains_key(path);
            let is_between = is_between || path == Path::new("bare") && !there.contains_key(path);
            assert!(fine || is_between, "{path:?} at change {change_number}");
        }
        let resumed = two.copy();
        two.assert_same();
        match died {
            // Everything but the index may be lost after the last change.
            Ok(_) => break,
            Err(error) => assert!(error.to_string().contains("the host died"), "{error}"),
        }
        assert!(resumed.received <= 6, "{} at change {change_number}", resumed.received);
        change_number += 1;
    }
    assert!(change_number > 20, "{change_number}");
}

#[test]
fn what_an_attempt_has_received_is_not_received_again() {
    let two = Two::new();
    put(&two.source("a"), &content(8 * MEGA, 12));
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    stage.scan(&mut |_| ()).unwrap();
    let mut buffer = Vec::new();
    for id in [0, 3, 7] {
        original.read(ChunkId(id), &mut buffer).unwrap();
        stage.write(ChunkId(id), &buffer).unwrap();
    }
    drop(stage);
    // A chunk of it was not on the disk when the host died.
    let left: Vec<PathBuf> = snapshot(two.to.path()).into_keys().collect();
    assert_eq!(left.len(), 1);
    let left = fs::File::options().write(true).open(two.to.path().join(&left[0])).unwrap();
    left.write_all_at(b"?", 3 * CHUNK + 1).unwrap();
    drop(left);
    let copied = two.copy();
    assert_eq!((copied.received, copied.finished.unchanged), (6, 2 * CHUNK));
    two.assert_same();
}

#[test]
fn a_file_that_nobody_may_write_to_is_finished_by_the_next_attempt() {
    let two = Two::new();
    for mode in [0o444, 0o400] {
        let bytes = content(MEGA, mode as u8);
        put(&two.source("a"), &bytes);
        set_mode(&two.source("a"), mode);
        let original = two.original();
        let stage = two.open(&original, Real).unwrap();
        let place = two.to.path().join(OsStr::from_bytes(&stage.staging_path(0)));
        stage.scan(&mut |_| ()).unwrap();
        stage.write(ChunkId(0), &bytes).unwrap();
        // It is whole. Without root's rights a mode without this bit keeps it from being opened again.
        assert_eq!(node(&place).mode, 0o600);
        drop(stage);
        // As of a host that died right before the file was renamed.
        set_mode(&place, mode);
        let stage = two.open(&original, Real).unwrap();
        stage.scan(&mut |_| ()).unwrap();
        stage.settle(0).unwrap();
        assert_eq!(node(&place).mode, 0o600);
        stage.finish().unwrap();
        two.assert_same();
        set_mode(&two.source("a"), 0o600);
    }
}

#[test]
fn two_copies_of_one_file_do_not_mix() {
    let two = Two::new();
    put(&two.source("a"), &content(2 * MEGA, 13));
    let original = two.original();
    let stages = [two.open(&original, Real).unwrap(), two.open(&original, Real).unwrap()];
    let mut buffer = Vec::new();
    original.read(ChunkId(0), &mut buffer).unwrap();
    for stage in &stages {
        stage.scan(&mut |_| ()).unwrap();
    }
    stages[0].write(ChunkId(0), &buffer).unwrap();
    let error = stages[1].write(ChunkId(0), &buffer).unwrap_err();
    assert!(matches!(error, StageError::Busy { .. }), "{error}");
}

/// `rlaunch push --prune` locks what it removes, and may come to a file that a copy begins to use.
#[test]
fn a_copy_waits_for_whoever_removes_what_another_has_left() {
    let two = Two::new();
    let bytes = content(MEGA, 17);
    put(&two.source("a"), &bytes);
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    let place = two.to.path().join(OsStr::from_bytes(&stage.staging_path(0)));
    put(&place, b"of no use");
    stage.scan(&mut |_| ()).unwrap();
    let lock = fs::File::open(&place).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let removing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        fs::remove_file(place).unwrap();
        drop(lock);
    });
    stage.write(ChunkId(0), &bytes).unwrap();
    stage.finish().unwrap();
    removing.join().unwrap();
    two.assert_same();
}

#[test]
fn what_copies_of_other_content_left_is_removed() {
    let two = Two::new();
    put(&two.target(".b.rlaunch-00000000"), b"of a file that is not copied");
    // A long name is not whole in that of the unfinished file.
    let long = "l".repeat(250);
    for name in ["a", &long] {
        put(&two.source(name), &content(2 * MEGA, 14));
        let first = two.original();
        let stage = two.open(&first, Real).unwrap();
        stage.scan(&mut |_| ()).unwrap();
        let id = ChunkId(first.manifest().chunk_count() - 2);
        stage.write(id, &content(2 * MEGA, 14)[..MEGA]).unwrap();
        drop(stage);
        put(&two.source(name), &content(2 * MEGA, 15));
        two.copy();
    }
    let names: Vec<PathBuf> = snapshot(two.to.path()).into_keys().collect();
    assert_eq!(names, [".b.rlaunch-00000000", "a", &long].map(PathBuf::from));
}

#[test]
fn an_unfinished_file_that_may_be_of_somebody_else_is_not_used() {
    let (two, outside) = (Two::new(), tempfile::tempdir().unwrap());
    let trap = outside.path().join("trap");
    put(&trap, b"mine");
    for is_link in [false, true] {
        put(&two.source("a"), if is_link { b"one" } else { b"two" });
        let original = two.original();
        let stage = two.open(&original, Real).unwrap();
        let place = two.to.path().join(OsStr::from_bytes(&stage.staging_path(0)));
        if is_link {
            symlink(&trap, place).unwrap();
        } else {
            fs::hard_link(&trap, place).unwrap();
        }
        two.copy();
        two.assert_same();
        assert_eq!(fs::read(&trap).unwrap(), b"mine");
    }
}

#[test]
fn a_file_that_somebody_writes_to_meanwhile_is_not_taken_for_the_old_one() {
    let two = Two::new();
    let mut bytes = content(3 * MEGA, 16);
    put(&two.source("a"), &bytes);
    two.copy();
    bytes[0] ^= 1;
    put(&two.source("a"), &bytes);
    let original = two.original();
    let stage = two.open(&original, Real).unwrap();
    fs::write(two.target("a"), "mine").unwrap();
    let scanned = stage.scan(&mut |_| ());
    let written = scanned.and_then(|()| stage.write(ChunkId(0), &bytes[..MEGA]));
    assert!(matches!(written, Err(StageError::Changed { .. })), "{written:?}");
    assert_eq!(fs::read(two.target("a")).unwrap(), b"mine");
}
