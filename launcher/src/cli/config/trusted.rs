//! Store of the configuration files that the user trusts.
//!
//! Each file has a record in the user's state directory: its path, the SHA-256 of its content, and path and
//! SHA-256 of each file that it names. If the content of any of these files changes, the file is not trusted
//! any more. A record is valid only if it belongs to this user and no other user may write to it, wherever
//! the state directory is.

use super::error::ConfigError;
use super::find;
use super::named::{self, NamedFile};
use nix::unistd::Uid;
use rlaunch_console::process_env::ProcessEnv;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum size of a record, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// Number of hexadecimal digits in a SHA-256.
const DIGITS: usize = 64;
/// Placeholder for the digest of a missing file.
const ABSENT: [u8; DIGITS] = [b'-'; DIGITS];

/// Directory with the records of one user.
#[derive(Clone, Debug)]
pub(crate) struct TrustStore {
    directory: PathBuf,
}

/// File that has a record, and whether it is still trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrustedFile {
    pub(crate) path: PathBuf,
    pub(crate) state: TrustState,
}

/// State of a file that has a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustState {
    /// The file is trusted: neither its content nor that of a file that it names has changed.
    Same,
    /// The file is not trusted any more, since the content of this path has changed: the file itself, or one
    /// that it names.
    Changed(PathBuf),
    /// The file cannot be read any more.
    Gone,
}

impl TrustStore {
    /// Returns the store of this user; fails if there is no state directory.
    pub(crate) fn for_user(env: &ProcessEnv) -> Result<TrustStore, ConfigError> {
        let state = env.state().ok_or(ConfigError::NoStateDirectory)?;
        Ok(TrustStore { directory: state.join("rlaunch/trusted") })
    }

    /// Compares a file's content with its record; `None` if the file has no valid record.
    pub(super) fn state(&self, path: &Path, content: &str) -> Option<TrustState> {
        let identity = identity(path).ok()?;
        let record =
            read(&self.record_of(&identity)).ok().filter(|record| record.path == identity)?;
        Some(match record.state(content) {
            TrustState::Changed(own) if own == identity => TrustState::Changed(path.to_owned()),
            state => state,
        })
    }

    /// Records that the user trusts a file with this content, and the files in `named` with the digests of
    /// their content.
    pub(crate) fn trust(
        &self,
        path: &Path,
        content: &str,
        named: &[NamedFile],
    ) -> Result<(), ConfigError> {
        let write = || {
            let path = identity(path)?;
            let mut record = entry(Some(&named::hex(content.as_bytes())), &path);
            for named in named {
                record.extend(entry(named.digest.as_deref(), &named.name));
            }
            if record.len() > MAX_BYTES {
                return Err(io::Error::other("the file names too many others"));
            }
            DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
            // The file has mode 0600 from the start, and gets its name when it is complete.
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            file.write_all(&record)?;
            file.persist(self.record_of(&path))?;
            Ok(())
        };
        write().map_err(|source| ConfigError::Record { path: self.directory.clone(), source })
    }

    /// Removes the record of a file; returns `false` if it had none.
    pub(crate) fn revoke(&self, path: &Path) -> Result<bool, ConfigError> {
        let remove = || fs::remove_file(self.record_of(&identity(path)?));
        match remove() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(ConfigError::Record { path: self.directory.clone(), source }),
        }
    }

    /// Lists all files with a record, sorted by path.
    pub(crate) fn all(&self) -> Result<Vec<TrustedFile>, ConfigError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(ConfigError::Read { path: self.directory.clone(), source }),
        };
        let records = entries.flatten().filter_map(|entry| read(&entry.path()).ok());
        let mut all: Vec<TrustedFile> = records
            .map(|record| {
                let state = match find::content(&record.path) {
                    Ok(content) => record.state(&content),
                    Err(_) => TrustState::Gone,
                };
                TrustedFile { path: record.path, state }
            })
            .collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(all)
    }

    fn record_of(&self, path: &Path) -> PathBuf {
        self.directory.join(named::hex(path.as_os_str().as_bytes()))
    }
}

/// Returns the path under which a file is recorded: its directory's canonical path, and its name. A symbolic
/// link to the file is not resolved, since names in the file are relative to the directory of the link.
pub(super) fn identity(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(io::Error::other("it is not the name of a file"));
    };
    // When a record is removed, the file's directory may not exist any more.
    Ok(fs::canonicalize(parent).unwrap_or_else(|_| parent.to_owned()).join(name))
}

struct TrustRecord {
    digest: String,
    path: PathBuf,
    /// Digest and name of each file that this file names, relative to its directory. A missing file has no
    /// digest.
    named: Vec<(Option<String>, PathBuf)>,
}

impl TrustRecord {
    fn state(&self, content: &str) -> TrustState {
        if named::hex(content.as_bytes()) != self.digest {
            return TrustState::Changed(self.path.clone());
        }
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let is_other = |(digest, name): &&(Option<String>, PathBuf)| {
            named::digest(&directory.join(name)) != *digest
        };
        let other = self.named.iter().find(is_other);
        other.map_or(TrustState::Same, |(_, name)| TrustState::Changed(name.clone()))
    }
}

