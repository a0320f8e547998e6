//! Building rlaunch, and laying it out as it is shipped: `dist-PROFILE/rlaunch`, and below
//! `dist-PROFILE/lib/rlaunch/TRIPLE` what travels to hosts: `rlaunch-worker`, `rlaunch-prover`,
//! `rlaunch-bench`, and for ranks `librlaunch.so` and `python/rlaunch`. For later comparisons there
//! are `measure` and `init` beside a released `rlaunch`.

pub mod aarch64;
mod glibc;
mod machine;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use nix::unistd::geteuid;
use serde::Deserialize;

use crate::command::{run, show};
use crate::{LabError, setup};
use glibc::Kind;
use machine::Machine;

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
/// The sources of what ranks import, from the workspace.
const PACKAGE: &str = "worker/comm/python/python";
/// What Python leaves beside sources.
const COMPILED: &str = "__pycache__";

/// Builds launcher, agent and the library for ranks; gives the path of the launcher in its distribution.
pub fn build(profile: Profile) -> Result<PathBuf, LabError> {
    let name = profile.name();
    let target = target_directory()?;
    let machine = Machine::own()?;
    let linking = machine.linking(&target)?.words(Kind::Program);
    let mut launcher = cargo();
    launcher.args(["rustc", "-p", "rlaunch", "--bin", "rlaunch", "--profile", name, "--"]);
    show("build the launcher", launcher.args(linking))?;
    show("build the agent", &mut agent(profile))?;
    let launcher = dist_in(&target, profile).join("rlaunch");
    machine.place_checked(&target.join(name).join("rlaunch"), &launcher)?;
    let built = target.join(agent_directory(profile)).join(AGENT);
    place(&built, &machine.place(&target, profile).join(AGENT))?;
    build_library(profile, &target, &machine)?;
    Ok(launcher)
}

