//! From changed files to everything that is run for them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::crates::{self, Crates};
use super::selection::{NETNS, TestSelection, VM};
use super::{fuzz, paths, readers, table};
use crate::{LabError, dist};

/// Files on which every result depends, and why.
const EVERYTHING: &[(&str, &str)] = &[
    ("Cargo.lock", "everything is built with these versions"),
    ("Cargo.toml", "everything is built with these profiles and dependencies"),
    (".cargo/", "everything is built with these flags"),
    ("tests/lab/", "it builds and tests everything"),
    (".ci/", "it tests everything"),
];

/// Settings of clippy, which change no program.
const LINTS: &str = ".clippy.toml";

/// Files that only formatting and `cargo deny` read, if anything does; both always check the whole
/// workspace.
const PLAIN: &[&str] =
    &["LICENSE", ".gitignore", ".rustfmt.toml", ".deny.toml", ".advisories.toml"];

/// Pages of Markdown that tests read.
const READ: &[&str] = &["README.md", "worker/comm/README.md", "launcher/help/", "examples/guides/"];

/// Sources of the simulation.
const SIM: &[&str] = &[
    "tests/sim/",
    "bootstrap/Cargo.toml",
    "bootstrap/src/rendezvous/",
    "bootstrap/src/lib.rs",
    "bootstrap/src/id.rs",
    "bootstrap/src/job/",
];

const FUZZ: &str = "rlaunch-fuzz";

/// Folder of all tests. Files there that no row of the table names do not run on hosts.
const TESTS: &str = "tests";
/// Crate of the tests on hosts and guests.
const ON_HOSTS: &str = "rlaunch-tests";

/// Everything that is run after a change.
#[derive(Debug)]
pub(crate) struct Reach {
    /// The crates that are linted, and whose unit tests run.
    pub(crate) packages: BTreeSet<String>,
    /// Whether only pages that no test reads have changed, so that only formatting has to be
    /// checked.
    pub(crate) doc_only: bool,
    /// Whether a change reaches everything, including the lab's own tests.
    pub(crate) everything: bool,
    /// Whether sources of the simulation have changed.
    pub(crate) sim: bool,
    /// Fuzz targets that search for their full time; the others only replay known inputs. None if
    /// no fuzzed crate has changed.
    pub(crate) fuzz: Option<Vec<String>>,
    /// Tests on hosts.
    pub(crate) netns: TestSelection,
    /// Tests on guests.
    pub(crate) vm: TestSelection,
    /// Notes for the user: files that reach everything, files that no row of the table names.
    pub(crate) notes: Vec<String>,
    described: Vec<String>,
}

/// Crates and tests of the workspace.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) crates: Crates,
    pub(super) netns: Vec<String>,
    pub(super) vm: Vec<String>,
}

impl Workspace {
    /// Reads the manifests and the lists of test modules.
    pub(super) fn read() -> Result<Workspace, LabError> {
        let list = |folder: &str| {
            let file = dist::workspace().join(folder).join("main.rs");
            let operation = format!("read the list of tests {}", file.display());
            fs::read_to_string(&file).map_err(LabError::io(operation))
        };
        Ok(Workspace {
            crates: Crates::from_cargo()?,
            netns: NETNS.modules(&list(NETNS.folder)?),
            vm: VM.modules(&list(VM.folder)?),
        })
    }
}

impl Reach {
    /// Decides what is run after these files have changed.
    pub(crate) fn from_files(files: &[PathBuf]) -> Result<Reach, LabError> {
        Ok(Reach::from_workspace(&Workspace::read()?, files))
    }

    /// Decides what is run in a given workspace.
    pub(super) fn from_workspace(workspace: &Workspace, files: &[PathBuf]) -> Reach {
        let mut builder = ReachBuilder::new(workspace);
        files.iter().filter(|file| !is_plain(file)).for_each(|file| builder.add(file));
        let test_files = || files.iter().map(PathBuf::as_path);
        builder.netns.join(&NETNS.changed(test_files()));
        builder.vm.join(&VM.changed(test_files()));
        builder.finish(files)
    }

    /// Describes line by line what is chosen, what is left out, and why.
    pub(crate) fn describe(&self) -> String {
        let lines: Vec<&str> =
            self.notes.iter().chain(&self.described).map(String::as_str).collect();
        lines.join("\n")
    }
}

/// Reach that is being collected, file by file.
struct ReachBuilder<'a> {
    workspace: &'a Workspace,
    /// Crates with changed sources: crates that depend on them are tested as well.
    changed: BTreeSet<String>,
    /// Crates of which only tests or files that tests read have changed.
    own: BTreeSet<String>,
    everything: bool,
    sim: bool,
    netns: TestSelection,
    vm: TestSelection,
    /// Changed sources, by their names in the table.
    from: BTreeSet<String>,
    notes: Vec<String>,
}

