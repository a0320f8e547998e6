use super::super::walk::{How, walk};
use super::*;
use std::cell::Cell;
use std::time::{Duration, SystemTime};

fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ (at >> 12) as u8 ^ seed).collect()
}

fn hashes_of(bytes: &[u8]) -> Vec<Hash> {
    bytes.chunks(CHUNK as usize).map(hash).collect()
}

fn chunks<'a>(manifest: &'a Manifest, name: &str) -> &'a [Hash] {
    let entry = manifest.entries.iter().find(|entry| entry.path.to_string() == name);
    entry.unwrap().chunks()
}

fn all(root: &Path, index: &mut Index, threads: usize) -> (Manifest, u64) {
    let known = Cell::new(0);
    let walk = walk(root, &How::All).unwrap();
    let manifest = manifest(&walk, index, threads, &|bytes| known.set(known.get() + bytes));
    (manifest.unwrap(), known.get())
}

/// Sets a file's time such that the index believes it.
fn age(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
}

#[test]
fn every_thread_count_gives_the_same_hashes() {
    let root = tempfile::tempdir().unwrap();
    let mega = CHUNK as usize;
    let sizes = [0, 1, mega - 1, mega, mega + 1, PIECE as usize * mega, 35 * mega + 7];
    for (seed, size) in sizes.iter().enumerate() {
        fs::write(root.path().join(size.to_string()), content(*size, seed as u8)).unwrap();
    }
    for threads in [1, 2, 7] {
        let (manifest, known) = all(root.path(), &mut Index::none(), threads);
        for (seed, size) in sizes.iter().enumerate() {
            let expected = hashes_of(&content(*size, seed as u8));
            assert_eq!(chunks(&manifest, &size.to_string()), expected, "{size} {threads}");
        }
        assert_eq!(known, sizes.iter().sum::<usize>() as u64);
    }
}

#[test]
fn thousands_of_files_are_hashed() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..3000 {
        fs::write(root.path().join(format!("{number:04}")), format!("{number}")).unwrap();
    }
    let (manifest, _) = all(root.path(), &mut Index::none(), 4);
    assert_eq!(manifest.chunk_count(), 3000);
    assert_eq!(chunks(&manifest, "2345"), [hash(b"2345")]);
}

#[test]
fn holes_read_as_zeros() {
    let root = tempfile::tempdir().unwrap();
    let file = File::create(root.path().join("sparse")).unwrap();
    let mega = CHUNK as usize;
    file.set_len(20 * CHUNK + 5).unwrap();
    file.write_all_at(b"data", 7 * CHUNK + 3).unwrap();
    let mut expected = vec![0; 20 * mega + 5];
    expected[7 * mega + 3..][..4].copy_from_slice(b"data");
    let (manifest, _) = all(root.path(), &mut Index::none(), 2);
    assert_eq!(chunks(&manifest, "sparse"), hashes_of(&expected));
    assert!(matches!(manifest.entries[0].kind, Kind::File { sparse: true, .. }));
}

#[test]
fn what_the_index_knows_is_not_read() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().join("a");
    fs::write(&place, "abc").unwrap();
    age(&place);
    let mut index = Index::none();
    let (_, _) = all(root.path(), &mut index, 2);
    let found = walk(root.path(), &How::All).unwrap().entries.remove(0);
    assert_eq!(index.lookup(&found.path, &found.meta.stamp()), Some(&[hash(b"abc")][..]));
    // A lie shows where hashes come from.
    index.insert(&found.path, found.meta.stamp(), &[hash(b"lie")], now());
    let (manifest, known) = all(root.path(), &mut index, 2);
    assert_eq!((chunks(&manifest, "a"), known), (&[hash(b"lie")][..], 3));
    fs::write(&place, "abd").unwrap();
    let (manifest, _) = all(root.path(), &mut index, 2);
    assert_eq!(chunks(&manifest, "a"), [hash(b"abd")]);
}

#[test]
fn files_that_disappear_or_change_after_the_walk_are_as_they_are_when_read() {
    let root = tempfile::tempdir().unwrap();
    for name in ["grows", "shrinks", "gone"] {
        fs::write(root.path().join(name), "abc").unwrap();
    }
    let walk = walk(root.path(), &How::All).unwrap();
    fs::write(root.path().join("grows"), "abcdef").unwrap();
    fs::write(root.path().join("shrinks"), "a").unwrap();
    fs::remove_file(root.path().join("gone")).unwrap();
    let manifest = manifest(&walk, &mut Index::none(), 2, &|_| ()).unwrap();
    assert_eq!(manifest.entries.len(), 2);
    assert_eq!(chunks(&manifest, "grows"), [hash(b"abcdef")]);
    assert_eq!((manifest.entries[1].size(), chunks(&manifest, "shrinks")), (1, &[hash(b"a")][..]));
}

#[test]
fn reading_ends_when_its_caller_breaks() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a"), content(1000, 0)).unwrap();
    let pieces: Vec<Piece> = (0..10_000).flat_map(|at| Piece::of(at, 1000, false)).collect();
    let place = root.path().join("a");
    let mut results = 0;
    hash_pieces(&pieces, 3, &Meter::default(), &|_| File::open(&place), &mut |_, _| {
        results += 1;
        ControlFlow::Break(())
    });
    assert_eq!(results, 1);
}

#[test]
fn what_is_no_file_any_more_is_not_waited_for() {
    let root = tempfile::tempdir().unwrap();
    let pipe = root.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for place in [pipe.as_path(), root.path(), Path::new("/dev/zero")] {
        assert_eq!(open_file(place).unwrap_err().to_string(), "it is no file any more");
    }
}

#[test]
fn zeros_are_known_by_their_bytes_and_by_their_hash() {
    assert!(is_zeros(&[0; 100]) && !is_zeros(&[0, 0, 1]));
    assert!(is_zeros_hash(100, &hash(&[0; 100])) && !is_zeros_hash(99, &hash(&[0; 100])));
    assert!(!is_zeros(&vec![0; CHUNK as usize + 1]));
}
