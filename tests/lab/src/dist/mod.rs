//! Building rlaunch, and laying it out as it ships: `dist-PROFILE/rlaunch`, and in
//! `dist-PROFILE/lib/rlaunch/TRIPLE` the files that travel to hosts: `rlaunch-worker`,
//! `rlaunch-prover`, `rlaunch-stack`, `rlaunch-copier`, `rlaunch-bench`, and for ranks `librlaunch.so` and
//! `python/rlaunch`. Beside a released `rlaunch` there are also `measure` and `init`, so that later
//! builds can be compared with it.
//!
//! | file | what |
//! |---|---|
//! | `workspace_build` | builds for tests: the whole workspace by one call of cargo |
//! | `machine` | target machines of builds |
//! | `glibc` | linking that older C libraries accept |
//! | `release` | builds of what ships, without paths of the building machine and tables for unwinding |
//! | `aarch64` | files for hosts of aarch64, and the launcher for such machines |
//! | `packages` | one file, `.tar.gz`, `.deb`, `.rpm` and wheel of what was built |

pub mod aarch64;
mod glibc;
mod machine;
pub mod packages;
mod release;
pub(crate) mod workspace_build;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use nix::unistd::geteuid;
use serde_json::Value;

use crate::command::{at_once, printed, run, show};
use crate::{LabError, setup};
use glibc::BinaryKind;
use machine::TargetMachine;
use release::{LinkerCall, release_cargo, without_tables};
use workspace_build::{BuildSet, Compiler};
pub(crate) use workspace_build::{Built, TEST_FEATURES};

/// Profile of cargo, with the layout that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Builds quickly, with debug assertions, for tests.
    Lab,
    /// Optimised as it ships, for benches.
    Release,
}

impl Profile {
    /// Returns the name of the profile in cargo.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Lab => "lab",
            Profile::Release => "release",
        }
    }
}

/// File name of the agent.
const AGENT: &str = "rlaunch-worker";
/// File name of the program that reads stacks.
const STACK_READER: &str = "rlaunch-stack";
/// File name of the program that copies files.
const COPIER: &str = "rlaunch-copier";
/// File name of the library that ranks link.
const SHARED: &str = "librlaunch.so";
/// File name that cargo gives to the Python module.
const MODULE: &str = "lib_rlaunch.so";
/// Path of the Python module among the files for hosts.
const MODULE_PATH: &str = "python/rlaunch/_rlaunch.abi3.so";
/// Sources of the Python package, from the workspace.
const PACKAGE: &str = "worker/comm/python/python";
/// Words by which cargo builds the launcher as it ships.
const LAUNCHER: &[&str] = &["rustc", "-p", "rlaunch", "--bin", "rlaunch", "--release"];
/// Directory of bytecode that Python leaves beside sources.
const COMPILED: &str = "__pycache__";

/// Builds launcher, agent and the library for ranks; returns the path of the laid out launcher. The
/// profile of tests adds the prover and the bench, if the bindings of libibverbs can be built here.
pub fn build(profile: Profile) -> Result<PathBuf, LabError> {
    match profile {
        Profile::Lab => build_lab(BuildSet::Shipped).map(drop)?,
        Profile::Release => {
            let (target, machine) = (target_directory()?, TargetMachine::own()?);
            build_launcher()?;
            build_agent(&target, &machine)?;
            build_library(&target, &machine)?;
        }
    }
    launcher(profile)
}

/// Builds everything that ships, also for aarch64; returns the path of the laid out launcher. A program that is
/// optimised as a whole keeps one processor busy for minutes, and cargo locks its directory of a profile, so what it
/// puts into different directories is built at once.
pub fn build_all(profile: Profile) -> Result<PathBuf, LabError> {
    match profile {
        Profile::Lab => build(profile).map(drop)?,
        Profile::Release => {
            let (target, machine) = (target_directory()?, TargetMachine::own()?);
            let sent = || {
                build_agent(&target, &machine)?;
                build_library(&target, &machine)?;
                build_prover_for(&machine)
            };
            let here = || {
                build_launcher()?;
                build_bench_for(&machine)?;
                // Later builds compare their communicator with the one in these programs.
                build_measure()
            };
            let lanes: [&(dyn Fn() -> Result<(), LabError> + Sync); 2] = [&here, &sent];
            at_once(lanes, |build| build())?;
        }
    }
    aarch64::build(profile)?;
    launcher(profile)
}

/// Builds everything that tests run and the tests themselves, by the profile of tests.
pub(crate) fn build_everything() -> Result<Built, LabError> {
    build_lab(BuildSet::Everything)
}

