//! Building rlaunch, and laying launcher and agent out as they are shipped:
//! `dist-PROFILE/rlaunch` and `dist-PROFILE/lib/rlaunch/TRIPLE/rlaunch-worker`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;
use nix::unistd::geteuid;
use serde::Deserialize;

use crate::LabError;
use crate::command::{run, show};

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

/// Builds launcher and agent; gives the path of the launcher in its distribution.
pub fn build(profile: Profile) -> Result<PathBuf, LabError> {
    let name = profile.name();
    show("build the launcher", cargo().args(["build", "-p", "rlaunch", "--profile", name]))?;
    show("build the agent", &mut agent(profile))?;
    let target = target_directory()?;
    let agent_directory = match profile {
        Profile::Lab => "lab",
        Profile::Release => "agent",
    };
    let dist = dist_in(&target, profile);
    let launcher = dist.join("rlaunch");
    place(&target.join(name).join("rlaunch"), &launcher)?;
    let agents = dist.join("lib/rlaunch").join(host_triple()?);
    place(&target.join(agent_directory).join("rlaunch-worker"), &agents.join("rlaunch-worker"))?;
    Ok(launcher)
}

/// Puts the verbs' example beside the launcher, for guests that have verbs.
pub fn build_loopback(profile: Profile) -> Result<(), LabError> {
    let name = profile.name();
    let words = ["build", "-p", "rlaunch-verbs", "--example", "loopback", "--profile", name];
    show("build the verbs' example", cargo().args(words))?;
    let built = target_directory()?.join(name).join("examples/loopback");
    place(&built, &directory(profile)?.join("loopback"))
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
            .args(["rustc", "-p", "rlaunch-worker", "--bin", "rlaunch-worker"])
            .args(["--profile", "lab", "--", "-C", "target-feature=+crt-static"])
            .args(["-C", "relocation-model=static"])
            // Small as the shipped one, since it travels to hosts whose disks are small.
            .args(["-C", "strip=symbols"]),
    };
    command
}

/// The checkout this program was built from.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// A cargo for the workspace. Under sudo it runs as the account that called sudo, so that what it
/// builds stays that account's.
pub fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
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
