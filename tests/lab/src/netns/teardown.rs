//! Removing a lab, even one that a crash left in pieces: everything is found by name.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::state::{LabPaths, ProcessId};
use super::{cgroup, machine, network};
use crate::LabError;
use crate::command::wait_until;
use crate::files::remove_dir;

/// Removes the lab; returns whether there was anything to remove. The caller holds the lab's lock.
pub(super) fn remove(paths: &LabPaths) -> Result<bool, LabError> {
    let namespaces = network::namespaces(paths);
    let lab_cgroup = cgroup::path(&paths.name).filter(|path| path.exists());
    let found = paths.dir.exists() || !namespaces.is_empty() || lab_cgroup.is_some();
    kill_nodes(paths);
    if let Some(path) = &lab_cgroup {
        cgroup::kill(path);
    }
    kill_members(&namespaces)?;
    network::delete(&namespaces)?;
    if let Some(path) = &lab_cgroup {
        cgroup::remove(path)?;
    }
    remove_dir(&paths.dir)?;
    machine::release(&paths.name)?;
    Ok(found)
}

/// Kills the init of every node; the processes of a host die with it.
fn kill_nodes(paths: &LabPaths) {
    let hosts = fs::read_dir(paths.dir.join("hosts")).into_iter().flatten().flatten();
    let dirs = hosts.map(|entry| entry.path()).chain([paths.launch()]);
    let inits = dirs.filter_map(|dir| ProcessId::load(&dir.join("init")));
    for init in inits.filter(|init| init.is_alive()) {
        let _ = kill(Pid::from_raw(init.pid), Signal::SIGKILL);
    }
}

/// Kills all other processes in the lab's networks, except this one.
pub(crate) fn kill_members(namespaces: &[String]) -> Result<(), LabError> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    for namespace in namespaces {
        wait_until(Duration::from_secs(10), &format!("{namespace} to empty"), || {
            let mut members = network::processes(namespace);
            members.retain(|&pid| pid != own);
            for &pid in &members {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            Ok(members.is_empty())
        })?;
    }
    Ok(())
}
