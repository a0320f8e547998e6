//! Tests of what example changes of this workspace reach.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::LazyLock;

use super::choice::Workspace;
use super::selection::TestSelection;
use super::{Reach, fuzz};

static WORKSPACE: LazyLock<Workspace> = LazyLock::new(|| Workspace::read().unwrap());

fn reach(files: &[&str]) -> Reach {
    let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    Reach::from_workspace(&WORKSPACE, &files)
}

fn packages(reach: &Reach) -> String {
    reach.packages.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}

/// Lists the beginnings of names that are selected.
fn names(selection: &TestSelection) -> String {
    match selection {
        TestSelection::Some(names) => {
            names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn a_line_of_the_launchers_output() {
    let reach = reach(&["launcher/src/run/output/line_arbiter.rs"]);
    assert_eq!(packages(&reach), "rlaunch rlaunch-fuzz");
    assert_eq!(names(&reach.netns), "output:: printing:: teardown::reader::");
    assert_eq!(reach.vm, TestSelection::Nothing);
    assert_eq!(
        (reach.sim, reach.doc_only, reach.fuzz.as_deref()),
        (false, false, Some([].as_slice()))
    );
    assert!(reach.notes.is_empty(), "{:?}", reach.notes);
    let described = reach.describe();
    for line in [
        "lints and unit tests: rlaunch, rlaunch-fuzz (of 23 crates); left out: those that do not \
         depend on what changed",
        "fuzz: known inputs of all 35 targets; left out: the search, as no target runs what changed",
        "sim: nothing: its sources have not changed",
        "vm: nothing: no row of the table leads there from launcher/src/run/output/",
    ] {
        assert!(described.lines().any(|one| one == line), "{line}\nis not in\n{described}");
    }
    let line = "netns: output, printing, teardown::reader (of ";
    assert!(described.contains(line) && described.contains("; left out: "), "{described}");
}

#[test]
fn a_file_that_the_fuzzer_compiles_as_well() {
    let reach = reach(&["launcher/src/job/tag_pattern.rs"]);
    assert_eq!(packages(&reach), "rlaunch rlaunch-fuzz");
    assert_eq!(reach.fuzz.as_deref(), Some(["tag-pattern".to_owned()].as_slice()));
}

#[test]
fn a_line_of_the_verbs() {
    let reach = reach(&["worker/verbs/src/queue/queue_pair.rs"]);
    let built = "rlaunch-bench rlaunch-capi rlaunch-comm rlaunch-comm-suite rlaunch-fuzz \
                 rlaunch-prover rlaunch-python rlaunch-verbs";
    assert_eq!(packages(&reach), built);
    assert_eq!(reach.netns, TestSelection::Nothing);
    for module in ["verbs", "counts", "prover", "mesh", "communicator"] {
        assert!(reach.vm.includes_module(module), "{module}");
    }
    // Known inputs are replayed, since the communicator's decoders are built from it.
    assert_eq!((reach.sim, reach.fuzz.as_deref()), (false, Some([].as_slice())));
}

#[test]
fn a_readme_is_what_a_test_compares_with() {
    let front = reach(&["README.md"]);
    assert_eq!((packages(&front), front.netns.is_nothing()), ("rlaunch".to_owned(), true));
    assert_eq!(packages(&reach(&["launcher/help/env.md"])), "rlaunch");
    let reach = reach(&["worker/comm/README.md"]);
    assert_eq!(
        (packages(&reach), names(&reach.netns)),
        ("rlaunch-comm".to_owned(), "library::numpy_arrays".to_owned())
    );
    assert_eq!(reach.vm, TestSelection::Nothing);
    assert!(!reach.doc_only && !reach.sim && reach.fuzz.is_none());
    let described = reach.describe();
    assert!(
        described.contains("fuzz: nothing: no target depends on what changed\n"),
        "{described}"
    );
}

#[test]
fn pages_that_no_test_reads() {
    let reach = reach(&["LICENSE", "examples/train/README.md", "worker/notes.md", ".gitignore"]);
    assert!(reach.doc_only, "{reach:?}");
    assert!(reach.packages.is_empty() && reach.netns.is_nothing() && reach.vm.is_nothing());
}

#[test]
fn a_lock_file_reaches_everything_and_says_so() {
    for file in ["Cargo.lock", "Cargo.toml", ".cargo/config.toml", "tests/lab/src/x.rs", ".ci/run"]
    {
        let reach = reach(&["README.md", file]);
        assert_eq!(reach.packages, WORKSPACE.crates.names());
        assert!(reach.everything && reach.sim && !reach.doc_only);
        assert_eq!((&reach.netns, &reach.vm), (&TestSelection::All, &TestSelection::All));
        assert_eq!(reach.fuzz.as_ref().map(Vec::len), Some(fuzz::all().count()));
        assert!(reach.describe().contains(&format!("{file} reaches everything: ")));
    }
}

#[test]
fn a_source_that_no_row_names_is_reported_and_tried_by_the_smallest_jobs() {
    let reach = reach(&["launcher/src/unheard_of.rs"]);
    assert_eq!(packages(&reach), "rlaunch rlaunch-fuzz");
    let chosen = ["hello", "ending", "lost", "teardown", "output"];
    assert!(chosen.into_iter().all(|module| reach.netns.includes_module(module)));
    assert!(reach.vm.includes_module("launching") && !reach.vm.includes_module("mesh"));
    let note = "launcher/src/unheard_of.rs: no row of the table names it, so: hello, ";
    assert!(reach.describe().starts_with(note), "{}", reach.describe());
}

#[test]
fn a_fixture_is_for_the_unit_tests_that_read_it() {
    let recorded = reach(&["worker/fixtures/dgx.tree"]);
    assert_eq!(packages(&recorded), "rlaunch rlaunch-lab rlaunch-tests rlaunch-worker");
    assert_eq!(names(&recorded.netns), "guides::");
    let output = reach(&["launcher/fixtures/any.txt", "launcher/goldens/any.txt"]);
    assert_eq!(packages(&output), "rlaunch");
    assert!(output.netns.is_nothing() && output.vm.is_nothing() && !output.doc_only);
    let table = reach(&["bootstrap/rank-table.schema.json"]);
    assert_eq!(packages(&table), "rlaunch-bootstrap");
    assert!(table.netns.includes("rank_table::people_get_columns") && !table.sim);
}

#[test]
fn what_launcher_and_agents_agree_on_reaches_all_that_is_built_from_it() {
    let tree = reach(&["bootstrap/src/rendezvous/link.rs"]);
    let left = ["horovod", "lab", "lock", "plot", "pmi", "stopwatch", "sys", "tests", "verbs"];
    let left = left.map(|name| format!("rlaunch-{name}"));
    let mut reached = WORKSPACE.crates.names();
    reached.retain(|name| !left.contains(name));
    assert_eq!(tree.packages, reached);
    assert!(tree.sim);
    let targets: BTreeSet<String> = tree.fuzz.unwrap().into_iter().collect();
    let expected = ["edge", "from-rank", "gathered", "node", "server", "to-rank"];
    assert_eq!(targets, expected.map(str::to_owned).into());
    assert!(!reach(&["bootstrap/src/inventory/pci.rs"]).sim);
}

#[test]
fn tests_are_what_their_own_change_reaches() {
    let reach = reach(&["tests/netns/output.rs", "tests/netns/main.rs", "tests/vm/tools.rs"]);
    assert_eq!(packages(&reach), "rlaunch-tests");
    assert_eq!((&*names(&reach.netns), &reach.vm), ("output::", &TestSelection::All));
    let crates = ["tests/sim/src/world.rs", "tests/fuzz/src/table.rs", "worker/tests/any.rs"];
    let reach = self::reach(&crates);
    assert_eq!(packages(&reach), "rlaunch-fuzz rlaunch-sim rlaunch-worker");
    assert!(reach.sim && reach.netns.is_nothing() && reach.vm.is_nothing());
    assert!(reach.notes.is_empty(), "{:?}", reach.notes);
    let shared = self::reach(&["tests/Cargo.toml"]);
    assert_eq!((&shared.netns, &shared.vm), (&TestSelection::All, &TestSelection::All));
}

#[test]
fn lints_are_for_all_crates_and_no_host() {
    let reach = reach(&[".clippy.toml"]);
    assert_eq!(reach.packages, WORKSPACE.crates.names());
    assert!(reach.netns.is_nothing() && reach.vm.is_nothing() && !reach.everything);
}
