//! Room on the disk, holes, and when files are on it.

use super::*;

#[test]
fn holes_arrive_as_holes() {
    let two = Two::new();
    let make = |at: u64| {
        let file = fs::File::create(two.source("sparse")).unwrap();
        file.set_len(32 * CHUNK + 1).unwrap();
        file.write_all_at(b"data", at).unwrap();
        drop(file);
        age(&two.source("sparse"));
    };
    let blocks = || fs::metadata(two.target("sparse")).unwrap().blocks() * 512;
    make(5 * CHUNK);
    two.copy();
    two.assert_same();
    assert!(blocks() <= 2 * CHUNK, "{}", blocks());
    // Data becomes a hole, and a hole data.
    make(9 * CHUNK + 7);
    assert_eq!(two.copy().received, 2);
    two.assert_same();
    assert!(blocks() <= 2 * CHUNK, "{}", blocks());
}

#[test]
fn a_full_disk_is_named_before_anything_is_written() {
    let two = Two::new();
    put(&two.source("dir/a"), &content(MEGA + 5, 1));
    put(&two.source("b"), b"b");
    let try_with = |free| {
        let changes = Arc::new(AtomicUsize::new(usize::MAX));
        two.copy_by(Fate { changes, free })
    };
    let needed = CHUNK + 6;
    let error = try_with(Free { bytes: needed - 1, inodes: None }).unwrap_err();
    let expected = matches!(error, StageError::NoSpace { needed: of, free, .. }
        if of == needed && free == needed - 1);
    assert!(expected, "{error}");
    assert!(error.hint().unwrap().starts_with("df -h /"), "{error}");
    let error = try_with(Free { bytes: needed, inodes: Some(2) }).unwrap_err();
    assert!(matches!(error, StageError::NoInodes { needed: 3, free: 2, .. }), "{error}");
    assert_eq!(snapshot(two.to.path()).len(), 0);
    try_with(Free { bytes: needed, inodes: Some(3) }).unwrap();
    // What is there already needs no room.
    try_with(Free { bytes: 0, inodes: Some(0) }).unwrap();
    two.assert_same();
}

#[test]
fn changed_files_need_room_beside_old_ones() {
    let two = Two::new();
    let mut bytes = content(4 * MEGA, 1);
    put(&two.source("a"), &bytes);
    put(&two.source("b"), &bytes);
    two.copy();
    bytes[0] ^= 1;
    put(&two.source("a"), &bytes);
    put(&two.source("b"), &bytes);
    let before = [node(&two.target("a")), node(&two.target("b"))];
    let changes = Arc::new(AtomicUsize::new(usize::MAX));
    let copied = two.copy_by(Fate { changes, free: Free { bytes: 0, inodes: None } });
    let error = copied.unwrap_err();
    let StageError::NoSpace { needed, .. } = error else { panic!("{error}") };
    // Where files can share data, only the chunks that changed need room.
    assert!([2 * CHUNK, 8 * CHUNK].contains(&needed), "{needed}");
    assert_eq!(snapshot(two.to.path()).len(), 2);
    assert_eq!([node(&two.target("a")), node(&two.target("b"))], before);
}

#[test]
fn more_files_than_are_written_one_by_one_arrive() {
    let two = Two::new();
    for number in 0..FEW + 3 {
        put(&two.source(&number.to_string()), number.to_string().as_bytes());
    }
    assert_eq!(two.copy().finished.made, FEW as u64 + 3);
    two.assert_same();
}

/// Disk that counts what is written to it for good.
#[derive(Clone, Default)]
struct Counting {
    /// Whether the kernel is one whose `syncfs` says nothing of errors.
    is_old: bool,
    files: Arc<AtomicUsize>,
    /// For each directory, the number of names in it.
    names: Arc<Mutex<Vec<usize>>>,
}

impl Gate for Counting {
    fn whole_sync_reports_errors(&self) -> bool {
        !self.is_old
    }

    fn sync_file(&self, _: BorrowedFd<'_>) -> Result<(), Errno> {
        self.files.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn sync_names(&self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        let names = rustix::fs::Dir::read_from(directory).unwrap();
        lock(&self.names).push(names.count() - 2);
        Ok(())
    }
}

#[test]
fn many_files_are_written_one_by_one_where_the_kernel_hides_errors() {
    for (is_old, expected) in [(true, FEW + 3), (false, 0)] {
        let two = Two::new();
        for number in 0..FEW + 3 {
            put(&two.source(&number.to_string()), number.to_string().as_bytes());
        }
        let disk = Counting { is_old, ..Counting::default() };
        two.copy_by(disk.clone()).unwrap();
        assert_eq!(disk.files.load(Ordering::Relaxed), expected, "old: {is_old}");
        two.assert_same();
    }
}

#[test]
fn new_names_are_on_the_disk_once_for_each_directory() {
    let two = Two::new();
    for name in ["a", "b", "x/c", "x/d", "y/z/e", "old/f"] {
        put(&two.source(name), b"four");
    }
    // The name of a directory that nobody can open counts as well.
    fs::create_dir(two.source("closed")).unwrap();
    set_mode(&two.source("closed"), 0o300);
    let count = |two: &Two| {
        let disk = Counting::default();
        two.copy_by(disk.clone()).unwrap();
        let mut names = std::mem::take(&mut *lock(&disk.names));
        names.sort_unstable();
        names
    };
    assert_eq!(count(&two), [1, 1, 1, 2, 6]);
    assert_eq!(count(&two), [0; 0]);
    put(&two.source("x/d"), b"other");
    assert_eq!(count(&two), [2]);
}
