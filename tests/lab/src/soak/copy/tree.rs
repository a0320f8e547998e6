//! Trees of files that a copy replaces by others, and what may be there meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fastrand::Rng;
use thiserror::Error;

use crate::LabError;
use crate::files::make_dir;

/// Names and sizes of the files of a first tree: of several parts of 1 MiB each, of one, and of none.
const FILES: [(&str, usize); 6] = [
    ("big", (8 << 20) + 5),
    ("sub/parts", 3 << 20),
    ("sub/one", 1 << 20),
    ("sub/deep/small", 1000),
    ("sub/deep/byte", 1),
    ("empty", 0),
];
/// Number and size of small files.
const MANY: usize = 40;
const MANY_BYTES: usize = 10_000;

/// Content of files, by their paths below a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tree(BTreeMap<String, Vec<u8>>);

/// What a copy has left that it must not.
#[derive(Debug, Error)]
pub(super) enum Wrong {
    #[error("{path} is neither the old nor the new file: it has {length} bytes{}", gap(.at))]
    Mixed {
        path: String,
        length: usize,
        /// First byte that is not that of the new file.
        at: Option<usize>,
    },
    #[error("{0} is missing")]
    Missing(String),
    #[error("{} is left", .0.join(", "))]
    Left(Vec<String>),
    #[error("{}", .0.describe())]
    Lab(#[from] LabError),
}

fn gap(at: &Option<usize>) -> String {
    at.map_or(String::new(), |at| format!(", and differs from the new one at byte {at}"))
}

impl Tree {
    /// Makes the tree that follows this one: each file stays, or changes in one of several ways. The largest always changes.
    pub(super) fn next(&self, random: &mut Rng) -> Tree {
        let many = (0..MANY).map(|number| (format!("many/{number}"), MANY_BYTES));
        let names = FILES.map(|(name, size)| (name.to_owned(), size)).into_iter().chain(many);
        let mut next = BTreeMap::new();
        for (name, size) in names {
            let mut content = self.0.get(&name).cloned().unwrap_or_default();
            let ways = if name == "big" { 1..6 } else { 0..6 };
            match random.u32(ways) {
                0 if self.0.contains_key(&name) => {}
                1 if !content.is_empty() => {
                    let at = random.usize(..content.len());
                    content[at] = !content[at];
                }
                2 if !content.is_empty() => content.truncate(random.usize(..content.len())),
                3 if !content.is_empty() => content.extend(bytes(random, size / 4 + 1)),
                _ => content = bytes(random, size),
            }
            next.insert(name, content);
        }
        Tree(next)
    }

    /// Writes it to a directory that has `old`. Files that stay are not touched.
    pub(super) fn write(&self, directory: &Path, old: &Tree) -> Result<(), LabError> {
        for (name, content) in &self.0 {
            let path = directory.join(name);
            if old.0.get(name) == Some(content) && path.exists() {
                continue;
            }
            make_dir(path.parent().unwrap_or(directory))?;
            fs::write(&path, content).map_err(LabError::io(format!("write {}", path.display())))?;
        }
        Ok(())
    }

    /// Reads a directory; an empty tree if there is none.
    pub(super) fn read(directory: &Path) -> Result<Tree, LabError> {
        let mut tree = Tree::default();
        if directory.exists() {
            tree.read_below(directory, "")?;
        }
        Ok(tree)
    }

    fn read_below(&mut self, directory: &Path, prefix: &str) -> Result<(), LabError> {
        let failed = |path: &Path| LabError::io(format!("read {}", path.display()));
        for entry in fs::read_dir(directory).map_err(failed(directory))? {
            let entry = entry.map_err(failed(directory))?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = format!("{prefix}{}", name.to_string_lossy());
            if path.is_dir() {
                self.read_below(&path, &format!("{name}/"))?;
            } else {
                let content = fs::read(&path).map_err(failed(&path))?;
                self.0.insert(name, content);
            }
        }
        Ok(())
    }

    /// Checks that each file of `new` is here as in `old`, which may have none, or as in `new`.
    pub(super) fn must_be_between(&self, old: &Tree, new: &Tree) -> Result<(), Wrong> {
        for (name, wanted) in &new.0 {
            let (found, before) = (self.0.get(name), old.0.get(name));
            if found == Some(wanted) || found == before {
                continue;
            }
            let Some(found) = found else { return Err(Wrong::Missing(name.clone())) };
            let at = found.iter().zip(wanted).position(|(a, b)| a != b);
            return Err(Wrong::Mixed { path: name.clone(), length: found.len(), at });
        }
        Ok(())
    }

    /// Lists what `other` does not have.
    pub(super) fn beside(&self, other: &Tree) -> Vec<String> {
        self.0.keys().filter(|name| !other.0.contains_key(*name)).cloned().collect()
    }
}

fn bytes(random: &mut Rng, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    random.fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let own =
            |(name, content): &(&str, &str)| ((*name).to_owned(), content.as_bytes().to_vec());
        Tree(files.iter().map(own).collect())
    }

    #[test]
    fn files_are_old_or_new_and_never_both() {
        let (old, new) = (tree(&[("a", "old"), ("b", "old")]), tree(&[("a", "new"), ("b", "new")]));
        let is_right = |files: &[(&str, &str)]| tree(files).must_be_between(&old, &new).is_ok();
        assert!(is_right(&[("a", "old"), ("b", "new")]) && is_right(&[("a", "new"), ("b", "new")]));
        assert!(!is_right(&[("a", "nld"), ("b", "new")]) && !is_right(&[("a", "new")]));
        // What was not there may be missing, and what has to be new may not be old.
        let nothing = Tree::default();
        assert!(nothing.must_be_between(&nothing, &new).is_ok());
        assert!(nothing.must_be_between(&new, &new).is_err());
        assert_eq!(tree(&[("a", ""), (".a.rlaunch-1", "")]).beside(&old), [".a.rlaunch-1"]);
    }

    #[test]
    fn trees_follow_each_other_by_their_seed() {
        let next = |old: &Tree, seed| old.next(&mut Rng::with_seed(seed));
        let first = next(&Tree::default(), 1);
        let second = next(&first, 2);
        assert_eq!((&first, &second), (&next(&Tree::default(), 1), &next(&first, 2)));
        assert_ne!(first.0["big"], second.0["big"]);
        let same = first.0.iter().filter(|(name, content)| second.0[*name] == **content).count();
        assert!((1..first.0.len()).contains(&same), "{same}");
    }

    #[test]
    fn a_written_tree_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let first = Tree::default().next(&mut Rng::with_seed(3));
        first.write(directory.path(), &Tree::default()).unwrap();
        let second = first.next(&mut Rng::with_seed(4));
        second.write(directory.path(), &first).unwrap();
        assert_eq!(Tree::read(directory.path()).unwrap(), second);
        assert_eq!(Tree::read(&directory.path().join("none")).unwrap(), Tree::default());
    }
}
