//! The program whose helpers do not want to end with it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;
use crate::{Lab, LabError};

const SOURCE: &str = include_str!("hostile.c");

/// Compiles it into a directory; gives its path.
pub fn build(directory: &Path) -> Result<PathBuf, LabError> {
    let (source, program) = (directory.join("hostile.c"), directory.join("hostile"));
    let operation = "compile the hostile rank";
    fs::write(&source, SOURCE).map_err(LabError::io(operation))?;
    run(operation, Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source))?;
    Ok(program)
}

/// Whether any process that it has started on a host lives, however briefly: the kernel says so, by a
/// lock that all of them hold.
pub fn lives(lab: &Lab, host: &str) -> Result<bool, LabError> {
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
