//! Sources, and the tests on hosts and guests that cover them.
//!
//! A row lists not all tests that a source could break, which for most sources would be every test,
//! but the few that would fail first. A run without `--changed` covers the rest.

mod rows;
mod running;

use std::path::Path;

use super::paths;
use rows::ROWS;

/// Sources, and the tests on hosts and guests that run when one of them changes.
///
/// A test is named by its module, or by the beginning of its name after `module::`. If several rows
/// name a file, the row with the longest path counts.
#[derive(Debug)]
pub(super) struct Coverage {
    /// Files, and folders with a slash at the end.
    pub(super) sources: &'static [&'static str],
    pub(super) netns: &'static [&'static str],
    pub(super) vm: &'static [&'static str],
}

/// Tests for sources that every job runs, or that no row names: a job from its start to each of its
/// ends.
pub(super) const SMOKE: Coverage = Coverage {
    sources: &[],
    netns: &["hello", "failing", "ending", "lost", "teardown", "output", "stdin", "local"],
    vm: &["launching"],
};

/// Tests that take minutes or run hundreds of jobs. They run without `--changed`, or when their own
/// file has changed.
pub(super) const LONG: &[&str] = &[
    "communicator::no_message_is_lost_or_wrong_in_twenty_seconds",
    "hello::a_hundred_launches_in_a_row_all_work",
];

/// Test modules that no row names, since they do not test rlaunch.
#[cfg(test)]
pub(super) const UNREACHED: &[&str] = &[
    // Tests of other launchers, whose behaviour tests/README.md describes.
    "peers", // Tests of the lab's guests.
    "guests",
];

/// Lists all rows.
pub(super) fn rows() -> impl Iterator<Item = &'static Coverage> {
    ROWS.iter().chain(running::ROWS)
}

/// Finds the row of a file, and the path by which the row names it.
pub(super) fn row_of(file: &Path) -> Option<(&'static str, &'static Coverage)> {
    let all = rows().flat_map(|row| row.sources.iter().map(move |name| (*name, row)));
    all.filter(|(name, _)| paths::names(name, file)).max_by_key(|(name, _)| name.len())
}
