//! Builds of what ships: the same sources give the same bytes in any checkout and any home.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{cargo, rustc, workspace};
use crate::LabError;

/// Makes a cargo command that builds what ships; the caller appends what to build.
///
/// Panic messages name source files. Those of this workspace are relative to it, those of other crates lie in cargo's
/// home, those of the standard library in the toolchain if its sources are installed.
pub(super) fn release_cargo() -> Result<Command, LabError> {
    let mut command = cargo();
    command.arg("--config").arg(rustflags(&cargo_home(), &workspace(), &standard_library()?));
    Ok(command)
}

/// Formats cargo's setting that replaces paths of this machine in what is built.
fn rustflags(home: &Path, workspace: &Path, (sources, name): &(PathBuf, String)) -> String {
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [remap(workspace, "/rlaunch"), remap(home, "/cargo"), remap(sources, name)];
    // An array of strings is the same in JSON and TOML.
    format!("build.rustflags={}", serde_json::json!(flags))
}

/// Returns cargo's home, in which it unpacks crates.
fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cargo");
    env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}

/// Returns where rustup puts the sources of the standard library, and their name without them.
fn standard_library() -> Result<(PathBuf, String), LabError> {
    let (sysroot, version) = (rustc(&["--print", "sysroot"])?, rustc(&["-vV"])?);
    let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: "));
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    Ok((sources, format!("/rustc/{}", commit.unwrap_or("unknown"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_replace_the_paths_of_this_machine() {
        let library = (PathBuf::from("/toolchain/src"), "/rustc/1".to_owned());
        let flags = rustflags(Path::new("/home/a b/.cargo"), Path::new("/home/src"), &library);
        let expected = r#"build.rustflags=["--remap-path-prefix=/home/src=/rlaunch","#;
        assert!(flags.starts_with(expected), "{flags}");
        assert!(flags.contains(r#""--remap-path-prefix=/home/a b/.cargo=/cargo""#), "{flags}");
        assert!(flags.ends_with(r#""--remap-path-prefix=/toolchain/src=/rustc/1"]"#), "{flags}");
    }
}
