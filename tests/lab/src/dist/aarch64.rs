//! Files for hosts of aarch64, built on machines of another architecture. The agent that ships needs only
//! Rust's own linker and C library. Libraries of ranks are linked by Debian's cross compiler, and in
//! tests so is the agent, which then shares what is compiled for them.

use super::glibc::BinaryKind;
use super::machine::TargetMachine;
use super::release::{LinkerCall, without_tables};
use super::workspace_build::{self, BuildSet};
use super::{
    AGENT, COPIER, LAUNCHER, Profile, STACK_READER, build_bench_for, build_library, build_program,
    build_prover_for,
};
use super::{as_caller, place, release_cargo, rustc, target_directory};
use crate::command::{run, show, with_spinner};
use crate::{LabError, setup};
use std::path::PathBuf;
use std::process::Command;

/// Target of the agent, which is static and thus independent of the hosts' C library.
const STATIC: &str = "aarch64-unknown-linux-musl";
/// Target of the libraries of ranks. Launchers look for all files of such hosts under this name.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Prefix of the names of the cross compiler and its tools.
const TOOLS: &str = "aarch64-linux-gnu-";
/// Compiler of the C code in the agent, and emulator for programs of aarch64.
const COMPILER: &str = "clang";
const EMULATOR: &str = "qemu-aarch64";
/// Debian packages with a Python of aarch64.
const PYTHON: [&str; 2] = ["python3", "libgcc-s1"];

fn machine() -> TargetMachine {
    TargetMachine::other(TARGET, TOOLS)
}

/// Adds missing targets by rustup, if rustup is installed.
pub fn prepare() -> Result<(), LabError> {
    if cfg!(target_arch = "aarch64") || !setup::has("rustup") {
        return Ok(());
    }
    for target in [STATIC, TARGET] {
        if has_target(target)? {
            continue;
        }
        println!("adding Rust's target {target} by rustup");
        let mut rustup = as_caller("rustup".into());
        rustup.args(["target", "add", target]);
        with_spinner(format!("adding {target}"), || run("add Rust's target", &mut rustup))?;
    }
    Ok(())
}

/// Lists files that cannot be built here, each with the reason.
pub fn missing(profile: Profile) -> Result<Vec<String>, LabError> {
    if cfg!(target_arch = "aarch64") {
        return Ok(vec![
            "files for aarch64 from another architecture: this machine is of aarch64 itself".into(),
        ]);
    }
    let agent = match profile {
        Profile::Release => obstacle(STATIC, COMPILER)?,
        // Built together with the libraries.
        Profile::Lab => None,
    };
    let agent = agent.map(|why| format!("the agent for aarch64: {why}"));
    let rest = obstacle(TARGET, &machine().compiler())?;
    let rest = rest.map(|why| format!("libraries of ranks on aarch64: {why}"));
    Ok(agent.into_iter().chain(rest).collect())
}

/// Builds what can be built and lays it out; returns what cannot be built, each with the reason.
pub fn build(profile: Profile) -> Result<Vec<String>, LabError> {
    let missing = missing(profile)?;
    if cfg!(target_arch = "aarch64") {
        return Ok(missing);
    }
    if profile == Profile::Release && obstacle(STATIC, COMPILER)?.is_none() {
        build_static(AGENT, "agent-aarch64")?;
        build_static(STACK_READER, "stack-aarch64")?;
        build_static(COPIER, "copier-aarch64")?;
    }
    if obstacle(TARGET, &machine().compiler())?.is_none() {
        build_the_rest(profile)?;
    }
    Ok(missing)
}

/// Builds a static program as it ships and lays it out. `alias` is the command of cargo that builds it.
fn build_static(program: &str, alias: &str) -> Result<(), LabError> {
    let target = target_directory()?;
    let mut command = release_cargo()?;
    command.arg(alias).args(without_tables(&target, LinkerCall::Linker)?);
    show(&format!("build {program} for aarch64"), &mut command)?;
    let built = target.join(STATIC).join("agent").join(program);
    place(&built, &machine().place(&target, Profile::Release).join(program))
}

fn build_the_rest(profile: Profile) -> Result<(), LabError> {
    let (machine, target) = (machine(), target_directory()?);
    if profile == Profile::Lab {
        return workspace_build::build(&machine, &target, BuildSet::Sent).map(drop);
    }
    build_library(&target, &machine)?;
    build_bench_for(&machine)?;
    if setup::builds_verbs() { build_prover_for(&machine) } else { Ok(()) }
}

/// Returns the path of the launcher for aarch64, which [`build_launcher`] lays out.
pub(super) fn launcher(profile: Profile) -> Result<PathBuf, LabError> {
    Ok(super::directory(profile)?.join("launchers/aarch64/rlaunch"))
}

/// Builds the launcher for aarch64.
pub(super) fn build_launcher(profile: Profile) -> Result<(), LabError> {
    let (machine, target, place) = (machine(), target_directory()?, launcher(profile)?);
    let name = profile.name();
    if profile == Profile::Release {
        return build_program(&machine, LAUNCHER, (name, "rlaunch"), &place);
    }
    let words = ["rustc", "-p", "rlaunch", "--bin", "rlaunch", "--profile", name];
    let mut cargo = machine.cargo(&words);
    cargo.arg("--").args(machine.linking(&target)?.words(BinaryKind::Program));
    show("build the launcher for aarch64", &mut cargo)?;
    machine.place_checked(&machine.built(&target, name).join("rlaunch"), &place)
}

/// Returns why nothing can be built here for a target, if that is so.
fn obstacle(target: &str, compiler: &str) -> Result<Option<String>, LabError> {
    if !setup::has(compiler) {
        return Ok(Some(format!("{compiler} is not installed")));
    }
    let add = || format!("Rust's target is missing: rustup target add {target}");
    Ok((!has_target(target)?).then(add))
}

fn has_target(target: &str) -> Result<bool, LabError> {
    let sysroot = PathBuf::from(rustc(&["--print", "sysroot"])?.trim());
    Ok(sysroot.join("lib/rustlib").join(target).join("lib").is_dir())
}

/// Returns the root directory of a Python of aarch64, as programs of that architecture see it. The
/// Python is downloaded once, into the cache.
pub fn python() -> Result<PathBuf, LabError> {
    let place = setup::cache().join("aarch64-python");
    if !place.exists() {
        let (mut unpack, text) = (Command::new("sh"), "fetching a Python of aarch64");
        unpack.args(["-c", setup::DEBIAN, "debian.sh"]).arg(&place).arg("aarch64").args(PYTHON);
        with_spinner(text, || run("fetch a Python of aarch64", &mut unpack))?;
    }
    Ok(place)
}

/// Returns why hosts of the lab cannot execute programs of aarch64, if that is so.
pub(crate) fn cannot_run() -> Option<String> {
    if !setup::has(EMULATOR) {
        return Some(format!("{EMULATOR} is not installed"));
    }
    let mount = "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc \
                 && test -w /proc/sys/fs/binfmt_misc/register";
    let mut attempt = Command::new("unshare");
    let attempt = run("look for binfmt_misc", attempt.args(["--mount", "sh", "-c", mount]));
    attempt.err().map(|_| "this kernel has no binfmt_misc".into())
}
