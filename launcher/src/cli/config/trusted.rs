//! Files of working directories that the user trusts: a record for each in the user's state
//! directory, with the file's path and the SHA-256 of its content. Another content is not trusted.
//!
//! A record counts only if it belongs to this user and nobody else may write to it, wherever the
//! state directory is.

use super::error::ConfigError;
use super::find;
use crate::console::surroundings::Surroundings;
use nix::unistd::Uid;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The longest record, in bytes: a digest, a line end and a path.
const LONGEST: u64 = 8 << 10;
/// Characters of a digest as it is written.
const DIGITS: usize = 64;

/// The records of one user.
#[derive(Clone, Debug)]
pub(crate) struct TrustStore {
    directory: PathBuf,
}

/// A file that was trusted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trusted {
    pub(crate) path: PathBuf,
    pub(crate) state: State,
}

/// State of a file that was trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its content is the trusted one.
    Same,
    /// It has another content, which does not count.
    Changed,
    /// It cannot be read any more.
    Gone,
}

impl TrustStore {
    /// Finds the user's; fails where there is no state directory.
    pub(crate) fn of(around: &Surroundings) -> Result<TrustStore, ConfigError> {
        let state = around.state().ok_or(ConfigError::NoState)?;
        Ok(TrustStore { directory: state.join("rlaunch/trusted") })
    }

    /// Tells whether this content of a file is trusted. A record that cannot be read does not count.
    pub(super) fn trusts(&self, path: &Path, content: &str) -> bool {
        let record = identity(path).and_then(|path| read(&self.record_of(&path)));
        record.is_ok_and(|(digest, trusted)| {
            digest == hex(content.as_bytes()) && identity(path).is_ok_and(|path| path == trusted)
        })
    }

    /// Trusts this content of a file, and no other.
    pub(crate) fn trust(&self, path: &Path, content: &str) -> Result<(), ConfigError> {
        let write = || {
            let path = identity(path)?;
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            // Its mode is 0600 from the start, and it gets its name when it is whole.
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            file.write_all(&[hex(content.as_bytes()).as_bytes(), b"\n"].concat())?;
            file.write_all(path.as_os_str().as_bytes())?;
            file.persist(self.record_of(&path))?;
            Ok(())
        };
        write().map_err(|source| ConfigError::Record { path: self.directory.clone(), source })
    }

    /// Forgets a file; `false` if it was not trusted.
    pub(crate) fn revoke(&self, path: &Path) -> Result<bool, ConfigError> {
        let remove = || fs::remove_file(self.record_of(&identity(path)?));
        match remove() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(ConfigError::Record { path: self.directory.clone(), source }),
        }
    }

    /// Lists every file that was trusted and not revoked, by path.
    pub(crate) fn all(&self) -> Result<Vec<Trusted>, ConfigError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(ConfigError::Read { path: self.directory.clone(), source }),
        };
        let records = entries.flatten().filter_map(|entry| read(&entry.path()).ok());
        let mut all: Vec<Trusted> = records
            .map(|(digest, path)| {
                let state = match find::content(&path) {
                    Ok(content) if hex(content.as_bytes()) == digest => State::Same,
                    Ok(_) => State::Changed,
                    Err(_) => State::Gone,
                };
                Trusted { path, state }
            })
            .collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(all)
    }

    fn record_of(&self, path: &Path) -> PathBuf {
        self.directory.join(hex(path.as_os_str().as_bytes()))
    }
}

/// Gives the path by which a file is recorded: its name in its directory's real path. A link is not
/// the file it leads to, since a trusted file may name others relative to its own directory.
pub(super) fn identity(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(io::Error::other("it names no file"));
    };
    // The directory of a file that is to be revoked may be gone.
    Ok(fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned()).join(name))
}

/// Reads a record: a digest and a path.
fn read(record: &Path) -> io::Result<(String, PathBuf)> {
    let file = File::open(record)?;
    let metadata = file.metadata()?;
    if metadata.uid() != Uid::effective().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not this user's alone"));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    let parts = bytes.split_at_checked(DIGITS).and_then(|(digest, path)| {
        Some((str::from_utf8(digest).ok()?.to_owned(), path.strip_prefix(b"\n")?))
    });
    let (digest, path) = parts.ok_or_else(|| io::Error::other("it is no record"))?;
    Ok((digest, OsStr::from_bytes(path).into()))
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    /// A store, and a directory with a file in it.
    fn scratch() -> (TempDir, TrustStore, PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let store = TrustStore { directory: scratch.path().join("state/trusted") };
        let file = scratch.path().join("here/rlaunch.toml");
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, "# a").unwrap();
        (scratch, store, file)
    }

    #[test]
    fn one_content_of_one_file_is_trusted() {
        let (scratch, store, file) = scratch();
        assert!(!store.trusts(&file, "# a"));
        store.trust(&file, "# a").unwrap();
        assert!(store.trusts(&file, "# a") && !store.trusts(&file, "# b"));
        // The same content elsewhere, behind a link, or a link in its place, is not.
        let other = scratch.path().join("other");
        fs::create_dir(&other).unwrap();
        symlink(&file, other.join("rlaunch.toml")).unwrap();
        assert!(!store.trusts(&other.join("rlaunch.toml"), "# a"));
        // A link to its directory is the same directory.
        symlink(file.parent().unwrap(), scratch.path().join("link")).unwrap();
        assert!(store.trusts(&scratch.path().join("link/rlaunch.toml"), "# a"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let record = store.record_of(&identity(&file).unwrap());
        assert_eq!((mode(&store.directory), mode(&record)), (0o700, 0o600));
    }

    #[test]
    fn trusted_files_are_listed_with_their_state_and_can_be_revoked() {
        let (_scratch, store, file) = scratch();
        assert_eq!(store.all().unwrap(), []);
        store.trust(&file, "# a").unwrap();
        let state = || store.all().unwrap()[0].state;
        assert_eq!(state(), State::Same);
        fs::write(&file, "# b").unwrap();
        assert_eq!(state(), State::Changed);
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
        assert_eq!(state(), State::Gone);
        assert!(store.revoke(&file).unwrap() && !store.revoke(&file).unwrap());
        assert_eq!(store.all().unwrap(), []);
    }

    #[test]
    fn a_record_that_others_could_have_written_does_not_count() {
        let (_scratch, store, file) = scratch();
        store.trust(&file, "# a").unwrap();
        let record = store.record_of(&identity(&file).unwrap());
        fs::set_permissions(&record, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(!store.trusts(&file, "# a"));
        fs::set_permissions(&record, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(store.trusts(&file, "# a"));
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&record, Some(54321), None).unwrap();
            assert!(!store.trusts(&file, "# a"));
        }
        fs::write(&record, "x").unwrap();
        assert!(!store.trusts(&file, "# a"));
    }
}
