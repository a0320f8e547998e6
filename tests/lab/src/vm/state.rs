//! Paths and record of a lab of guests: enough for `down` to find everything after a crash.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};

use super::image::Image;
use super::topology::Topology;
use crate::LabError;
use crate::netns::state::{self, ProcessId};

/// Paths of one lab.
#[derive(Debug, Clone)]
pub(super) struct VmPaths {
    pub(super) name: String,
    /// Directory of the lab. Labs of namespaces have theirs in the same parent; their names have no
    /// hyphen.
    pub(super) dir: PathBuf,
}

impl VmPaths {
    pub(super) fn new(name: &str) -> VmPaths {
        VmPaths { name: name.into(), dir: state::LabPaths::root().join(format!("vm-{name}")) }
    }

    pub(super) fn record(&self) -> PathBuf {
        self.dir.join("lab.json")
    }

    /// Returns the ssh configuration of the head, whose home is the lab's directory.
    pub(super) fn ssh_config(&self) -> PathBuf {
        self.dir.join(".ssh/config")
    }

    /// Returns the directory of one guest's files.
    pub(super) fn guest(&self, guest: &str) -> PathBuf {
        self.dir.join(guest)
    }

    /// Returns the name of the head's network namespace. It must not begin as those of a lab of
    /// namespaces do, since such a lab removes every namespace with its own prefix.
    pub(super) fn netns(&self) -> String {
        format!("rlaunchvm-{}", self.name)
    }

    pub(super) fn netns_file(&self) -> PathBuf {
        Path::new("/run/netns").join(self.netns())
    }

    /// Locks the lab, so that other `cargo lab` processes wait until the lock is dropped.
    pub(super) fn lock(&self) -> Result<Flock<File>, LabError> {
        state::lock(&self.lock_file())
    }

    pub(super) fn lock_file(&self) -> PathBuf {
        self.dir.with_extension("lock")
    }
}

/// Record of a lab, written by `up` and read by all later commands.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct VmRecord {
    pub(super) guests: usize,
    pub(super) topology: Topology,
    /// Directory of the image; the current recipe may make another one.
    pub(super) image: PathBuf,
    /// Directory that the first guest sees as `/share`.
    pub(super) share: Option<PathBuf>,
    /// Whether the share stays unchanged while guests run.
    pub(super) is_share_fixed: bool,
}

impl VmRecord {
    pub(super) fn image(&self) -> Image {
        Image::at(&self.image)
    }
}

/// Records the QEMU process of a guest, by its pid and start time.
pub(super) fn store_process(dir: &Path, pid: i32) -> Result<(), LabError> {
    // If it has ended already, the wait for the guest reports that.
    ProcessId::running(pid).map_or(Ok(()), |process| process.store(&dir.join("process")))
}

/// Returns the QEMU process of a guest, if it still runs.
pub(super) fn process(dir: &Path) -> Option<ProcessId> {
    ProcessId::load(&dir.join("process"))
}
