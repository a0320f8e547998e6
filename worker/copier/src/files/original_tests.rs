use super::super::hashing::manifest;
use super::super::index::Index;
use super::super::walk::{How, walk};
use super::*;
use std::path::Path;
use std::time::{Duration, SystemTime};

fn part(at: Option<&str>, path: &Path) -> Part {
    let walk = walk(path, &How::All).unwrap();
    let manifest = manifest(&walk, &mut Index::none(), 1, &|_| ()).unwrap();
    let at = at.map(|at| RelativePath::new(at).unwrap());
    Part { at, root: walk.root, manifest }
}

fn names(original: &Original) -> Vec<String> {
    original.manifest().entries.iter().map(|entry| entry.path.to_string()).collect()
}

#[test]
fn parts_are_put_together_and_read_where_they_are() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(first.path().join("sub")).unwrap();
    fs::write(first.path().join("sub/x"), "one").unwrap();
    fs::write(second.path().join("y"), "two").unwrap();
    let parts = vec![
        part(Some("b/project"), first.path()),
        part(None, &second.path().join("y")),
        part(Some("b"), second.path()),
    ];
    let original = Original::new(parts).unwrap();
    let expected = ["b", "b/project", "b/project/sub", "b/project/sub/x", "b/y", "y"];
    assert_eq!(names(&original), expected);
    let mut buffer = Vec::new();
    let read = (0..3).map(|id| {
        original.read(ChunkId(id), &mut buffer).unwrap();
        String::from_utf8(buffer.clone()).unwrap()
    });
    assert_eq!(read.collect::<Vec<_>>(), ["one", "two", "two"]);
    assert_eq!(original.place(3), first.path().join("sub/x"));
}

#[test]
fn two_files_in_one_place_are_refused() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(first.path().join("x"), "one").unwrap();
    fs::write(second.path().join("x"), "two").unwrap();
    let parts = vec![part(None, first.path()), part(None, second.path())];
    let error = Original::new(parts).err().unwrap();
    assert_eq!(error, ManifestError::Twice(RelativePath::new("x").unwrap()));
}

#[test]
fn a_file_that_changed_is_not_sent() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join("x");
    fs::write(&place, "one").unwrap();
    // So that a change has another time.
    let before = SystemTime::now() - Duration::from_secs(60);
    File::options().write(true).open(&place).unwrap().set_modified(before).unwrap();
    let original = Original::new(vec![part(None, root.path())]).unwrap();
    let mut buffer = Vec::new();
    original.read(ChunkId(0), &mut buffer).unwrap();
    // What is longer now still begins with it.
    fs::write(&place, "one more").unwrap();
    original.read(ChunkId(0), &mut buffer).unwrap();
    for changed in ["two", "", "o"] {
        fs::write(&place, changed).unwrap();
        let error = original.read(ChunkId(0), &mut buffer).unwrap_err();
        assert!(matches!(error, OriginalError::Changed { .. }), "{changed}: {error}");
    }
}

#[test]
fn more_files_are_read_than_are_kept_open() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..3 * OPEN_FILES {
        fs::write(root.path().join(format!("{number:02}")), format!("{number}")).unwrap();
    }
    let original = Original::new(vec![part(None, root.path())]).unwrap();
    let mut buffer = Vec::new();
    for number in (0..3 * OPEN_FILES).rev() {
        original.read(ChunkId(number as u32), &mut buffer).unwrap();
        assert_eq!(buffer, format!("{number}").as_bytes());
    }
    assert_eq!(original.open.lock().unwrap().len(), OPEN_FILES);
}
