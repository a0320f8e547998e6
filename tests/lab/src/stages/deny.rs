//! cargo-deny, of one version: its verdict on the dependencies changes with its version.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{run, spinner};
use crate::{LabError, dist, setup};

const VERSION: &str = "0.20.2";

/// The check of licences, sources and duplicates, ready to run; installs cargo-deny if need be.
/// Advisories are left out: their database would have to be fetched for every run.
pub(super) fn command() -> Result<Command, LabError> {
    let program = installed().map_or_else(install, Ok)?;
    let mut command = dist::cargo();
    // Cargo finds subcommands on the PATH; through it, cargo-deny asks the same cargo as we do.
    let directory = program.parent().map(PathBuf::from).unwrap_or_default();
    let path = env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(directory).chain(env::split_paths(&path));
    if let Ok(path) = env::join_paths(paths) {
        command.env("PATH", path);
    }
    command.args(["deny", "--config", ".deny.toml", "--all-features"]);
    command.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    Ok(command)
}

/// A cargo-deny of the right version: the user's own, or the one installed here before.
fn installed() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain([cache().join("bin")]);
    directories.map(|directory| directory.join("cargo-deny")).find(|program| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(VERSION))
    })
}

fn install() -> Result<PathBuf, LabError> {
    println!("installing cargo-deny {VERSION} into {}", cache().display());
    let progress = spinner(format!("installing cargo-deny {VERSION}"));
    let mut cargo = dist::cargo();
    // Unoptimised it builds in a fraction of the time and still checks in seconds.
    cargo.args(["install", "cargo-deny", "--locked", "--debug", "--version", VERSION]);
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "false").arg("--root").arg(cache());
    run("install cargo-deny", &mut cargo)?;
    progress.finish_and_clear();
    Ok(cache().join("bin/cargo-deny"))
}

/// Where it is kept from run to run.
fn cache() -> PathBuf {
    setup::cache().join(format!("cargo-deny-{VERSION}"))
}
