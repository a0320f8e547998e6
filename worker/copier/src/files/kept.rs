//! What copies have put on this host, by their indexes, and what of it nobody uses any more.

use super::beneath::{Beneath, split};
use super::index::Index;
use super::unfinished::{is_staging_name, lock_abandoned};
use super::walk::joined;
use rlaunch_bootstrap::job::seal::Seal;
use rlaunch_copy::control::{CopyInfo, Pruned};
use rustix::fs::AtFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Directory of working trees, below the home directory.
const TREES: &str = ".cache/rlaunch/sync";

/// Lists what was copied to this host: each name in a directory that files went to, and each working tree.
pub fn copies(indexes: &[Index], home: Option<&Path>) -> Vec<CopyInfo> {
    let mut copies = Vec::new();
    for index in indexes {
        let root = index.root();
        let mut by_name: BTreeMap<Vec<u8>, CopyInfo> = BTreeMap::new();
        for path in index.paths() {
            let place = root.join(OsStr::from_bytes(path));
            let Ok(metadata) = fs::symlink_metadata(place) else { continue };
            let name = path.split(|byte| *byte == b'/').next().unwrap_or(path);
            let copy = by_name.entry(name.to_vec()).or_insert_with(|| CopyInfo {
                path: root.join(OsStr::from_bytes(name)).display().to_string(),
                root: root.display().to_string(),
                secs: index.saved_at(),
                is_tree: is_tree(&root, home),
                ..CopyInfo::default()
            });
            copy.files += 1;
            copy.bytes += if metadata.is_file() { metadata.len() } else { 0 };
        }
        copies.extend(by_name.into_values());
    }
    let used = used();
    for copy in copies.iter_mut().filter(|copy| copy.is_tree) {
        copy.is_used = used.iter().any(|place| place.starts_with(&copy.root));
    }
    copies.sort_by(|a, b| a.path.cmp(&b.path));
    copies
}

/// Removes working trees that no process uses, but for what ranks have written in them; unfinished files that no copy is
/// writing; and what is noted of files that are gone.
pub fn prune(indexes: &[Index], trees: &[String], home: Option<&Path>) -> Pruned {
    let mut pruned = Pruned::default();
    let used = used();
    for index in indexes {
        let root = index.root();
        let is_named = trees.iter().any(|tree| Path::new(tree) == root);
        let is_free = !used.iter().any(|place| place.starts_with(&root));
        if root.is_dir() {
            // What cannot be opened stays.
            let Ok(beneath) = Beneath::open(&root) else { continue };
            let is_removed = is_named && is_free && is_tree(&root, home);
            remove_below(index, &beneath, is_removed, &mut pruned);
            if is_removed {
                let near = root.parent().and_then(|directory| fs::read_dir(directory).ok());
                let near = near.into_iter().flatten().flatten().map(|entry| entry.path());
                let holders = near.filter(|path| Seal::is_holder(path, &root));
                for beside in holders.chain([Seal::path(&root)]) {
                    // One that is not there need not be removed.
                    let _ = fs::remove_file(beside);
                }
                pruned.trees += u64::from(fs::remove_dir(&root).is_ok());
            }
        }
        index.remove_file_if_all_is_gone();
    }
    pruned
}

/// Removes unfinished files, and all others that were copied and are unchanged if `all`.
fn remove_below(index: &Index, beneath: &Beneath, all: bool, pruned: &mut Pruned) {
    let mut directories: BTreeSet<Vec<u8>> = BTreeSet::new();
    for path in index.paths() {
        let (parent, _) = split(path);
        directories.insert(parent.to_vec());
        let Ok(Some(seen)) = beneath.look(path) else { continue };
        if all && index.knows(path, &seen.meta.stamp()) && remove(beneath, path) {
            pruned.files += 1;
            pruned.bytes += seen.meta.size;
        }
    }
    for directory in &directories {
        for name in beneath.list(directory).unwrap_or_default() {
            let path = joined(directory, &name);
            if !is_staging_name(&name) {
                continue;
            }
            // A copy that begins to use the file finds it locked, or that it is gone.
            if let Some(_lock) = lock_abandoned(beneath, &path)
                && remove(beneath, &path)
            {
                pruned.files += 1;
            }
        }
    }
    if !all {
        return;
    }
    // A directory comes before what is in it, so the innermost are the last.
    while let Some(directory) = directories.pop_last() {
        let (parent, name) = split(&directory);
        if directory.is_empty() {
            continue;
        }
        beneath.forget();
        let removed = beneath
            .directory(parent)
            .and_then(|parent| rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR));
        // One that is not empty has what ranks have written.
        if removed.is_ok() {
            directories.insert(parent.to_vec());
        }
    }
}

fn remove(beneath: &Beneath, path: &[u8]) -> bool {
    let (parent, name) = split(path);
    let parent = beneath.directory(parent);
    parent.is_ok_and(|parent| rustix::fs::unlinkat(&parent, name, AtFlags::empty()).is_ok())
}

fn is_tree(root: &Path, home: Option<&Path>) -> bool {
    let trees = home.and_then(|home| home.join(TREES).canonicalize().ok());
    trees.is_some_and(|trees| root.parent() == Some(&trees))
}

/// Returns the directories in which processes are.
fn used() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| fs::read_link(process.path().join("cwd")).ok()).collect()
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
