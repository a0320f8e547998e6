//! Checks of the workspace: what crates may depend on, that the README's code map shows what is there, and
//! that examples in doc comments are compiled.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates, with what must be nowhere below them when they are built for a user.
const LAYERS: &[(&str, &[&str])] = &[
    // Shared by launcher, agents and ranks, of which some have no runtime.
    ("rlaunch-bootstrap", &["clap", "nix", "russh", "serde_json", "tokio"]),
    ("rlaunch-copy", &["clap", "nix", "ring", "rlaunch-bootstrap", "serde_json", "tokio"]),
    // Part of the agent.
    ("rlaunch-files", &["clap", "nix", "serde_json", "tokio"]),
    ("rlaunch-horovod", &["libc", "rlaunch-bootstrap", "tokio"]),
    ("rlaunch-pmi", &["libc", "rlaunch-bootstrap", "tokio"]),
    ("rlaunch-plot", &["clap", "libc", "rlaunch-bootstrap", "tokio"]),
    ("rlaunch-text", &["clap", "nix", "rlaunch-console", "tokio"]),
    ("rlaunch-console", &["clap", "russh"]),
    ("rlaunch-ssh", &["clap"]),
    // Neither connects nor prints.
    ("rlaunch-plan", &["clap", "nix", "rlaunch-console", "russh", "tokio"]),
    ("rlaunch-engine", &["clap", "rlaunch-comm", "rlaunch-worker"]),
    // Travels to hosts, so it is small, and starts where no libibverbs is.
    ("rlaunch-worker", &["clap", "rdma-mummy-sys", "rlaunch-console", "russh", "serde_json"]),
    ("rlaunch", &["rdma-mummy-sys", "rlaunch-comm", "rlaunch-worker"]),
    // Builds before cmake and libclang are installed.
    ("rlaunch-lab", &["rdma-mummy-sys", "rlaunch-bootstrap", "tokio"]),
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn no_crate_depends_on_what_is_above_it() {
    for (krate, banned) in LAYERS {
        let mut tree = Command::new(env!("CARGO"));
        tree.args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "-p", krate]);
        let output = tree.current_dir(workspace()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let below: Vec<&str> =
            text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(below.first(), Some(krate), "{text}");
        let found: Vec<_> = banned.iter().filter(|name| below.contains(name)).collect();
        assert!(
            found.is_empty(),
            "{krate} depends on {found:?}: `cargo tree --edges normal -p {krate} --invert {}`",
            found[0]
        );
    }
}

/// Tells whether a doc comment has a block of code that rustdoc compiles: one of no other language.
fn has_example(source: &str) -> bool {
    let others = ["text", "ignore", "c", "json", "python", "sh", "toml"];
    let mut is_inside = false;
    source.lines().any(|line| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let fence = text.and_then(|text| text.trim().strip_prefix("```"));
        is_inside ^= fence.is_some();
        let is_other = |words: &str| words.split(',').any(|word| others.contains(&word.trim()));
        is_inside && fence.is_some_and(|words| !is_other(words))
    })
}

/// Lists the Rust files in a directory and below it.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries
        .map(|entry| entry.path())
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    files.filter(|file| file.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Rustdoc compiles a crate to look for examples, which takes two minutes for all that have none.
#[test]
fn examples_are_looked_for_in_crates_that_have_some() {
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = metadata.current_dir(workspace()).output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
    let mut found = 0;
    for target in targets {
        let root = Path::new(target["src_path"].as_str().unwrap());
        if !root.ends_with("lib.rs") {
            continue;
        }
        let files = sources(root.parent().unwrap());
        let has = files.iter().any(|file| has_example(&fs::read_to_string(file).unwrap()));
        assert_eq!(target["doctest"], has, "`doctest` in the manifest of {}", target["name"]);
        found += usize::from(has);
    }
    assert!(found >= 4, "{found}");
}

/// A test that nothing runs proves nothing.
#[test]
fn tests_that_are_ignored_say_who_runs_them() {
    let read = |file: &PathBuf| fs::read_to_string(file).unwrap();
    let of_guests: String = sources(&workspace().join("tests/vm")).iter().map(read).collect();
    let rooms = ["bootstrap", "launcher", "tests", "worker"];
    let mut found = 0;
    for file in rooms.iter().flat_map(|room| sources(&workspace().join(room))) {
        let text = read(&file);
        let mut lines = text.lines().map(str::trim_start);
        while let Some(line) = lines.next() {
            if !line.starts_with("#[ignore") {
                continue;
            }
            let name = lines.find_map(|line| line.split_once("fn ")?.1.split('(').next()).unwrap();
            let is_run = line.contains("run before a release")
                || line.contains("guests run it in stage vm") && of_guests.contains(name);
            assert!(is_run, "{}: nothing runs {name}", file.display());
            found += 1;
        }
    }
    assert!(found > 2, "{found}");
}

/// Expands `a/{b,c}/` to `a/b/` and `a/c/`.
fn expanded(pattern: &str) -> Vec<String> {
    let parts = pattern.split_once('{').and_then(|(before, rest)| {
        rest.split_once('}').map(|(inside, after)| (before, inside, after))
    });
    let Some((before, inside, after)) = parts else { return vec![pattern.to_owned()] };
    inside.split(',').flat_map(|one| expanded(&format!("{before}{one}{after}"))).collect()
}

#[test]
fn code_map_of_the_readme_names_what_exists() {
    let page = fs::read_to_string(workspace().join("README.md")).unwrap();
    let (_, map) = page.split_once("\n## Code map\n").unwrap();
    let (map, _) = map.split_once("\n## ").unwrap();
    let rows: Vec<&str> = map.lines().filter_map(|line| line.strip_prefix("| `")).collect();
    assert!(rows.len() > 10, "{map}");
    for row in rows {
        let (cell, _) = row.split_once(" |").unwrap();
        for path in cell.split('`').step_by(2).flat_map(expanded) {
            let exists = workspace().join(path.trim()).exists();
            assert!(exists || path.is_empty(), "the code map names {path}");
        }
    }
}
