//! Paths of a lab, its record, and processes that can be recognised later.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::files::make_dir;

/// Directory of all labs. It is on a tmpfs, so that it vanishes at a reboot as the namespaces do.
const ROOT: &str = "/run/rlaunch-lab";

/// Paths of one lab.
#[derive(Debug, Clone)]
pub(crate) struct LabPaths {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
}

impl LabPaths {
    pub(crate) fn new(name: &str) -> LabPaths {
        LabPaths { name: name.into(), dir: Path::new(ROOT).join(name) }
    }

    /// Returns the directory of all labs.
    pub(crate) fn root() -> &'static Path {
        Path::new(ROOT)
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.dir.join("lab.json")
    }

    /// Returns the directory of files that are mounted over those of the same name in every `/etc`.
    pub(crate) fn etc(&self) -> PathBuf {
        self.dir.join("etc")
    }

    /// Returns the private key that is authorised on every host.
    pub(crate) fn key(&self) -> PathBuf {
        self.dir.join("id_ed25519")
    }

    /// Returns the directory of the launch node's files: its `.ssh` directories and its user's
    /// home.
    pub(crate) fn launch(&self) -> PathBuf {
        self.dir.join(super::names::LAUNCH)
    }

    pub(crate) fn host(&self, host: &str) -> PathBuf {
        self.dir.join("hosts").join(host)
    }

    /// Returns the directory of the home directories of a lab with a shared home.
    pub(crate) fn shared(&self) -> PathBuf {
        self.dir.join("shared")
    }

    /// Returns the name of a node's network namespace.
    pub(crate) fn netns(&self, node: &str) -> String {
        format!("{}{node}", self.netns_prefix())
    }

    pub(crate) fn netns_prefix(&self) -> String {
        format!("rlaunch-{}-", self.name)
    }

    /// Locks the lab, so that other `cargo lab` processes wait until the lock is dropped.
    pub(crate) fn lock(&self) -> Result<Flock<File>, LabError> {
        lock(&Path::new(ROOT).join(format!("{}.lock", self.name)))
    }
}

/// Waits for the lock on `path`, a file below [`ROOT`]. The holder may delete the file, so a lock is
/// valid only if the path still names the locked file. The last lab to go deletes the directory, at
/// any time before the file is there.
pub(crate) fn lock(path: &Path) -> Result<Flock<File>, LabError> {
    let operation = format!("lock {}", path.display());
    loop {
        make_dir(Path::new(ROOT))?;
        let file = match File::create(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            created => created.map_err(LabError::io(operation.clone()))?,
        };
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| LabError::errno(operation.clone())(errno))?;
        let locked = lock.metadata().map_err(LabError::io(operation.clone()))?;
        if fs::metadata(path).is_ok_and(|named| named.ino() == locked.ino()) {
            return Ok(lock);
        }
    }
}

/// Record of a lab, written by `up` and read by all later commands.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LabRecord {
    pub(crate) net: [u8; 2],
    pub(crate) hosts: usize,
    pub(crate) shared_home: bool,
    /// Cgroup of the lab, where the machine allows one.
    pub(crate) cgroup: Option<PathBuf>,
    /// Directories that hosts must not see.
    pub(crate) hidden: Vec<PathBuf>,
    /// Virtual environments that had been built: path on hosts, and directory.
    #[serde(default)]
    pub(crate) venvs: Vec<(String, PathBuf)>,
}

/// Reads a JSON file. Returns nothing if it does not exist.
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

/// Replaces a JSON file atomically, so that a crash leaves either the old or the new one.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), LabError> {
    let what = path.display().to_string();
    let text = serde_json::to_vec_pretty(value)
        .map_err(|source| LabError::Format { what: what.clone(), source })?;
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .map_err(LabError::io(format!("write {what}")))
}

/// Process that can be recognised later: its pid may be reused, but not together with its start
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Reads a file that [`ProcessId::store`] wrote; `None` if the process has ended.
    pub(crate) fn load(path: &Path) -> Option<ProcessId> {
        read_json(path).ok()?.filter(|process: &ProcessId| process.is_alive())
    }

    pub(crate) fn store(self, path: &Path) -> Result<(), LabError> {
        write_json(path, &self)
    }
}
