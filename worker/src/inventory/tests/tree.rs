//! Recorded machines, `worker/fixtures/*.tree`, as directories.
//!
//! `[/directory]` begins a part; in it `name = text` is a file, with `\n` and `\t`,
//! `name = hex@100:0d00@140:0f` one of zeros but for these bytes at 0x100 and 0x140, and
//! `name -> /path` a link. After `@name = 7 8 10-12`, a part that mentions `{name}` is there for
//! each of these values.

use crate::inventory::{Root, read};
use rlaunch_bootstrap::inventory::Inventory;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What is read of a recorded machine.
pub(super) fn fixture(name: &str) -> Inventory {
    read(&Root::recorded(recorded(name).path()))
}

/// A recorded machine.
pub(super) fn recorded(name: &str) -> TempDir {
    lay_out(&fs::read_to_string(directory().join(name).with_extension("tree")).unwrap())
}

/// The names of all recorded machines.
pub(super) fn all() -> Vec<String> {
    let paths = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let trees = paths.filter(|path| path.extension().is_some_and(|end| end == "tree"));
    trees.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

pub(super) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

pub(super) fn lay_out(text: &str) -> TempDir {
    let (root, text) = (directory_in_memory(), expand(text));
    assert!(!text.contains('{'), "lists of one part are as long as each other, and have names");
    let mut directory = root.path().to_owned();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(path) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            directory = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(&directory).unwrap();
        } else if let Some((name, target)) = line.split_once(" -> ") {
            let target = root.path().join(target.trim_start_matches('/'));
            symlink(target, directory.join(name)).unwrap();
        } else {
            let (name, text) = line.split_once(" =").unwrap();
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = text.trim_start();
            match text.strip_prefix("hex@") {
                Some(parts) => fs::write(path, sparse(parts)).unwrap(),
                None => fs::write(path, text.replace("\\n", "\n").replace("\\t", "\t")).unwrap(),
            }
        }
    }
    root
}

/// Some disks take long for thousands of small files.
pub(super) fn directory_in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Bytes of `OFFSET:BYTES@OFFSET:BYTES`, all in hexadecimal digits, and zeros between.
fn sparse(parts: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (offset, digits) in parts.split('@').map(|part| part.split_once(':').unwrap()) {
        bytes.resize(usize::from_str_radix(offset, 16).unwrap(), 0);
        let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
        bytes.extend(pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()));
    }
    bytes
}

/// Writes parts that mention `{name}` once for each value of that.
fn expand(text: &str) -> String {
    let mut values: Vec<(&str, Vec<String>)> = Vec::new();
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if let Some((name, list)) = line.strip_prefix("@").and_then(|line| line.split_once(" = ")) {
            values.push((name, list.split(' ').flat_map(range).collect()));
            continue;
        }
        if line.starts_with('[') {
            parts.push(String::new());
        }
        let part = parts.last_mut().unwrap();
        part.push_str(line);
        part.push('\n');
    }
    let times = |part: &String| {
        let mentioned = values.iter().filter(|(name, _)| part.contains(&format!("{{{name}}}")));
        mentioned.map(|(_, values)| values.len()).max().unwrap_or(1)
    };
    let written = |part: &String, index: usize| {
        let one = |text: String, (name, values): &(&str, Vec<String>)| match values.get(index) {
            Some(value) => text.replace(&format!("{{{name}}}"), value),
            None => text,
        };
        values.iter().fold(part.clone(), one)
    };
    parts.iter().flat_map(|part| (0..times(part)).map(move |n| written(part, n))).collect()
}

/// `0-3`, or a word that stands for itself.
fn range(word: &str) -> Vec<String> {
    let ends = word.split_once('-').map(|(first, last)| (first.parse::<u32>(), last.parse()));
    match ends {
        Some((Ok(first), Ok(last))) => (first..=last).map(|n| n.to_string()).collect(),
        _ => vec![word.to_owned()],
    }
}
