//! Where a lab of guests keeps its files, and what it remembers of itself: enough for `down` to
//! find everything after a crash.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};

use super::image::Image;
use super::topology::Topology;
use crate::LabError;
use crate::netns::state::{self, ProcessId, read_json, write_json};

/// The paths of one lab.
#[derive(Debug, Clone)]
pub(super) struct VmPaths {
    pub(super) name: String,
    /// Beside the labs of namespaces, whose names have no hyphen.
    pub(super) dir: PathBuf,
}

impl VmPaths {
    pub(super) fn new(name: &str) -> VmPaths {
        VmPaths { name: name.into(), dir: state::LabPaths::root().join(format!("vm-{name}")) }
    }

    fn record(&self) -> PathBuf {
        self.dir.join("lab.json")
    }

    /// How ssh reaches the guests from the head.
    pub(super) fn ssh_config(&self) -> PathBuf {
        self.dir.join("ssh_config")
    }

    /// The files of one guest.
    pub(super) fn guest(&self, guest: &str) -> PathBuf {
        self.dir.join(guest)
    }

    /// The head's network namespace. It must not look like one of a lab of namespaces, which
    /// removes whatever begins with its own name.
    pub(super) fn netns(&self) -> String {
        format!("rlaunchvm-{}", self.name)
    }

    pub(super) fn netns_file(&self) -> PathBuf {
        Path::new("/run/netns").join(self.netns())
    }

    /// Keeps other runs of the lab tool out until the lock is dropped.
    pub(super) fn lock(&self) -> Result<Flock<File>, LabError> {
        let root = state::LabPaths::root();
        fs::create_dir_all(root).map_err(LabError::io(format!("make {}", root.display())))?;
        state::lock(&self.lock_file())
    }

    pub(super) fn lock_file(&self) -> PathBuf {
        self.dir.with_extension("lock")
    }
}

/// What `up` decided and everybody else needs to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct VmRecord {
    pub(super) guests: usize,
    pub(super) topology: Topology,
    /// Processors of each guest.
    pub(super) cpus: usize,
    /// The last guest has no soft RoCE.
    pub(super) mixed: bool,
    /// The directory of the image: today's recipe may be another.
    image: PathBuf,
    /// What the first guest sees as `/share`.
    pub(super) share: Option<PathBuf>,
    /// Whether nothing in it changes while guests run.
    pub(super) is_share_fixed: bool,
}

impl VmRecord {
    pub(super) fn new(guests: usize, topology: Topology, image: &Image) -> VmRecord {
        let image = image.dir().to_path_buf();
        VmRecord {
            guests,
            topology,
            cpus: 1,
            mixed: false,
            image,
            share: None,
            is_share_fixed: false,
        }
    }

    pub(super) fn image(&self) -> Image {
        Image::at(&self.image)
    }

    pub(super) fn load(paths: &VmPaths) -> Result<Option<VmRecord>, LabError> {
        read_json(&paths.record())
    }

    pub(super) fn store(&self, paths: &VmPaths) -> Result<(), LabError> {
        write_json(&paths.record(), self)
    }
}

/// Remembers the process that is a guest, known by its number and start time.
pub(super) fn store_process(dir: &Path, pid: i32) -> Result<(), LabError> {
    // One that has ended since is found out by whoever waits for the guest.
    ProcessId::running(pid).map_or(Ok(()), |process| process.store(&dir.join("process")))
}

/// The process that is a guest, if it still runs.
pub(super) fn process(dir: &Path) -> Option<ProcessId> {
    ProcessId::load(&dir.join("process")).filter(|process| process.is_alive())
}
