//! Changes to the machine itself: a larger neighbour table and directories for mounts. They are
//! undone when the last lab goes down.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::state::{LabPaths, lock, read_json, write_json};
use crate::LabError;
use crate::files::make_dir;

/// Sizes of the machine's neighbour table. All namespaces share it: 64 hosts that all talk to each
/// other do not fit into the usual 1024 entries.
const NEIGHBOURS: [(&str, u32); 3] =
    [("gc_thresh3", 16384), ("gc_thresh2", 8192), ("gc_thresh1", 4096)];

/// Record of the changes, and of the labs that need them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct MachineChanges {
    labs: BTreeSet<String>,
    /// Changed files in /proc/sys with their previous content.
    sysctls: BTreeMap<PathBuf, String>,
    /// Directories that were made as mount points.
    directories: BTreeSet<PathBuf>,
}

fn record() -> PathBuf {
    LabPaths::root().join("machine.json")
}

fn lock_machine() -> Result<nix::fcntl::Flock<fs::File>, LabError> {
    lock(&LabPaths::root().join("machine.lock"))
}

/// Makes the machine ready for `lab`, including the directories `mount_points`.
pub(super) fn prepare(lab: &str, mount_points: &[PathBuf]) -> Result<(), LabError> {
    let _lock = lock_machine()?;
    let mut machine: MachineChanges = read_json(&record())?.unwrap_or_default();
    machine.labs.insert(lab.into());
    for (name, wanted) in NEIGHBOURS {
        let path = Path::new("/proc/sys/net/ipv4/neigh/default").join(name);
        // Some containers hide these files. Labs with few hosts work without the change.
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
    // The record is written before the changes, so that a crash in between leaves no change
    // unrecorded.
    write_json(&record(), &machine)?;
    for (name, wanted) in NEIGHBOURS {
        let path = Path::new("/proc/sys/net/ipv4/neigh/default").join(name);
        if machine.sysctls.contains_key(&path) {
            let _ = fs::write(&path, wanted.to_string());
        }
    }
    for directory in mount_points {
        make_dir(directory)?;
    }
    Ok(())
}

/// Releases the machine from `lab`; the last lab restores it.
pub(super) fn release(lab: &str) -> Result<(), LabError> {
    let _lock = lock_machine()?;
    let mut machine: MachineChanges = read_json(&record())?.unwrap_or_default();
    machine.labs.remove(lab);
    // A lab whose files are gone may still be in the record.
    machine.labs.retain(|name| LabPaths::new(name).dir.exists());
    if !machine.labs.is_empty() {
        return write_json(&record(), &machine);
    }
    for (path, value) in &machine.sysctls {
        fs::write(path, value).map_err(LabError::io(format!("restore {}", path.display())))?;
    }
    for directory in &machine.directories {
        // Fails if the directory is in use now.
        let _ = fs::remove_dir(directory);
    }
    let _ = fs::remove_file(record());
    let _ = fs::remove_file(LabPaths::root().join("machine.lock"));
    Ok(())
}