/// Makes a cargo command link as [`build_everything`] does, so that it can reuse the results of
/// that build.
pub(crate) fn link_as_tests_are(cargo: &mut Command) -> Result<(), LabError> {
    let wrapper =
        workspace_build::wrapper(&TargetMachine::own()?, &target_directory()?, Compiler::Clippy)?;
    cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    Ok(())
}

/// Builds launcher and agent by the profile of tests, without the libraries of ranks; returns the
/// path of the launcher.
pub(crate) fn build_job() -> Result<PathBuf, LabError> {
    build_lab(BuildSet::Job)?;
    launcher(Profile::Lab)
}

/// Adds the libraries of ranks to what [`build_job`] laid out.
pub(crate) fn build_for_ranks() -> Result<(), LabError> {
    build_lab(BuildSet::Ranks).map(drop)
}

fn build_lab(selection: BuildSet) -> Result<Built, LabError> {
    workspace_build::build(&TargetMachine::own()?, &target_directory()?, selection)
}

/// Returns the path at which [`build_everything`] and [`build`] lay out the launcher.
pub(crate) fn launcher(profile: Profile) -> Result<PathBuf, LabError> {
    Ok(directory(profile)?.join("rlaunch"))
}

/// Builds a program as it ships and copies it from cargo's directory of a profile to `place`.
fn build_program(
    machine: &TargetMachine,
    words: &[&str],
    (profile, program): (&str, &str),
    place: &Path,
) -> Result<(), LabError> {
    let target = target_directory()?;
    let linking = machine.linking(&target)?.words(BinaryKind::Program);
    let mut cargo = machine.release_cargo(words)?;
    cargo.arg("--").args(linking).args(without_tables(&target, LinkerCall::Compiler)?);
    show(&format!("build {program}"), &mut cargo)?;
    machine.place_checked(&machine.built(&target, profile).join(program), place)
}

fn build_launcher() -> Result<(), LabError> {
    let place = launcher(Profile::Release)?;
    build_program(&TargetMachine::own()?, LAUNCHER, ("release", "rlaunch"), &place)
}

fn build_agent(target: &Path, machine: &TargetMachine) -> Result<(), LabError> {
    let linking = without_tables(target, LinkerCall::Compiler)?;
    show("build the agent", release_cargo()?.arg("agent").args(&linking))?;
    show("build the reader of stacks", release_cargo()?.arg("stack").args(&linking))?;
    show("build the copier of files", release_cargo()?.arg("copier").args(&linking))?;
    let (built, laid_out) = (target.join("agent"), machine.place(target, Profile::Release));
    let programs = [AGENT, STACK_READER, COPIER];
    programs.iter().try_for_each(|name| place(&built.join(name), &laid_out.join(name)))
}

/// Builds the libraries that ranks link and import, optimised across crates, and lays them out
/// beside the agent. Where the bindings of libibverbs cannot be built, ranks will use TCP between
/// hosts.
fn build_library(target: &Path, machine: &TargetMachine) -> Result<(), LabError> {
    let built = machine.built(target, "library");
    let linking = machine.linking(target)?.words(BinaryKind::Library);
    for alias in ["librlaunch", "pymodule"] {
        let mut library = machine.release_cargo(&[alias])?;
        if !setup::builds_verbs() {
            library.arg("--no-default-features");
        }
        show("build the libraries of ranks", library.arg("--").args(&linking))?;
    }
    let place = machine.place(target, Profile::Release);
    machine.place_checked(&built.join(SHARED), &place.join(SHARED))?;
    machine.place_checked(&built.join(MODULE), &place.join(MODULE_PATH))?;
    place_sources(&workspace().join(PACKAGE), &place.join("python"))
}

/// Copies a directory without compiled Python.
pub(crate) fn place_sources(from: &Path, to: &Path) -> Result<(), LabError> {
    let read = LabError::io(format!("read {}", from.display()));
    let entries: Vec<_> = fs::read_dir(from).and_then(Iterator::collect).map_err(read)?;
    let sources = entries.iter().filter(|entry| entry.file_name() != COMPILED);
    sources.into_iter().try_for_each(|entry| {
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() { place_sources(&source, &copy) } else { place(&source, &copy) }
    })
}

/// Builds the prover as it ships. Needs cmake and libclang, without which [`build`] works. It is linked dynamically, since it
/// loads rdma-core at run time.
fn build_prover_for(machine: &TargetMachine) -> Result<(), LabError> {
    let program = "rlaunch-prover";
    let place = machine.place(&target_directory()?, Profile::Release).join(program);
    build_program(machine, &["prover"], ("agent", program), &place)
}

