//! Files and directories of this machine, with errors that name them.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::LabError;

pub(crate) fn read(path: &Path) -> Result<String, LabError> {
    fs::read_to_string(path).map_err(LabError::io(format!("read {}", path.display())))
}

/// Writes a file with `mode`. An existing file keeps its inode.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>, mode: u32) -> Result<(), LabError> {
    fs::write(path, bytes)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(LabError::io(format!("write {}", path.display())))
}

/// Makes a directory and those above it, unless it exists.
pub(crate) fn make_dir(path: &Path) -> Result<(), LabError> {
    fs::create_dir_all(path).map_err(LabError::io(format!("make {}", path.display())))
}

/// Removes a directory and all below it, if it exists.
pub(crate) fn remove_dir(path: &Path) -> Result<(), LabError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(LabError::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}
