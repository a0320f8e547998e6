//! Where a lab keeps its files, and what it remembers of itself.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::LabError;

/// All labs of this machine; gone after a reboot, as the namespaces are.
const ROOT: &str = "/run/rlaunch-lab";

/// The paths of one lab.
#[derive(Debug, Clone)]
pub(crate) struct LabPaths {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
}

impl LabPaths {
    pub(crate) fn new(name: &str) -> LabPaths {
        LabPaths { name: name.into(), dir: Path::new(ROOT).join(name) }
    }

    /// The directory above all labs.
    pub(crate) fn root() -> &'static Path {
        Path::new(ROOT)
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.dir.join("lab.json")
    }

    /// Files that stand for those of the same name in every `/etc`.
    pub(crate) fn etc(&self) -> PathBuf {
        self.dir.join("etc")
    }

    /// The key pair that opens every host.
    pub(crate) fn key(&self) -> PathBuf {
        self.dir.join("id_ed25519")
    }

    /// The launch node's files: its `.ssh` directories and its user's home.
    pub(crate) fn launch(&self) -> PathBuf {
        self.dir.join(super::names::LAUNCH)
    }

    pub(crate) fn host(&self, host: &str) -> PathBuf {
        self.dir.join("hosts").join(host)
    }

    /// The home directories of all hosts of a lab with a shared home.
    pub(crate) fn shared(&self) -> PathBuf {
        self.dir.join("shared")
    }

    /// The name of a node's network namespace.
    pub(crate) fn netns(&self, node: &str) -> String {
        format!("{}{node}", self.netns_prefix())
    }

    pub(crate) fn netns_prefix(&self) -> String {
        format!("rlaunch-{}-", self.name)
    }

    /// Keeps other runs of the lab tool out until the lock is dropped.
    pub(crate) fn lock(&self) -> Result<Flock<File>, LabError> {
        fs::create_dir_all(ROOT).map_err(LabError::io(format!("make {ROOT}")))?;
        lock(&Path::new(ROOT).join(format!("{}.lock", self.name)))
    }
}

/// Waits for the lock on `path`. Its holder may delete the file, so a lock counts only while the
/// name still leads to it.
pub(crate) fn lock(path: &Path) -> Result<Flock<File>, LabError> {
    let operation = format!("lock {}", path.display());
    loop {
        let file = File::create(path).map_err(LabError::io(operation.clone()))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| LabError::errno(operation.clone())(errno))?;
        let locked = lock.metadata().map_err(LabError::io(operation.clone()))?;
        if fs::metadata(path).is_ok_and(|named| named.ino() == locked.ino()) {
            return Ok(lock);
        }
    }
}

/// What `up` decided and everybody else needs to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LabRecord {
    pub(crate) net: [u8; 2],
    pub(crate) hosts: usize,
    pub(crate) shared_home: bool,
    /// The lab's own cgroup, where the machine allows one.
    pub(crate) cgroup: Option<PathBuf>,
    /// Directories that hosts must not see.
    pub(crate) hidden: Vec<PathBuf>,
    /// The Python with torch that hosts see, if there was one.
    pub(crate) python: Option<PathBuf>,
}

impl LabRecord {
    pub(crate) fn load(paths: &LabPaths) -> Result<Option<LabRecord>, LabError> {
        read_json(&paths.record())
    }

    pub(crate) fn store(&self, paths: &LabPaths) -> Result<(), LabError> {
        write_json(&paths.record(), self)
    }
}

/// Reads a JSON file; `None` when there is none.
pub(crate) fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>, LabError> {
    let what = path.display().to_string();
    match fs::read(path) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some(value)),
            Err(source) => Err(LabError::Format { what, source }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LabError::io(format!("read {what}"))(error)),
    }
}

/// Replaces a JSON file in one step, so that a crash leaves the old one or the new one.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), LabError> {
    let what = path.display().to_string();
    let text = serde_json::to_vec_pretty(value)
        .map_err(|source| LabError::Format { what: what.clone(), source })?;
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .map_err(LabError::io(format!("write {what}")))
}

/// A process that can be recognised later: numbers are used again, start times are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessId {
    pub(crate) pid: i32,
    start: u64,
}

impl ProcessId {
    pub(crate) fn running(pid: i32) -> Option<ProcessId> {
        Some(ProcessId { pid, start: super::processes::start_time(pid)? })
    }

    pub(crate) fn is_alive(self) -> bool {
        super::processes::start_time(self.pid) == Some(self.start)
    }

    /// Reads the `pid start` that [`ProcessId::store`] wrote.
    pub(crate) fn load(path: &Path) -> Option<ProcessId> {
        let text = fs::read_to_string(path).ok()?;
        let (pid, start) = text.trim().split_once(' ')?;
        Some(ProcessId { pid: pid.parse().ok()?, start: start.parse().ok()? })
    }

    pub(crate) fn store(self, path: &Path) -> Result<(), LabError> {
        fs::write(path, format!("{} {}\n", self.pid, self.start))
            .map_err(LabError::io(format!("write {}", path.display())))
    }
}