/// Encodes the digest and the path of one file for a record.
fn entry(digest: Option<&str>, path: &Path) -> Vec<u8> {
    let digest = digest.map_or(&ABSENT[..], str::as_bytes);
    [digest, b"\n", path.as_os_str().as_bytes(), b"\0"].concat()
}

/// Reads a record, if no other user can have written it.
fn read(record: &Path) -> io::Result<TrustRecord> {
    let file = File::open(record)?;
    let metadata = file.metadata()?;
    if metadata.uid() != Uid::effective().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("another user may have written it"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| io::Error::other("it is not a record"))
}

fn parse(bytes: &[u8]) -> Option<TrustRecord> {
    let bytes = bytes.strip_suffix(b"\0").filter(|_| bytes.len() <= MAX_BYTES)?;
    let entry = |entry: &[u8]| {
        let (digest, path) = entry.split_at_checked(DIGITS)?;
        let written = (digest != ABSENT).then(|| String::from_utf8_lossy(digest).into_owned());
        Some((written, PathBuf::from(OsStr::from_bytes(path.strip_prefix(b"\n")?))))
    };
    let mut entries = bytes.split(|byte| *byte == 0).map(entry);
    let (digest, path) = entries.next()??;
    Some(TrustRecord { digest: digest?, path, named: entries.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use tempfile::TempDir;

    /// Creates a store, and a directory with a file in it.
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
        let trusts =
            |path: &Path, content: &str| store.state(path, content) == Some(TrustState::Same);
        assert_eq!(store.state(&file, "# a"), None);
        store.trust(&file, "# a", &[]).unwrap();
        assert!(trusts(&file, "# a"));
        assert_eq!(store.state(&file, "# b"), Some(TrustState::Changed(file.clone())));
        // Trust covers neither a copy of the file elsewhere nor a link to it.
        let other = scratch.path().join("other");
        fs::create_dir(&other).unwrap();
        symlink(&file, other.join("rlaunch.toml")).unwrap();
        assert!(!trusts(&other.join("rlaunch.toml"), "# a"));
        // A link to its directory leads to the same path.
        symlink(file.parent().unwrap(), scratch.path().join("link")).unwrap();
        assert!(trusts(&scratch.path().join("link/rlaunch.toml"), "# a"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let record = store.record_of(&identity(&file).unwrap());
        assert_eq!((mode(&store.directory), mode(&record)), (0o700, 0o600));
    }

    #[test]
    fn trusted_files_are_listed_with_their_state_and_can_be_revoked() {
        let (_scratch, store, file) = scratch();
        assert_eq!(store.all().unwrap(), []);
        store.trust(&file, "# a", &[]).unwrap();
        let state = || store.all().unwrap()[0].state.clone();
        assert_eq!(state(), TrustState::Same);
        fs::write(&file, "# b").unwrap();
        assert_eq!(state(), TrustState::Changed(identity(&file).unwrap()));
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
        assert_eq!(state(), TrustState::Gone);
        assert!(store.revoke(&file).unwrap() && !store.revoke(&file).unwrap());
        assert_eq!(store.all().unwrap(), []);
    }

    #[test]
    fn a_record_that_others_could_have_written_does_not_count() {
        let (_scratch, store, file) = scratch();
        store.trust(&file, "# a", &[]).unwrap();
        let trusts = || store.state(&file, "# a").is_some();
        let record = store.record_of(&identity(&file).unwrap());
        fs::set_permissions(&record, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(!trusts());
        fs::set_permissions(&record, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(trusts());
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&record, Some(54321), None).unwrap();
            assert!(!trusts());
        }
        let whole = fs::read(&record).unwrap();
        for torn in [&b"x"[..], &whole[..whole.len() - 1]] {
            fs::write(&record, torn).unwrap();
            assert!(!trusts());
        }
    }

    #[test]
    fn a_named_file_that_changes_ends_trust() {
        let (_scratch, store, file) = scratch();
        let other = file.with_file_name("ssh.cfg");
        fs::write(&other, "Host a").unwrap();
        let named = |name: &str| {
            let digest = named::digest(&file.with_file_name(name));
            NamedFile { line: 1, name: name.into(), digest, is_word: false }
        };
        let named = [named("ssh.cfg"), named("env"), named("../e")];
        store.trust(&file, "# a", &named).unwrap();
        let state = || {
            let state = store.state(&file, "# a").unwrap();
            assert_eq!(store.all().unwrap()[0].state, state);
            state
        };
        assert_eq!(state(), TrustState::Same);
        for (path, content) in [("ssh.cfg", "Host a"), ("env", ""), ("../e", "")] {
            let path_there = file.with_file_name(path);
            fs::write(&path_there, "ProxyCommand evil").unwrap();
            assert_eq!(state(), TrustState::Changed(path.into()));
            match content {
                "" => fs::remove_file(&path_there).unwrap(),
                content => fs::write(&path_there, content).unwrap(),
            }
            assert_eq!(state(), TrustState::Same);
        }
        fs::remove_file(&other).unwrap();
        assert_eq!(state(), TrustState::Changed("ssh.cfg".into()));
    }
}
