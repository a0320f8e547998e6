//! Files that crates read which are not in their own directories: compiled in, or read by tests.

use std::collections::BTreeSet;
use std::path::Path;

use super::paths;

/// Files and folders outside, and the crates that read them. Tests on hosts are in
/// [`super::table`]: what they read has no part in a crate's lints and unit tests.
const READERS: &[(&str, &[&str])] = &[
    ("bootstrap/rank-table.example.json", &["rlaunch-fuzz"]),
    // The launcher reads what the agent has read of recorded machines.
    ("worker/fixtures/", &["rlaunch", "rlaunch-lab", "rlaunch-tests"]),
    ("examples/hello/", &["rlaunch-comm", "rlaunch-capi", "rlaunch-python"]),
    ("examples/all_reduce/", &["rlaunch-comm", "rlaunch-capi", "rlaunch-python"]),
    ("examples/ring/", &["rlaunch-comm"]),
    ("examples/services/", &["rlaunch-bootstrap"]),
    ("examples/guides/connectx3/", &["rlaunch"]),
    ("README.md", &["rlaunch"]),
];

/// Finds the crates that read a file which is not theirs.
pub(super) fn crates_that_read(file: &Path) -> BTreeSet<String> {
    let rows = READERS.iter().filter(|(named, _)| paths::names(named, file));
    rows.flat_map(|(_, crates)| crates.iter().map(|name| (*name).to_owned())).collect()
}

#[cfg(test)]
pub(super) fn all() -> &'static [(&'static str, &'static [&'static str])] {
    READERS
}
