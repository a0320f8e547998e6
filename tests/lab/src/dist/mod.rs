//! Building rlaunch, and laying it out as it is shipped: `dist-PROFILE/rlaunch`, and below
//! `dist-PROFILE/lib/rlaunch/TRIPLE` what travels to hosts: `rlaunch-worker`, `rlaunch-prover`,
//! `rlaunch-bench`, and for ranks `librlaunch.so` and `python/rlaunch`. For later comparisons there
//! are `measure` and `init` beside a released `rlaunch`.

pub mod aarch64;
mod glibc;
mod machine;
pub(crate) mod workspace_build;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use nix::unistd::geteuid;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::command::{run, show};
use crate::{LabError, setup};
use glibc::BinaryKind;
use machine::TargetMachine;
pub(crate) use workspace_build::{Artifact, Built, TEST_FEATURES};
use workspace_build::{BuildSet, Compiler};

/// How to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Quick to build and checked: for tests.
    Lab,
    /// As shipped: for benches.
    Release,
}

impl Profile {
    /// The name cargo knows.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Lab => "lab",
            Profile::Release => "release",
        }
    }
}

/// The agent, as it is shipped.
const AGENT: &str = "rlaunch-worker";
/// What ranks link, likewise.
const SHARED: &str = "librlaunch.so";
/// What ranks import, as cargo calls it.
const MODULE: &str = "lib_rlaunch.so";
/// Its place among what hosts are sent.
const MODULE_PATH: &str = "python/rlaunch/_rlaunch.abi3.so";
/// The sources of what ranks import, from the workspace.
const PACKAGE: &str = "worker/comm/python/python";
/// What Python leaves beside sources.
const COMPILED: &str = "__pycache__";

/// Builds launcher, agent and the library for ranks; gives the path of the launcher in its distribution.
/// In the profile of tests it comes with the prover and the bench, as far as verbs can be built.
pub fn build(profile: Profile) -> Result<PathBuf, LabError> {
    match profile {
        Profile::Lab => build_lab(BuildSet::Shipped).map(drop)?,
        Profile::Release => {
            let (target, machine) = (target_directory()?, TargetMachine::own()?);
            build_launcher(&target, &machine)?;
            build_agent(&target, &machine)?;
            build_library(&target, &machine)?;
        }
    }
    launcher(profile)
}

/// Builds, by the profile of tests, everything that tests run and the tests themselves.
pub(crate) fn build_everything() -> Result<Built, LabError> {
    build_lab(BuildSet::Everything)
}

/// Makes a cargo link what it builds by the profile of tests as [`build_everything`] does, so that it
/// finds that built.
pub(crate) fn link_as_tests_are(cargo: &mut Command) -> Result<(), LabError> {
    let wrapper =
        workspace_build::wrapper(&TargetMachine::own()?, &target_directory()?, Compiler::Clippy)?;
    cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    Ok(())
}

/// Builds launcher and agent by the profile of tests, without what ranks load; gives the path of the
/// launcher.
pub(crate) fn build_job() -> Result<PathBuf, LabError> {
    build_lab(BuildSet::Job)?;
    launcher(Profile::Lab)
}

/// Puts what ranks load beside what [`build_job`] laid out.
pub(crate) fn build_for_ranks() -> Result<(), LabError> {
    build_lab(BuildSet::Ranks).map(drop)
}

fn build_lab(selection: BuildSet) -> Result<Built, LabError> {
    workspace_build::build(&TargetMachine::own()?, &target_directory()?, selection)
}

/// The launcher as [`build_everything`] and [`build`] lay it out.
pub(crate) fn launcher(profile: Profile) -> Result<PathBuf, LabError> {
    Ok(directory(profile)?.join("rlaunch"))
}

