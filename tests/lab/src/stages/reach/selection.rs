//! Sets of tests of a stage with hosts or guests.

use std::collections::BTreeSet;
use std::path::Path;

use super::table::LONG;

/// Stage whose tests need hosts or guests.
#[derive(Debug)]
pub(super) struct HostStage {
    pub(super) name: &'static str,
    /// Folder of its tests, one module each, from the workspace.
    pub(super) folder: &'static str,
    /// Modules without tests, which all tests share.
    support: &'static [&'static str],
}

pub(super) const NETNS: HostStage = HostStage {
    name: "netns",
    folder: "tests/netns",
    support: &["guide", "running", "support", "terminal"],
};
pub(super) const VM: HostStage = HostStage {
    name: "vm",
    folder: "tests/vm",
    support: &["background", "guide", "support", "tools"],
};

/// File of a stage that lists its modules.
const LIST: &str = "main.rs";

impl HostStage {
    /// Lists the modules with tests that the text of the stage's `main.rs` declares.
    pub(super) fn modules(&self, list: &str) -> Vec<String> {
        let named = list.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        named.filter(|name| !self.support.contains(name)).map(str::to_owned).collect()
    }

    /// Returns the beginning of the names of the tests in a file, or nothing if all tests use the
    /// file.
    fn tests_in(&self, inside: &Path) -> Option<String> {
        let is_source = inside.extension().is_some_and(|extension| extension == "rs");
        let stem = inside.with_extension("");
        let mut parts = stem.components().map(|part| part.as_os_str().to_string_lossy());
        let module = parts.next().unwrap_or_default().into_owned();
        if inside == Path::new(LIST) || self.support.contains(&&*module) {
            return None;
        }
        let below = parts.filter(|_| is_source).map(|part| format!("{part}::"));
        Some(format!("{module}::{}", below.collect::<String>()))
    }

    /// Selects tests for changed files; files of other folders are ignored.
    pub(super) fn changed<'a>(&self, files: impl Iterator<Item = &'a Path>) -> TestSelection {
        let inside = files.filter_map(|file| file.strip_prefix(self.folder).ok());
        let (list, own): (Vec<&Path>, Vec<&Path>) =
            inside.partition(|file| *file == Path::new(LIST));
        let mut selection = TestSelection::Nothing;
        // A changed list without changed modules may affect all tests. Adding or removing a module
        // changes the list, too.
        if own.is_empty() && !list.is_empty() {
            return TestSelection::All;
        }
        for file in own {
            match self.tests_in(file) {
                None => return TestSelection::All,
                Some(tests) => {
                    let long = LONG.iter().filter(|long| long.starts_with(&tests));
                    selection.add(long.copied().chain([&*tests]));
                }
            }
        }
        selection
    }
}

/// Set of tests of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum TestSelection {
    /// No tests, so that no hosts are needed.
    #[default]
    Nothing,
    /// All tests, including the longest.
    All,
    /// Tests whose names, as libtest prints them, begin with one of these.
    Some(BTreeSet<String>),
}

impl TestSelection {
    /// Returns whether the set contains a test, given by the name that `--list` prints. The filters
    /// of libtest cannot be used: `lost::` would match `teardown::lost::…`.
    pub(crate) fn includes(&self, test: &str) -> bool {
        match self {
            TestSelection::Nothing => false,
            TestSelection::All => true,
            TestSelection::Some(names) if LONG.contains(&test) => names.contains(test),
            TestSelection::Some(names) => names.iter().any(|name| test.starts_with(name.as_str())),
        }
    }

    /// Returns whether the set may contain tests of a module.
    pub(crate) fn includes_module(&self, module: &str) -> bool {
        match self {
            TestSelection::Nothing => false,
            TestSelection::All => true,
            TestSelection::Some(names) => names.iter().any(|name| module_of(name) == module),
        }
    }

