//! Files that crates compile in or read in tests, though they are outside the crates' directories.

use std::collections::BTreeSet;
use std::path::Path;

use super::paths;

/// Files and folders, with the crates elsewhere that read them. Files that tests on hosts read are
/// in [`super::table`], since they do not affect lints and unit tests.
const READERS: &[(&str, &[&str])] = &[
    ("bootstrap/rank-table.example.json", &["rlaunch-fuzz"]),
    // Tests of the launcher and the lab use the recorded machines, too.
    ("worker/fixtures/", &["rlaunch", "rlaunch-lab", "rlaunch-tests"]),
    ("examples/hello/", &["rlaunch-comm", "rlaunch-capi", "rlaunch-python"]),
    ("examples/all_reduce/", &["rlaunch-comm", "rlaunch-capi", "rlaunch-python"]),
    ("examples/ring/", &["rlaunch-comm"]),
    ("examples/services/", &["rlaunch-client"]),
    ("examples/guides/connectx3/", &["rlaunch"]),
    ("README.md", &["rlaunch"]),
    ("tests/netns/mpi/program.c", &["rlaunch-lab"]),
    ("tests/netns/mpi/program.py", &["rlaunch-lab"]),
];

/// Finds the crates that read a file outside their directories.
pub(super) fn crates_that_read(file: &Path) -> BTreeSet<String> {
    let rows = READERS.iter().filter(|(named, _)| paths::names(named, file));
    rows.flat_map(|(_, crates)| crates.iter().map(|name| (*name).to_owned())).collect()
}

#[cfg(test)]
pub(super) fn all() -> &'static [(&'static str, &'static [&'static str])] {
    READERS
}