/// Builds the program of `rlaunch bench` as it ships.
fn build_bench_for(machine: &TargetMachine) -> Result<(), LabError> {
    let program = "rlaunch-bench";
    let words = ["rustc", "-p", program, "--bin", program, "--release", "--no-default-features"];
    let words = if setup::builds_verbs() { &words[..words.len() - 1] } else { &words[..] };
    let place = machine.place(&target_directory()?, Profile::Release).join(program);
    build_program(machine, words, ("release", program), &place)
}

/// Examples of rlaunch-comm that measure a communicator, and how long ranks take to create it.
const MEASURE: [&str; 2] = ["measure", "init"];

/// Builds the programs that measure a communicator, and lays them out beside the launcher.
pub(crate) fn build_measure() -> Result<(), LabError> {
    let mut build = release_cargo()?;
    build.args(["build", "-p", "rlaunch-comm", "--release"]);
    build.args(MEASURE.iter().flat_map(|program| ["--example", program]));
    show("build the programs that measure communicators", &mut build)?;
    let built = target_directory()?.join("release/examples");
    let beside = directory(Profile::Release)?;
    MEASURE.iter().try_for_each(|name| place(&built.join(name), &beside.join(name)))
}

/// Returns the path of the agent for this machine, relative to the directory of its launcher.
pub(crate) fn agent_beside() -> Result<PathBuf, LabError> {
    Ok(Path::new("lib/rlaunch").join(host_triple()?).join(AGENT))
}

/// Returns the directory in which [`build`] lays out a profile.
pub fn directory(profile: Profile) -> Result<PathBuf, LabError> {
    Ok(dist_in(&target_directory()?, profile))
}

fn dist_in(target: &Path, profile: Profile) -> PathBuf {
    target.join(format!("dist-{}", profile.name()))
}

/// Returns the checkout that this program was built from.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Makes a cargo command for the workspace. Under sudo it runs as the account that called sudo, so
/// that the files it writes belong to that account.
pub fn cargo() -> Command {
    as_caller(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Makes a command that runs as the account that called sudo, in the workspace.
pub(crate) fn as_caller(program: OsString) -> Command {
    let mut command = match (env::var("SUDO_UID"), env::var("SUDO_GID")) {
        (Ok(uid), Ok(gid)) if geteuid().is_root() && uid != "0" => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &uid, "--regid", &gid, "--init-groups", "--"]).arg(program);
            command
        }
        _ => Command::new(program),
    };
    command.current_dir(workspace());
    // `cargo run`, which started this program, sets variables about this package. Some build
    // scripts depend on them, so that everything built by hand would be built again, and vice
    // versa.
    let of_package = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
            .iter()
            .any(|begin| name.starts_with(begin))
    };
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| of_package(name)) {
        command.env_remove(name);
    }
    command
}

/// Returns the target directory of cargo.
pub fn target_directory() -> Result<PathBuf, LabError> {
    let metadata = metadata("ask cargo for its target directory")?;
    Ok(metadata["target_directory"].as_str().unwrap_or_default().into())
}

/// Reads `cargo metadata` of the workspace. Cargo answers from the manifests alone, without network.
pub(crate) fn metadata(operation: &str) -> Result<Value, LabError> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = run(operation, &mut metadata)?;
    serde_json::from_slice(&output.stdout)
        .map_err(|source| LabError::Format { what: "cargo's metadata".into(), source })
}

/// Lists directories that hosts must not see: a job that needs the checkout would work only on the
/// machine that built it.
pub(crate) fn build_directories() -> Vec<PathBuf> {
    let workspace = workspace();
    // Without cargo there is no target directory.
    let target = target_directory().ok().filter(|target| !target.starts_with(&workspace));
    [workspace].into_iter().chain(target).collect()
}

/// Asks rustc about itself.
fn rustc(words: &[&str]) -> Result<String, LabError> {
    let mut rustc = as_caller("rustc".into());
    printed("ask rustc about itself", rustc.current_dir(workspace()).args(words))
}

/// Returns this machine's target triple.
pub fn host_triple() -> Result<String, LabError> {
    let text = rustc(&["-vV"])?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| LabError::Unexpected("rustc -vV names no host".into()))
}

/// Copies a file and replaces the old one atomically: it may be running.
pub(crate) fn place(from: &Path, to: &Path) -> Result<(), LabError> {
    let operation = format!("copy {} to {}", from.display(), to.display());
    let new = to.with_extension("new");
    fs::create_dir_all(to.parent().unwrap_or(to))
        .and_then(|()| fs::copy(from, &new))
        .and_then(|_| fs::rename(&new, to))
        .map_err(LabError::io(operation))
}
