//! The seal of a copy of a working tree, as a file beside it.

use rlaunch_bootstrap::job::seal::Seal;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Makes the seal of a copy, if it has one, that of a copy which is being changed. It still says what has come with the copy,
/// so that this can be removed.
pub fn unseal(copy: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).open(Seal::path(copy)) {
        Ok(file) => file.write_all_at(&Seal::UNFINISHED, Seal::CONTENT.start as u64),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(cause) => Err(cause),
    }
}

/// Seals a copy, which is whole.
pub fn seal(copy: &Path, seal: &Seal<'_>, content: &[u8; 32]) -> io::Result<()> {
    let path = Seal::path(copy);
    let new = path.with_extension("seal.new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&new)?.write_all(&seal.encode(content))?;
    // Without a sync: half a seal is none.
    fs::rename(&new, &path)
}
