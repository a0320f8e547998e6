//! What hosts of aarch64 are sent, built on other machines. The agent comes of Rust's own linker and C
//! library, so that of that architecture nothing has to be installed. What ranks load is linked by
//! the compiler that Debian has for them.

use super::machine::TargetMachine;
use super::workspace_build::{self, BuildSet};
use super::{AGENT, Profile, build_library, build_prover_for};
use super::{as_caller, cargo, place, target_directory, workspace};
use crate::command::{run, show, spinner};
use crate::{LabError, setup};
use std::path::PathBuf;
use std::process::Command;

/// Rust's name of what the agent is built for. It is static, so hosts' C libraries do not matter.
const STATIC: &str = "aarch64-unknown-linux-musl";
/// Of what ranks load, under which launchers look for all that such hosts are sent.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// What the names of the compiler and its tools begin with.
const TOOLS: &str = "aarch64-linux-gnu-";
/// What compiles the little C in the agent, and what executes programs of aarch64 here.
const COMPILER: &str = "clang";
const EMULATOR: &str = "qemu-aarch64";
/// Makes a directory with a Python of aarch64. Arguments: directory, packages...
const UNPACK: &str = include_str!("aarch64/python.sh");
/// What is in it, by Debian's names.
const PYTHON: [&str; 2] = ["python3", "libgcc-s1"];

fn machine() -> TargetMachine {
    TargetMachine::other(TARGET, TOOLS)
}

/// Adds Rust's targets where they are missing and rustup is there.
pub fn prepare() -> Result<(), LabError> {
    if cfg!(target_arch = "aarch64") || !setup::has("rustup") {
        return Ok(());
    }
    for target in [STATIC, TARGET] {
        if has_target(target)? {
            continue;
        }
        println!("adding Rust's target {target} by rustup");
        let progress = spinner(format!("adding {target}"));
        let mut rustup = as_caller("rustup".into());
        run("add Rust's target", rustup.args(["target", "add", target]))?;
        progress.finish_and_clear();
    }
    Ok(())
}

/// Lists what cannot be built here, and why.
pub fn missing() -> Result<Vec<String>, LabError> {
    if cfg!(target_arch = "aarch64") {
        return Ok(vec!["aarch64 from elsewhere: this machine is of aarch64 itself".into()]);
    }
    let agent = obstacle(STATIC, COMPILER)?;
    let agent = agent.map(|why| format!("the agent for aarch64: {why}"));
    let rest = obstacle(TARGET, &machine().compiler())?;
    let rest = rest.map(|why| format!("what ranks on aarch64 load: {why}"));
    Ok(agent.into_iter().chain(rest).collect())
}

/// Builds it and puts it where launchers look; says what cannot be built here, and why.
pub fn build(profile: Profile) -> Result<Vec<String>, LabError> {
    let missing = missing()?;
    if cfg!(target_arch = "aarch64") {
        return Ok(missing);
    }
    if obstacle(STATIC, COMPILER)?.is_none() {
        build_agent(profile)?;
    }
    if obstacle(TARGET, &machine().compiler())?.is_none() {
        build_the_rest(profile)?;
    }
    Ok(missing)
}

fn build_agent(profile: Profile) -> Result<(), LabError> {
    let mut agent = cargo();
    let built = match profile {
        Profile::Release => {
            agent.arg("agent-aarch64");
            "agent"
        }
        Profile::Lab => {
            agent.args(["rustc", "-p", AGENT, "--bin", AGENT, "--profile", "lab"]);
            agent.args(["--target", STATIC, "--", "-C", "relocation-model=static"]);
            agent.args(["-C", "strip=symbols"]);
            "lab"
        }
    };
    show("build the agent for aarch64", &mut agent)?;
    let target = target_directory()?;
    let built = target.join(STATIC).join(built).join(AGENT);
    place(&built, &machine().place(&target, profile).join(AGENT))
}

fn build_the_rest(profile: Profile) -> Result<(), LabError> {
    let (machine, target) = (machine(), target_directory()?);
    if profile == Profile::Lab {
        return workspace_build::build(&machine, &target, BuildSet::Sent).map(drop);
    }
    build_library(&target, &machine)?;
    if setup::builds_verbs() { build_prover_for(&machine) } else { Ok(()) }
}

/// Why nothing can be built here for this target of Rust's.
fn obstacle(target: &str, compiler: &str) -> Result<Option<String>, LabError> {
    if !setup::has(compiler) {
        return Ok(Some(format!("{compiler} is not installed")));
    }
    let add = || format!("Rust's target is missing: rustup target add {target}");
    Ok((!has_target(target)?).then(add))
}

fn has_target(target: &str) -> Result<bool, LabError> {
    let mut rustc = as_caller("rustc".into());
    rustc.current_dir(workspace());
    let output = run("ask rustc for its targets", rustc.args(["--print", "sysroot"]))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(sysroot.join("lib/rustlib").join(target).join("lib").is_dir())
}

/// A directory with a Python of aarch64, as programs of that architecture see theirs: it is fetched
/// once, into the cache.
pub fn python() -> Result<PathBuf, LabError> {
    let place = setup::cache().join("aarch64-python");
    if !place.exists() {
        let progress = spinner("fetching a Python of aarch64");
        let mut unpack = Command::new("sh");
        unpack.args(["-c", UNPACK, "python.sh"]).arg(&place).args(PYTHON);
        run("fetch a Python of aarch64", &mut unpack)?;
        progress.finish_and_clear();
    }
    Ok(place)
}

/// Why hosts of the lab cannot execute its programs as if they were of aarch64.
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