fn build_launcher(target: &Path, machine: &TargetMachine) -> Result<(), LabError> {
    let linking = machine.linking(target)?.words(BinaryKind::Program);
    let mut launcher = cargo();
    launcher.args(["rustc", "-p", "rlaunch", "--bin", "rlaunch", "--release", "--"]);
    show("build the launcher", launcher.args(linking))?;
    let place = dist_in(target, Profile::Release).join("rlaunch");
    machine.place_checked(&target.join("release/rlaunch"), &place)
}

fn build_agent(target: &Path, machine: &TargetMachine) -> Result<(), LabError> {
    show("build the agent", cargo().arg("agent"))?;
    let place_of_agent = machine.place(target, Profile::Release).join(AGENT);
    place(&target.join("agent").join(AGENT), &place_of_agent)
}

/// Builds what ranks link and import, optimised as a whole, and puts it beside the agent. Where verbs
/// cannot be built, ranks use TCP between hosts.
fn build_library(target: &Path, machine: &TargetMachine) -> Result<(), LabError> {
    let built = machine.built(target, "library");
    let linking = machine.linking(target)?.words(BinaryKind::Library);
    for alias in ["librlaunch", "pymodule"] {
        let mut library = machine.cargo(&[alias]);
        if !setup::builds_verbs() {
            library.arg("--no-default-features");
        }
        show("build what ranks load", library.arg("--").args(&linking))?;
    }
    let place = machine.place(target, Profile::Release);
    machine.place_checked(&built.join(SHARED), &place.join(SHARED))?;
    machine.place_checked(&built.join(MODULE), &place.join(MODULE_PATH))?;
    place_sources(&workspace().join(PACKAGE), &place.join("python"))
}

/// Copies the files of a directory and of those below it.
fn place_sources(from: &Path, to: &Path) -> Result<(), LabError> {
    let read = LabError::io(format!("read {}", from.display()));
    let entries: Vec<_> = fs::read_dir(from).and_then(Iterator::collect).map_err(read)?;
    let sources = entries.iter().filter(|entry| entry.file_name() != COMPILED);
    sources.into_iter().try_for_each(|entry| {
        let (source, copy) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() { place_sources(&source, &copy) } else { place(&source, &copy) }
    })
}

/// Puts the prover beside the agent, for hosts that have verbs. It needs what [`build`] does not:
/// cmake and libclang.
pub fn build_prover(profile: Profile) -> Result<(), LabError> {
    match profile {
        Profile::Lab => build(profile).map(drop),
        Profile::Release => build_prover_for(&TargetMachine::own()?),
    }
}

/// Builds the prover as it is shipped. It is dynamic: it loads rdma-core when it needs it.
fn build_prover_for(machine: &TargetMachine) -> Result<(), LabError> {
    let (target, program) = (target_directory()?, "rlaunch-prover");
    let linking = machine.linking(&target)?.words(BinaryKind::Program);
    show("build the prover", machine.cargo(&["prover"]).arg("--").args(linking))?;
    let built = machine.built(&target, "agent").join(program);
    machine.place_checked(&built, &machine.place(&target, Profile::Release).join(program))
}

/// Puts the verbs' examples beside the launcher, as shipped code runs them, for guests that have verbs.
pub(crate) fn build_examples() -> Result<(), LabError> {
    let words = ["build", "-p", "rlaunch-verbs", "--examples", "--release"];
    show("build the verbs' examples", cargo().args(words))?;
    let built = target_directory()?.join("release/examples");
    let beside = directory(Profile::Release)?;
    ["loopback", "perf"].iter().try_for_each(|name| place(&built.join(name), &beside.join(name)))
}

/// Puts what `rlaunch bench` runs beside the agent.
pub fn build_bench(profile: Profile) -> Result<(), LabError> {
    if profile == Profile::Lab {
        return build(profile).map(drop);
    }
    let program = "rlaunch-bench";
    let (target, machine) = (target_directory()?, TargetMachine::own()?);
    let mut bench = cargo();
    bench.args(["rustc", "-p", program, "--bin", program, "--release", "--"]);
    let linking = machine.linking(&target)?.words(BinaryKind::Program);
    show("build the bench", bench.args(linking))?;
    let place = machine.place(&target, profile).join(program);
    machine.place_checked(&target.join("release").join(program), &place)?;
    // A later build measures its communicator beside that of this one.
    build_measure(profile)
}

