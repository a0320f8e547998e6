//! Removing a lab, even one that a crash left in pieces: everything is found by name.

use std::fs;

use super::state::{LabPaths, ProcessId};
use super::{cgroup, machine, network, processes};
use crate::LabError;
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
    inits.for_each(|init| processes::kill(init.pid));
}

/// Kills all other processes in the lab's networks, except this one.
pub(crate) fn kill_members(namespaces: &[String]) -> Result<(), LabError> {
    namespaces.iter().try_for_each(|namespace| {
        processes::kill_all(&format!("{namespace} to empty"), || network::processes(namespace))
    })
}
