use super::super::index::Index;
use super::*;
use crate::files::{How, Original, Part, Stage, manifest, walk};
use rlaunch_copy::ChunkId;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::sync::Arc;
use tempfile::TempDir;

/// Home directory of a host, and the indexes of its copies.
struct Home {
    home: TempDir,
    indexes: TempDir,
}

impl Home {
    fn new() -> Home {
        Home { home: tempfile::tempdir().unwrap(), indexes: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().canonicalize().unwrap().join(name)
    }

    /// Copies a directory `x` with two files to a place below the home directory.
    fn receive(&self, place: &str) {
        let source = tempfile::tempdir().unwrap();
        fs::create_dir_all(source.path().join("x/sub")).unwrap();
        fs::write(source.path().join("x/a"), "four").unwrap();
        fs::write(source.path().join("x/sub/b"), "four").unwrap();
        let walk = walk(source.path(), &How::All).unwrap();
        let listed = manifest(&walk, &mut Index::none(), 1, &|_| ()).unwrap();
        let part = Part { at: None, root: walk.root, manifest: listed };
        let original = Original::new(vec![part]).unwrap();
        let place = self.path(place);
        fs::create_dir_all(&place).unwrap();
        let index = Index::load_in(Some(self.indexes.path()), &place);
        let stage = Stage::open_at(&place, Arc::clone(original.manifest()), index).unwrap();
        stage.scan(&mut |_| ()).unwrap();
        let mut buffer = Vec::new();
        for id in 0..original.manifest().chunk_count() {
            original.read(ChunkId(id), &mut buffer).unwrap();
            stage.write(ChunkId(id), &buffer).unwrap();
        }
        stage.finish().unwrap();
    }

    fn all(&self) -> Vec<Index> {
        Index::all_in(self.indexes.path())
    }

    fn copies(&self) -> Vec<CopyInfo> {
        copies(&self.all(), Some(self.home.path()))
    }

    fn prune(&self, trees: &[String]) -> Pruned {
        prune(&self.all(), trees, Some(self.home.path()))
    }
}

#[test]
fn what_was_copied_is_listed_by_the_names_that_people_know() {
    let home = Home::new();
    home.receive("data");
    home.receive(".cache/rlaunch/sync/ab");
    // What was only read is nothing that a copy has put here.
    fs::write(home.path("own"), "x").unwrap();
    let walk = walk(&home.path("own"), &How::All).unwrap();
    let mut index = Index::load_in(Some(home.indexes.path()), &walk.root);
    manifest(&walk, &mut index, 1, &|_| ()).unwrap();
    index.save().unwrap();
    let found = home.copies();
    let of = |copy: &CopyInfo| (copy.path.clone(), copy.files, copy.bytes, copy.is_tree);
    let path = |name: &str| home.path(name).display().to_string();
    let expected = [(path(".cache/rlaunch/sync/ab/x"), 2, 8, true), (path("data/x"), 2, 8, false)];
    assert_eq!(found.iter().map(of).collect::<Vec<_>>(), expected);
    assert!(found.iter().all(|copy| copy.secs > 1_700_000_000 && !copy.is_used));
}

#[test]
fn only_trees_are_removed_and_what_ranks_wrote_stays() {
    let home = Home::new();
    for place in
        ["data", ".cache/rlaunch/sync/ab", ".cache/rlaunch/sync/cd", ".cache/rlaunch/sync/ef"]
    {
        home.receive(place);
    }
    fs::write(home.path(".cache/rlaunch/sync/cd/x/model"), "mine").unwrap();
    let trees = ["data", ".cache/rlaunch/sync/ab", ".cache/rlaunch/sync/cd"];
    let pruned = home.prune(&trees.map(|tree| home.path(tree).display().to_string()));
    assert_eq!((pruned.trees, pruned.files, pruned.bytes), (1, 4, 16));
    assert!(home.path("data/x/a").exists() && home.path(".cache/rlaunch/sync/ef/x/a").exists());
    assert!(!home.path(".cache/rlaunch/sync/ab").exists());
    let left = home.path(".cache/rlaunch/sync/cd/x");
    assert_eq!(fs::read_dir(left).unwrap().count(), 1);
    assert_eq!(home.copies().len(), 2);
}

#[test]
fn what_copies_left_unfinished_is_removed_unless_one_is_running() {
    let home = Home::new();
    home.receive("data");
    let left =
        ["data/x/.a.rlaunch-00000000", "data/x/.a.rlaunch-00000001"].map(|name| home.path(name));
    left.iter().for_each(|path| fs::write(path, "x").unwrap());
    let running = File::open(&left[1]).unwrap();
    rustix::fs::flock(&running, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(home.prune(&[]).files, 1);
    assert!(!left[0].exists() && left[1].exists() && home.path("data/x/a").exists());
    // Files that are gone are forgotten.
    fs::remove_dir_all(home.path("data")).unwrap();
    home.prune(&[]);
    assert_eq!(fs::read_dir(home.indexes.path()).unwrap().count(), 0);
}

#[test]
fn what_is_on_a_disk_that_is_absent_is_not_forgotten() {
    let home = Home::new();
    home.receive("usb/models");
    let left = || fs::read_dir(home.indexes.path()).unwrap().count();
    let [mut index] = <[Index; 1]>::try_from(home.all()).unwrap();
    // The place at which the disk is mounted stays, and is empty.
    fs::remove_dir_all(home.path("usb/models")).unwrap();
    index.move_to_disk(&home.path("usb"));
    home.prune(&[]);
    assert_eq!(left(), 1);
    fs::create_dir(home.path("usb/models")).unwrap();
    home.prune(&[]);
    assert_eq!(left(), 1);
    // The same disk, without the files.
    index.save().unwrap();
    home.prune(&[]);
    assert_eq!(left(), 0);
}

#[test]
fn what_a_copy_has_noted_meanwhile_is_not_removed() {
    let home = Home::new();
    home.receive("data");
    let before = home.all();
    fs::remove_dir_all(home.path("data")).unwrap();
    home.receive("data");
    fs::rename(home.path("data/x"), home.path("data/y")).unwrap();
    let mut index = Index::load_in(Some(home.indexes.path()), &home.path("data"));
    let file = walk(&home.path("data"), &How::All).unwrap();
    let listed = manifest(&file, &mut Index::none(), 1, &|_| ()).unwrap();
    let entry = listed.entries.iter().find(|entry| entry.path.as_bytes() == b"y/a").unwrap();
    let stamp = Beneath::open(&home.path("data")).unwrap().look(b"y/a").unwrap().unwrap();
    let stamp = stamp.meta.stamp();
    index.receive(&entry.path, stamp, entry.chunks(), super::super::meta::now());
    index.save().unwrap();
    prune(&before, &[], Some(home.home.path()));
    assert_eq!(home.copies().len(), 1);
}
