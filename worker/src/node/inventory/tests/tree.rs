//! Recorded machines, `worker/fixtures/*.tree`.

#[path = "../../../../fixtures/tree.rs"]
mod layout;

use crate::node::inventory::{Root, read};
use rlaunch_bootstrap::inventory::Inventory;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Reads the inventory of a recorded machine.
pub(crate) fn fixture(name: &str) -> Inventory {
    read(&Root::recorded(recorded(name).path()))
}

/// Writes a recorded machine to a directory.
pub(crate) fn recorded(name: &str) -> TempDir {
    lay_out(&fs::read_to_string(directory().join(name).with_extension("tree")).unwrap())
}

/// Returns the names of all recorded machines.
pub(crate) fn all() -> Vec<String> {
    let paths = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let trees = paths.filter(|path| path.extension().is_some_and(|end| end == "tree"));
    trees.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

pub(crate) fn lay_out(text: &str) -> TempDir {
    let root = directory_in_memory();
    layout::lay_out_below(root.path(), text).unwrap();
    root
}

/// Creates a directory in memory: on some disks, thousands of small files take long.
pub(crate) fn directory_in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}
