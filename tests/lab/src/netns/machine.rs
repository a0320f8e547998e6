//! The few things a lab changes on the machine itself, put back when the last lab goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::state::{LabPaths, lock, read_json, write_json};
use crate::LabError;

/// Size of the machine's neighbour table. One table serves all namespaces: with the usual 1024
/// entries, 64 hosts that all talk to each other do not fit.
const NEIGHBOURS: [(&str, u32); 3] =
    [("gc_thresh3", 16384), ("gc_thresh2", 8192), ("gc_thresh1", 4096)];

/// What was changed, and for whom.
#[derive(Debug, Default, Serialize, Deserialize)]
struct MachineChanges {
    labs: BTreeSet<String>,
    /// Files below /proc/sys and what they said before.
    sysctls: BTreeMap<PathBuf, String>,
    /// Empty directories that were missing as mount points.
    directories: BTreeSet<PathBuf>,
}

fn record() -> PathBuf {
    LabPaths::root().join("machine.json")
}

fn lock_machine() -> Result<nix::fcntl::Flock<fs::File>, LabError> {
    lock(&LabPaths::root().join("machine.lock"))
}

/// Makes the machine ready for `lab`; `mount_points` are made where missing.
pub(super) fn prepare(lab: &str, mount_points: &[PathBuf]) -> Result<(), LabError> {
    let _lock = lock_machine()?;
    let mut machine: MachineChanges = read_json(&record())?.unwrap_or_default();
    machine.labs.insert(lab.into());
    for (name, wanted) in NEIGHBOURS {
        let path = Path::new("/proc/sys/net/ipv4/neigh/default").join(name);
        // Not every container shows these; labs of a few hosts do without.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        if text.trim().parse::<u32>().is_ok_and(|now| now < wanted) {
            machine.sysctls.insert(path, text.trim().into());
        }
    }
    for directory in mount_points {
        if !directory.exists() {
            machine.directories.insert(directory.clone());
        }
    }
    // Remembered first, changed second: a crash in between leaves too much to restore, not too
    // little.
    write_json(&record(), &machine)?;
    for (name, wanted) in NEIGHBOURS {
        let path = Path::new("/proc/sys/net/ipv4/neigh/default").join(name);
        if machine.sysctls.contains_key(&path) {
            let _ = fs::write(&path, wanted.to_string());
        }
    }
    for directory in mount_points {
        fs::create_dir_all(directory)
            .map_err(LabError::io(format!("make {}", directory.display())))?;
    }
    Ok(())
}

/// `lab` no longer needs the machine; the last one restores it.
pub(super) fn release(lab: &str) -> Result<(), LabError> {
    let _lock = lock_machine()?;
    let mut machine: MachineChanges = read_json(&record())?.unwrap_or_default();
    machine.labs.remove(lab);
    // A lab that crashed with its files may still be in the record.
    machine.labs.retain(|name| LabPaths::new(name).dir.exists());
    if !machine.labs.is_empty() {
        return write_json(&record(), &machine);
    }
    for (path, value) in &machine.sysctls {
        fs::write(path, value).map_err(LabError::io(format!("restore {}", path.display())))?;
    }
    for directory in &machine.directories {
        // No longer empty means that somebody uses it now.
        let _ = fs::remove_dir(directory);
    }
    let _ = fs::remove_file(record());
    let _ = fs::remove_file(LabPaths::root().join("machine.lock"));
    Ok(())
}
