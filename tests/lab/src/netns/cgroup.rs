//! Cgroups of a lab: one for the launch node, one per host, all below one that `down` kills.
//!
//! Only cgroup v2 is used, in its unified or its hybrid place. No controller is needed:
//! `cgroup.kill` and the usage in `cpu.stat` work without.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::LabError;
use crate::command::wait_until;

/// The machine's cgroup v2 tree, if it has one we can write to.
fn tree() -> Option<PathBuf> {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.join("cgroup.controllers").exists())
}

/// Where the lab's cgroup is or would be.
pub(super) fn path(lab: &str) -> Option<PathBuf> {
    Some(tree()?.join(format!("rlaunch-lab-{lab}")))
}

/// Makes the lab's cgroup; `None` on a machine that does not let us.
pub(super) fn create(lab: &str) -> Option<PathBuf> {
    let path = path(lab)?;
    fs::create_dir_all(path.join("hosts")).ok()?;
    Some(path)
}

/// The cgroup of one node, made where missing.
pub(super) fn node(lab_cgroup: &Path, node: &str) -> Result<PathBuf, LabError> {
    let path = match node {
        super::names::LAUNCH => lab_cgroup.join(node),
        host => lab_cgroup.join("hosts").join(host),
    };
    fs::create_dir_all(&path).map_err(LabError::io(format!("make {}", path.display())))?;
    Ok(path)
}

/// Kills every process in `path` and below.
pub(super) fn kill(path: &Path) {
    // Already gone is as good as killed.
    let _ = fs::write(path.join("cgroup.kill"), "1");
}

/// Removes `path` and everything below, once the killed processes have left it.
pub(super) fn remove(path: &Path) -> Result<(), LabError> {
    wait_until(Duration::from_secs(10), &format!("{} to empty", path.display()), || {
        remove_tree(path);
        Ok(!path.exists())
    })
}

fn remove_tree(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

/// CPU time that everything in `path` and below has used so far.
pub(super) fn cpu_usage(path: &Path) -> Option<Duration> {
    let text = fs::read_to_string(path.join("cpu.stat")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(Duration::from_micros(line.trim().parse().ok()?))
}

/// Processes in `path` itself and in the cgroups below it.
pub(super) fn members(path: &Path) -> Vec<i32> {
    let mut pids: Vec<i32> = fs::read_to_string(path.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            pids.extend(members(&entry.path()));
        }
    }
    pids
}