/// Puts what ranks link and import beside the agent.
fn build_library(profile: Profile, target: &Path, machine: &Machine) -> Result<(), LabError> {
    let built = machine.built(target, library_directory(profile));
    let linking = machine.linking(target)?.words(Kind::Library);
    for (alias, package) in [("librlaunch", "rlaunch-capi"), ("pymodule", "rlaunch-python")] {
        let mut library = library(profile, machine, (alias, package), &linking);
        show("build what ranks load", &mut library)?;
    }
    let place = machine.place(target, profile);
    machine.place_checked(&built.join(SHARED), &place.join(SHARED))?;
    let packages = place.join("python");
    machine.place_checked(&built.join(MODULE), &packages.join("rlaunch/_rlaunch.abi3.so"))?;
    place_sources(&workspace().join(PACKAGE), &packages)
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

/// What ranks load is shipped optimised as a whole, which takes time that tests do not need. Where
/// verbs cannot be built, ranks use TCP between hosts.
fn library(
    profile: Profile,
    machine: &Machine,
    (alias, package): (&str, &str),
    linking: &[String],
) -> Command {
    let words = ["rustc", "-p", package, "--lib", "--profile", "lab", "--crate-type", "cdylib"];
    let mut command = match profile {
        Profile::Release => machine.cargo(&[alias]),
        Profile::Lab => machine.cargo(&words),
    };
    if !setup::builds_verbs() {
        command.arg("--no-default-features");
    }
    command.arg("--").args(linking);
    if profile == Profile::Lab {
        command.args(["-C", "strip=symbols"]);
    }
    command
}

/// Puts the prover beside the agent, for hosts that have verbs. It needs what [`build`] does not:
/// cmake and libclang.
pub fn build_prover(profile: Profile) -> Result<(), LabError> {
    build_prover_for(&Machine::own()?, profile)
}

/// The prover is dynamic: it loads rdma-core when it needs it.
fn build_prover_for(machine: &Machine, profile: Profile) -> Result<(), LabError> {
    let (target, program) = (target_directory()?, "rlaunch-prover");
    let words = ["rustc", "-p", program, "--bin", program, "--profile", "lab"];
    let (mut prover, last): (_, &[&str]) = match profile {
        Profile::Release => (machine.cargo(&["prover"]), &[]),
        Profile::Lab => (machine.cargo(&words), &["-C", "strip=symbols"]),
    };
    let linking = machine.linking(&target)?.words(Kind::Program);
    show("build the prover", prover.arg("--").args(linking).args(last))?;
    let built = machine.built(&target, agent_directory(profile)).join(program);
    machine.place_checked(&built, &machine.place(&target, profile).join(program))
}

/// Puts the verbs' examples beside the launcher, for guests that have verbs.
pub fn build_examples(profile: Profile) -> Result<(), LabError> {
    let name = profile.name();
    let words = ["build", "-p", "rlaunch-verbs", "--examples", "--profile", name];
    show("build the verbs' examples", cargo().args(words))?;
    let built = target_directory()?.join(name).join("examples");
    let beside = directory(profile)?;
    ["loopback", "perf"].iter().try_for_each(|name| place(&built.join(name), &beside.join(name)))
}

/// Puts the suite of the communicator beside the launcher, as a program of ranks.
pub fn build_suite(profile: Profile) -> Result<(), LabError> {
    let (name, program) = (profile.name(), "comm-suite");
    // It travels to emulated computers, for whom its symbols are minutes of work.
    let words = ["rustc", "-p", "rlaunch-comm-suite", "--bin", program, "--profile", name];
    let strips = ["--", "-C", "strip=symbols"];
    show("build the communicator's suite", cargo().args(words).args(strips))?;
    place_beside(profile, &target_directory()?.join(name).join(program), program)
}

/// Puts what `rlaunch bench` runs beside the agent.
pub fn build_bench(profile: Profile) -> Result<(), LabError> {
    let (name, program) = (profile.name(), "rlaunch-bench");
    let (target, machine) = (target_directory()?, Machine::own()?);
    let mut bench = cargo();
    bench.args(["rustc", "-p", program, "--bin", program, "--profile", name, "--"]);
    let linking = machine.linking(&target)?.words(Kind::Program);
    show("build the bench", bench.args(linking))?;
    let built = target.join(name).join(program);
    machine.place_checked(&built, &machine.place(&target, profile).join(program))?;
    match profile {
        Profile::Lab => Ok(()),
        // A later build measures its communicator beside that of this one.
        Profile::Release => build_measure(profile),
    }
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

/// The shipped agent takes a minute of link-time optimisation that tests do not need.
fn agent(profile: Profile) -> Command {
    let mut command = cargo();
    match profile {
        Profile::Release => command.arg("agent"),
        Profile::Lab => command
            .args(["rustc", "-p", AGENT, "--bin", AGENT])
            .args(["--profile", "lab", "--", "-C", "target-feature=+crt-static"])
            .args(["-C", "relocation-model=static"])
            // Small as the shipped one, since it travels to hosts whose disks are small.
            .args(["-C", "strip=symbols"]),
    };
    command
}

/// Where cargo puts what travels.
fn agent_directory(profile: Profile) -> &'static str {
    match profile {
        Profile::Lab => "lab",
        Profile::Release => "agent",
    }
}

/// The same of what ranks load.
fn library_directory(profile: Profile) -> &'static str {
    match profile {
        Profile::Lab => "lab",
        Profile::Release => "library",
    }
}

/// The checkout this program was built from.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// A cargo for the workspace. Under sudo it runs as the account that called sudo, so that what it
/// builds stays that account's.
pub fn cargo() -> Command {
    of_toolchain(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A program of the Rust toolchain, likewise.
fn of_toolchain(program: OsString) -> Command {
    let mut command = match (env::var("SUDO_UID"), env::var("SUDO_GID")) {
        (Ok(uid), Ok(gid)) if geteuid().is_root() && uid != "0" => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &uid, "--regid", &gid, "--init-groups", "--"]).arg(program);
            command
        }
        _ => Command::new(program),
    };
    command.current_dir(workspace());
    command
}

/// Where cargo puts what it builds.
pub fn target_directory() -> Result<PathBuf, LabError> {
    #[derive(Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let mut metadata = cargo();
    metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = run("ask cargo for its target directory", &mut metadata)?;
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .map_err(|source| LabError::Format { what: "cargo's metadata".into(), source })?;
    Ok(metadata.target_directory)
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
    host.map(str::to_owned).ok_or_else(|| LabError::Wrong("rustc -vV names no host".into()))
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
