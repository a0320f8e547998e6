//! Hosts on which launchers are measured, and files that they need there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Lab, LabError, Options};

/// Time limit for hosts to become idle after a launcher has returned.
const IDLE: Duration = Duration::from_secs(30);

/// Describes the lab of benches, of which only one runs at a time.
pub(super) fn bench_lab(hosts: usize) -> Options {
    Options { net: [10, 97], ..Options::new("bench", hosts) }
}

/// Hosts of a lab, and the launcher that is measured there.
pub(super) struct Testbed {
    pub(super) lab: Lab,
    pub(super) hosts: Vec<String>,
    /// Path of `rlaunch`.
    pub(super) rlaunch: PathBuf,
}

impl Testbed {
    pub(super) fn new(lab: Lab, rlaunch: PathBuf) -> Testbed {
        Testbed { hosts: lab.hosts(), lab, rlaunch }
    }

    /// Starts fresh hosts, calls `act` with them and removes them.
    pub(super) fn with_fresh<T>(
        lab: &Options,
        rlaunch: PathBuf,
        act: impl FnOnce(&Testbed) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        println!("starting {} hosts", lab.hosts);
        Lab::with_fresh(lab, |lab| act(&Testbed::new(lab, rlaunch)))
    }

    /// Copies a file of this machine to the path `to` on every host.
    pub(super) fn copy(&self, from: &Path, to: &Path, mode: u32) -> Result<(), LabError> {
        let bytes = fs::read(from).map_err(LabError::io(format!("read {}", from.display())))?;
        self.hosts.iter().try_for_each(|host| self.lab.write_file(host, to, &bytes, mode))
    }

    /// Copies a file of this machine to a directory on every host.
    pub(super) fn copy_into(&self, from: &Path, folder: &str, mode: u32) -> Result<(), LabError> {
        self.copy(from, &Path::new(folder).join(from.file_name().unwrap_or_default()), mode)
    }

    /// Waits until nothing runs on any host.
    pub(super) fn wait_until_idle(&self) -> Result<(), LabError> {
        self.lab.wait_until_idle(IDLE)
    }

    /// Kills what still runs on any node, and removes the temporary files of the hosts.
    pub(super) fn clear(&self) -> Result<(), LabError> {
        clear(&self.lab)
    }

    /// Calls `act`; returns its result and the seconds of CPU time used on all nodes together until
    /// the hosts are idle; none on a machine without cgroup v2.
    pub(super) fn with_cpu<T>(
        &self,
        act: impl FnOnce() -> Result<T, LabError>,
    ) -> Result<(T, Option<f64>), LabError> {
        let before = self.lab.cpu_usage();
        let done = act()?;
        self.wait_until_idle()?;
        let used = self.lab.cpu_usage().zip(before).map(|(after, before)| after - before);
        Ok((done, used.map(|used| used.as_secs_f64())))
    }
}

/// Kills everything that runs in the lab, and removes the temporary files of all hosts.
pub(crate) fn clear(lab: &Lab) -> Result<(), LabError> {
    lab.clear()?;
    for (_, _, outside) in temporary_files(lab) {
        let removed =
            if outside.is_dir() { fs::remove_dir_all(&outside) } else { fs::remove_file(&outside) };
        removed.map_err(LabError::io(format!("remove {}", outside.display())))?;
    }
    Ok(())
}

/// Lists temporary files and directories: the host, the path there and the path on this machine.
pub(crate) fn temporary_files(lab: &Lab) -> Vec<(String, PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for host in lab.hosts() {
        for directory in ["/tmp", "/dev/shm"].map(Path::new) {
            let Ok(outside) = lab.path(&host, directory) else { continue };
            for entry in fs::read_dir(outside).into_iter().flatten().flatten() {
                found.push((host.clone(), directory.join(entry.file_name()), entry.path()));
            }
        }
    }
    found
}

/// Temporary directory of this machine, removed when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn make() -> Result<Scratch, LabError> {
        let path = std::env::temp_dir().join(format!("rlaunch-bench-{}", std::process::id()));
        fs::create_dir(&path).map_err(LabError::io(format!("make {}", path.display())))?;
        Ok(Scratch(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
