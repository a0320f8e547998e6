//! Program of a rank that starts helper processes, which try to outlive it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
use crate::{Lab, LabError};

const SOURCE: &str = include_str!("hostile.c");

/// Compiles the program into a directory; returns its path.
pub fn build(directory: &Path) -> Result<PathBuf, LabError> {
    let (source, program) = (directory.join("hostile.c"), directory.join("hostile"));
    let operation = "compile the hostile rank";
    fs::write(&source, SOURCE).map_err(LabError::io(operation))?;
    run(operation, Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source))?;
    Ok(program)
}

/// Returns whether any process that the program started runs on a host, however briefly. All of
/// them hold a lock, so the kernel knows.
pub fn is_running(lab: &Lab, host: &str) -> Result<bool, LabError> {
    let tmp = lab.path(host, Path::new("/tmp"))?;
    let entries = fs::read_dir(&tmp).map_err(LabError::io(format!("read {}", tmp.display())))?;
    let locks = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("hostile.alive."));
    for lock in locks {
        let lock = File::open(lock.path()).map_err(LabError::io("open the helpers' lock"))?;
        if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(true);
        }
    }
    Ok(false)
}
