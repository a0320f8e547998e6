//! Cgroups of a lab: one for the launch node, one for each host, all in one that `down` kills.
//!
//! Only cgroup v2 is used, mounted alone or beside v1. No controller is needed: `cgroup.kill` and
//! the CPU time in `cpu.stat` work without.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::LabError;
use crate::command::wait_until;
use crate::files::make_dir;

/// Returns the machine's cgroup v2 file system, if it has one.
fn tree() -> Option<PathBuf> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.join("cgroup.controllers").exists())
}

/// Returns the path of the lab's cgroup, whether or not it exists.
pub(super) fn path(lab: &str) -> Option<PathBuf> {
    Some(tree()?.join(format!("rlaunch-lab-{lab}")))
}

/// Makes the lab's cgroup. Returns nothing if the machine does not permit it.
pub(super) fn create(lab: &str) -> Option<PathBuf> {
    let path = path(lab)?;
    fs::create_dir_all(path.join("hosts")).ok()?;
    Some(path)
}

/// Tells whether labs have cgroups on this machine.
pub(crate) fn are_available() -> bool {
    let path = tree().map(|tree| tree.join(format!("rlaunch-lab-try-{}", std::process::id())));
    path.is_some_and(|path| fs::create_dir(&path).and_then(|()| fs::remove_dir(&path)).is_ok())
}

/// Returns the cgroup of one node, and makes it if it does not exist.
pub(super) fn node(lab_cgroup: &Path, node: &str) -> Result<PathBuf, LabError> {
    let path = match node {
        super::names::LAUNCH => lab_cgroup.join(node),
        host => lab_cgroup.join("hosts").join(host),
    };
    make_dir(&path)?;
    Ok(path)
}

/// Returns the cgroup of the launch node, and the one that those of all hosts are in.
pub(super) fn ends(lab_cgroup: &Path) -> [PathBuf; 2] {
    [super::names::LAUNCH, "hosts"].map(|name| lab_cgroup.join(name))
}

/// Kills every process in `path` and below.
pub(super) fn kill(path: &Path) {
    // Fails if the cgroup is gone already.
    let _ = fs::write(path.join("cgroup.kill"), "1");
}

/// Removes `path` and everything below, after waiting for killed processes to leave it.
pub(super) fn remove(path: &Path) -> Result<(), LabError> {
    wait_until(Duration::from_secs(10), &format!("{} to empty", path.display()), || {
        remove_tree(path);
        Ok(!path.exists())
    })
}

/// Removes everything below `path`, after waiting for killed processes to leave it.
pub(super) fn remove_below(path: &Path) -> Result<(), LabError> {
    below(path).iter().try_for_each(|path| remove(path))
}

fn remove_tree(path: &Path) {
    below(path).iter().for_each(|path| remove_tree(path));
    let _ = fs::remove_dir(path);
}

/// Lists the cgroups right below `path`.
fn below(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.map(|entry| entry.path()).collect()
}

/// Returns the CPU time used so far by `path` and everything below.
pub(super) fn cpu_usage(path: &Path) -> Option<Duration> {
    let text = fs::read_to_string(path.join("cpu.stat")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(Duration::from_micros(line.trim().parse().ok()?))
}

/// Lists the processes in `path` and in the cgroups below it.
pub(super) fn members(path: &Path) -> Vec<i32> {
    let mut pids: Vec<i32> = fs::read_to_string(path.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    pids.extend(below(path).iter().flat_map(|path| members(path)));
    pids
}