/// Programs that measure a communicator, and how long ranks take until they have one.
const MEASURE: [&str; 2] = ["measure", "init"];

/// Puts what measures a communicator beside the launcher, as programs of ranks.
pub(crate) fn build_measure(profile: Profile) -> Result<(), LabError> {
    let name = profile.name();
    let mut build = cargo();
    build.args(["build", "-p", "rlaunch-comm", "--profile", name]);
    build.args(MEASURE.iter().flat_map(|program| ["--example", program]));
    show("build what measures communicators", &mut build)?;
    let built = target_directory()?.join(name).join("examples");
    MEASURE.iter().try_for_each(|name| place_beside(profile, &built.join(name), name))
}

/// Puts a program beside the launcher under this name.
pub(crate) fn place_beside(profile: Profile, program: &Path, name: &str) -> Result<(), LabError> {
    place(program, &directory(profile)?.join(name))
}

/// Says where the agent for this machine is, seen from its launcher.
pub(crate) fn agent_beside() -> Result<PathBuf, LabError> {
    Ok(Path::new("lib/rlaunch").join(host_triple()?).join(AGENT))
}

/// Where [`build`] puts what it builds.
pub fn directory(profile: Profile) -> Result<PathBuf, LabError> {
    Ok(dist_in(&target_directory()?, profile))
}

fn dist_in(target: &Path, profile: Profile) -> PathBuf {
    target.join(format!("dist-{}", profile.name()))
}

/// The checkout this program was built from.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// A cargo for the workspace. Under sudo it runs as the account that called sudo, so that what it
/// builds stays that account's.
pub fn cargo() -> Command {
    as_caller(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Makes a command that runs as the account that called sudo.
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
    // `cargo run`, which has started us, says things about this package that some build scripts take
    // for a changed setting: whatever was built by hand would be built anew, and the other way round.
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

/// Where cargo puts what it builds.
pub fn target_directory() -> Result<PathBuf, LabError> {
    #[derive(Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let metadata: Metadata = metadata("ask cargo for its target directory")?;
    Ok(metadata.target_directory)
}

/// Reads those parts of cargo's description of the workspace that `T` names. Cargo answers from the
/// manifests alone.
pub(crate) fn metadata<T: DeserializeOwned>(operation: &str) -> Result<T, LabError> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = run(operation, &mut metadata)?;
    serde_json::from_slice(&output.stdout)
        .map_err(|source| LabError::Format { what: "cargo's metadata".into(), source })
}

/// What hosts must not see: a job that needs the checkout works only on the machine it was built
/// on.
pub(crate) fn build_directories() -> Vec<PathBuf> {
    let workspace = workspace();
    // Without cargo nothing is built here, wherever it would be.
    let target = target_directory().ok().filter(|target| !target.starts_with(&workspace));
    [workspace].into_iter().chain(target).collect()
}

/// This machine's target triple.
pub fn host_triple() -> Result<String, LabError> {
    let output = run("ask rustc for its host", Command::new("rustc").arg("-vV"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| LabError::Unexpected("rustc -vV names no host".into()))
}

/// Copies a file in one step: the old one may be running.
fn place(from: &Path, to: &Path) -> Result<(), LabError> {
    let operation = format!("copy {} to {}", from.display(), to.display());
    let new = to.with_extension("new");
    fs::create_dir_all(to.parent().unwrap_or(to))
        .and_then(|()| fs::copy(from, &new))
        .and_then(|_| fs::rename(&new, to))
        .map_err(LabError::io(operation))
}
