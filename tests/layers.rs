//! What crates may depend on, and that the README's code map shows what is there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates, with what must be nowhere below them when they are built for a user.
const LAYERS: &[(&str, &[&str])] = &[
    // Shared by launcher, agents and ranks, of which some have no runtime.
    ("rlaunch-bootstrap", &["clap", "nix", "russh", "tokio"]),
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