    /// Returns whether the set is empty.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == TestSelection::Nothing
    }

    /// Adds modules, or beginnings of names in modules.
    pub(super) fn add<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let mut names = names.into_iter().map(whole).peekable();
        if names.peek().is_none() {
            return;
        }
        match self {
            TestSelection::All => {}
            TestSelection::Some(all) => all.extend(names),
            TestSelection::Nothing => *self = TestSelection::Some(names.collect()),
        }
    }

    /// Adds another set.
    pub(super) fn join(&mut self, other: &TestSelection) {
        match other {
            TestSelection::Nothing => {}
            TestSelection::All => *self = TestSelection::All,
            TestSelection::Some(names) => self.add(names.iter().map(String::as_str)),
        }
    }

    /// Describes in a line which of a stage's modules are selected and which are not. `from` names
    /// the changed files.
    pub(super) fn describe(&self, stage: &HostStage, modules: &[String], from: &str) -> String {
        let (name, all) = (stage.name, modules.len());
        match self {
            TestSelection::Nothing => {
                format!("{name}: nothing: no row of the table leads there from {from}")
            }
            TestSelection::All => format!("{name}: all {all} files"),
            TestSelection::Some(names) => {
                let taken = modules.iter().filter(|module| self.includes_module(module)).count();
                // Names in a module that is selected as a whole are not listed.
                let is_more = |test: &&String| {
                    let module = whole(module_of(test));
                    **test == module || !names.contains(&module)
                };
                let chosen = names.iter().filter(is_more).map(|test| shown(test));
                let chosen: Vec<String> = chosen.collect();
                let long = LONG.iter().filter(|long| {
                    !names.contains(**long)
                        && names.iter().any(|name| long.starts_with(name.as_str()))
                });
                let long: String =
                    long.map(|test| format!(", and {test}, which takes long")).collect();
                format!(
                    "{name}: {} (of {all} files); left out: {} files that no row of the table \
                     names for {from}{long}",
                    chosen.join(", "),
                    all.saturating_sub(taken)
                )
            }
        }
    }
}

/// Completes a module's name to the beginning of names of its tests.
fn whole(name: &str) -> String {
    if name.contains("::") { name.to_owned() } else { format!("{name}::") }
}

pub(super) fn module_of(name: &str) -> &str {
    name.split("::").next().unwrap_or(name)
}

/// Formats the beginning of test names for messages.
fn shown(name: &str) -> String {
    match name.strip_suffix("::") {
        Some(module) => module.to_owned(),
        None => format!("{name}…"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(names: &[&str]) -> TestSelection {
        let mut selection = TestSelection::default();
        selection.add(names.iter().copied());
        selection
    }

    #[test]
    fn modules_and_beginnings_of_names_are_taken() {
        let some = selection(&["lost", "rsh::a_job", "mesh"]);
        for (test, expected) in [
            ("lost::a_host_falls_silent", true),
            ("teardown::lost::a_host_falls_silent", false),
            ("rsh::a_job_runs_in_containers", true),
            ("rsh::the_guide_on_mpijobs", false),
            ("mesh::six", true),
            ("mesh_watch::six", false),
        ] {
            assert_eq!(some.includes(test), expected, "{test}");
        }
        assert!(some.includes_module("rsh") && !some.includes_module("teardown"));
        assert!(TestSelection::All.includes("a::b") && !TestSelection::Nothing.includes("a::b"));
        assert_eq!(selection(&[]), TestSelection::Nothing);
    }

    #[test]
    fn what_takes_long_is_for_the_whole_run_or_a_change_of_its_file() {
        let long = "hello::a_hundred_launches_in_a_row_all_work";
        assert!(!selection(&["hello"]).includes(long));
        assert!(TestSelection::All.includes(long));
        let changed = NETNS.changed([Path::new("tests/netns/hello.rs")].into_iter());
        assert!(changed.includes(long) && changed.includes("hello::every_host_answers_once"));
    }

    #[test]
    fn a_changed_file_of_tests_is_run_and_a_shared_one_runs_all() {
        let changed = |files: &[&str]| NETNS.changed(files.iter().copied().map(Path::new));
        assert_eq!(changed(&["tests/vm/mesh.rs", "tests/guide.rs"]), TestSelection::Nothing);
        assert_eq!(changed(&["tests/netns/output.rs"]), selection(&["output"]));
        let inner = changed(&["tests/netns/teardown/lost.rs"]);
        assert_eq!(inner, selection(&["teardown::lost::"]));
        assert_eq!(changed(&["tests/netns/support.rs", "tests/netns/a.rs"]), TestSelection::All);
        // The list of modules changes with each new file.
        assert_eq!(changed(&["tests/netns/main.rs"]), TestSelection::All);
        assert_eq!(changed(&["tests/netns/main.rs", "tests/netns/a.rs"]), selection(&["a"]));
        let data = VM.changed([Path::new("tests/vm/counts.c")].into_iter());
        assert_eq!(data, selection(&["counts"]));
    }

    #[test]
    fn a_choice_is_said_with_what_is_left_out() {
        let modules = ["hello", "lost", "rsh", "teardown"].map(str::to_owned);
        let some = selection(&["hello", "rsh::the_guide", "rsh::an_mpijob", "hello::every"]);
        assert_eq!(
            some.describe(&NETNS, &modules, "x/"),
            "netns: hello, rsh::an_mpijob…, rsh::the_guide… (of 4 files); left out: 2 files that no \
             row of the table names for x/, and hello::a_hundred_launches_in_a_row_all_work, which \
             takes long"
        );
        let nothing = TestSelection::Nothing.describe(&VM, &modules, "x/");
        assert_eq!(nothing, "vm: nothing: no row of the table leads there from x/");
    }
}
