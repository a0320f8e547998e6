//! The agent for hosts of aarch64, built on other machines: by Rust's own linker, with Rust's own C
//! library, so that of that architecture nothing has to be installed.

use super::{AGENT, Profile, agent_directory, cargo, dist_in, of_toolchain, place};
use super::{target_directory, workspace};
use crate::command::{run, show, spinner};
use crate::{LabError, setup};
use std::path::PathBuf;
use std::process::Command;

/// Rust's name of it. Its programs are static, so hosts' C libraries do not matter.
const TARGET: &str = "aarch64-unknown-linux-musl";
/// Where launchers look for what such hosts are sent.
const PLACE: &str = "aarch64-unknown-linux-gnu";
/// What compiles the little C in there, and what executes its programs here.
const COMPILER: &str = "clang";
const EMULATOR: &str = "qemu-aarch64";

/// Adds Rust's target where it is missing and rustup is there.
pub fn prepare() -> Result<(), LabError> {
    if cfg!(target_arch = "aarch64") || has_target()? || !setup::has("rustup") {
        return Ok(());
    }
    println!("adding Rust's target {TARGET} by rustup");
    let progress = spinner(format!("adding {TARGET}"));
    let mut rustup = of_toolchain("rustup".into());
    run("add Rust's target", rustup.args(["target", "add", TARGET]))?;
    progress.finish_and_clear();
    Ok(())
}

/// Builds it and puts it where launchers look; where it cannot be built, says why.
pub fn build(profile: Profile) -> Result<Option<String>, LabError> {
    if let Some(obstacle) = obstacle()? {
        return Ok(Some(obstacle));
    }
    let mut agent = cargo();
    match profile {
        Profile::Release => agent.arg("agent-aarch64"),
        Profile::Lab => agent
            .args(["rustc", "-p", AGENT, "--bin", AGENT, "--profile", "lab", "--target", TARGET])
            .args(["--", "-C", "relocation-model=static", "-C", "strip=symbols"]),
    };
    show("build the agent for aarch64", &mut agent)?;
    let target = target_directory()?;
    let built = target.join(TARGET).join(agent_directory(profile)).join(AGENT);
    let place_of = dist_in(&target, profile).join("lib/rlaunch").join(PLACE);
    place(&built, &place_of.join(AGENT))?;
    Ok(None)
}

/// Why it cannot be built here.
fn obstacle() -> Result<Option<String>, LabError> {
    if cfg!(target_arch = "aarch64") {
        return Ok(Some("this machine is of aarch64 itself".into()));
    }
    if !setup::has(COMPILER) {
        return Ok(Some(format!("{COMPILER} is not installed")));
    }
    let add = || format!("Rust's target is missing: rustup target add {TARGET}");
    Ok((!has_target()?).then(add))
}

fn has_target() -> Result<bool, LabError> {
    let mut rustc = of_toolchain("rustc".into());
    rustc.current_dir(workspace());
    let output = run("ask rustc for its targets", rustc.args(["--print", "sysroot"]))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(sysroot.join("lib/rustlib").join(TARGET).join("lib").is_dir())
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