impl<'a> ReachBuilder<'a> {
    fn new(workspace: &'a Workspace) -> ReachBuilder<'a> {
        ReachBuilder {
            workspace,
            changed: BTreeSet::new(),
            own: BTreeSet::new(),
            everything: false,
            sim: false,
            netns: TestSelection::default(),
            vm: TestSelection::default(),
            from: BTreeSet::new(),
            notes: Vec::new(),
        }
    }

    /// Adds what one file reaches.
    fn add(&mut self, file: &Path) {
        if let Some((_, why)) = EVERYTHING.iter().find(|(name, _)| paths::names(name, file)) {
            self.notes.push(format!("{} reaches everything: {why}", file.display()));
            self.everything = true;
            return;
        }
        if file == Path::new(LINTS) {
            self.notes.push(format!("{LINTS} changes the lints of all crates, and no program"));
            self.own.extend(self.workspace.crates.names());
            return;
        }
        self.sim |= paths::any_names(SIM, file);
        self.own.extend(readers::crates_that_read(file));
        let owner = self.workspace.crates.owner(file);
        let owner = owner.map(|(name, inside)| (name.to_owned(), crates::is_built_from(inside)));
        match &owner {
            Some((name, true)) => self.changed.insert(name.clone()),
            Some((name, false)) => self.own.insert(name.clone()),
            None => false,
        };
        self.add_on_hosts(file, owner);
    }

    /// Adds what one file reaches on hosts and guests. Files of these tests themselves are handled
    /// elsewhere.
    fn add_on_hosts(&mut self, file: &Path, owner: Option<(String, bool)>) {
        if let Some((name, row)) = table::row_of(file) {
            self.from.insert(name.to_owned());
            return self.add_row(row);
        }
        self.from.insert(file.display().to_string());
        match owner {
            // Hosts run nothing of it, or its tests are known by its path.
            _ if [NETNS, VM].iter().any(|stage| file.starts_with(stage.folder)) => {}
            Some((name, _)) if name == ON_HOSTS => {
                self.notes.push(format!("{}: all tests on hosts use it", file.display()));
                (self.netns, self.vm) = (TestSelection::All, TestSelection::All);
            }
            Some((_, false)) => {}
            Some(_) if file.starts_with(TESTS) => {}
            _ => {
                let names = table::SMOKE.netns.join(", ");
                let file = file.display();
                self.notes.push(format!("{file}: no row of the table names it, so: {names}"));
                self.add_row(&table::SMOKE);
            }
        }
    }

    fn add_row(&mut self, row: &table::Coverage) {
        self.netns.add(row.netns.iter().copied());
        self.vm.add(row.vm.iter().copied());
    }

    fn finish(self, files: &[PathBuf]) -> Reach {
        let all = self.workspace.crates.names();
        let reached = self.workspace.crates.reached(&self.changed);
        let mut packages: BTreeSet<String> = reached.into_iter().chain(self.own).collect();
        let (mut netns, mut vm, mut sim) = (self.netns, self.vm, self.sim);
        let mut targets = fuzz::fuzz_targets_changed(files);
        if self.everything {
            packages = all.clone();
            (netns, vm, sim) = (TestSelection::All, TestSelection::All, true);
            targets = fuzz::all().collect();
        }
        let is_fuzzed = packages.contains(FUZZ);
        let targets: Vec<String> = targets.into_iter().map(str::to_owned).collect();
        let fuzz = is_fuzzed.then_some(targets);
        let from = shortened(&self.from);
        let described = vec![
            describe_packages(&packages, all.len()),
            describe_sim(sim),
            describe_fuzz(&fuzz),
            netns.describe(&NETNS, &self.workspace.netns, &from),
            vm.describe(&VM, &self.workspace.vm, &from),
        ];
        Reach {
            doc_only: packages.is_empty() && netns.is_nothing() && vm.is_nothing(),
            everything: self.everything,
            described,
            notes: self.notes,
            packages,
            sim,
            fuzz,
            netns,
            vm,
        }
    }
}

/// Returns whether no program and no test reads a file.
fn is_plain(file: &Path) -> bool {
    let is_page = file.extension().is_some_and(|extension| extension == "md");
    paths::any_names(PLAIN, file) || (is_page && !paths::any_names(READ, file))
}

fn describe_packages(packages: &BTreeSet<String>, all: usize) -> String {
    if packages.len() == all {
        return format!("lints and unit tests: all {all} crates");
    }
    if packages.is_empty() {
        return "lints and unit tests: only formatting: no crate reads what changed".into();
    }
    let named: Vec<&str> = packages.iter().map(String::as_str).collect();
    let named = named.join(", ");
    format!(
        "lints and unit tests: {named} (of {all} crates); left out: those that do not \
         depend on what changed"
    )
}

fn describe_sim(sim: bool) -> String {
    let chosen = if sim { "its seeds" } else { "nothing: its sources have not changed" };
    format!("sim: {chosen}")
}

fn describe_fuzz(targets: &Option<Vec<String>>) -> String {
    let all = fuzz::all().count();
    match targets {
        None => "fuzz: nothing: no target depends on what changed".into(),
        Some(some) if some.len() == all => format!("fuzz: all {all} targets"),
        Some(some) if some.is_empty() => {
            format!(
                "fuzz: known inputs of all {all} targets; left out: the search, as no target runs what changed"
            )
        }
        Some(some) => format!(
            "fuzz: {} (of {all} targets); left out: the others, which only replay known inputs",
            some.join(", ")
        ),
    }
}

/// Joins a few names, with the number of the others.
fn shortened(names: &BTreeSet<String>) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = names.len().saturating_sub(SHOWN);
    match (shown.join(", "), more) {
        (none, _) if none.is_empty() => "what changed".into(),
        (shown, 0) => shown,
        (shown, more) => format!("{shown} and {more} more"),
    }
}
