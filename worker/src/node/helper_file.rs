//! Executables of helper programs in this node's cache. They are in the same directory as the agent's
//! executable, and their names contain a hash of their content. Where rlaunch itself is installed, the
//! programs are beside the agent under their own names, and the directory may be read-only.

use crate::node::cache;
use nix::unistd::gethostname;
use rlaunch_bootstrap::protocol::control::{Helper, HelperFile};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Number of bytes of the hash that are part of the file's name.
const HASH_BYTES: usize = 16;

/// Helper's file while it is being received.
pub(crate) struct HelperDownload {
    helper: Helper,
    wanted: HelperFile,
    path: PathBuf,
    /// Temporary path until the file is complete.
    new: PathBuf,
    file: File,
    hasher: Sha256,
}

/// Result of looking for a helper in the cache.
pub(crate) enum Located {
    Cached(PathBuf),
    Missing(HelperDownload),
}

impl HelperDownload {
    /// Looks for a helper in the cache. If it is missing, creates a temporary file to receive it.
    pub(crate) fn locate(helper: Helper, wanted: HelperFile) -> Result<Located, String> {
        let agent = std::env::current_exe()
            .map_err(|e| format!("cannot determine the path of the agent: {e}"))?;
        let beside = agent.parent().unwrap_or(Path::new("/"));
        let path = beside.join(name(helper, &wanted));
        // The hash was verified before the file got this name; the size is checked again, because a
        // full disk may have truncated it since.
        let is_whole = fs::metadata(&path).is_ok_and(|found| found.len() == wanted.size);
        if is_whole && cache::check(&path).is_ok() {
            return Ok(Located::Cached(path));
        }
        let installed = beside.join(helper.name());
        if is_installed(&installed, &wanted) {
            return Ok(Located::Cached(installed));
        }
        // Hosts may share the home directory, so the name includes the host.
        let host = gethostname().unwrap_or_default();
        let new = format!("new.{}.{}", host.to_string_lossy(), std::process::id());
        let new = path.with_extension(new);
        let open =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(&new);
        let file = open.map_err(|error| cannot_keep(&new, &error))?;
        let hasher = Sha256::new();
        Ok(Located::Missing(HelperDownload { helper, wanted, path, new, file, hasher }))
    }

    /// Writes the next part of the file. An empty part ends the file: the file is verified and
    /// renamed to its final path, which is returned.
    pub(crate) fn receive(&mut self, part: &[u8]) -> Result<Option<PathBuf>, String> {
        if !part.is_empty() {
            self.hasher.update(part);
            let written = self.file.write_all(part);
            return written.map(|()| None).map_err(|error| cannot_keep(&self.new, &error));
        }
        let found: [u8; 32] = self.hasher.clone().finalize().into();
        if found != self.wanted.sha256 {
            return Err(format!("{} was damaged on the way", self.helper.name()));
        }
        // Reopened read-only, because a file that is open for writing cannot be executed (ETXTBSY).
        self.file = File::open(&self.new).map_err(|error| cannot_keep(&self.new, &error))?;
        fs::rename(&self.new, &self.path).map_err(|error| cannot_keep(&self.path, &error))?;
        Ok(Some(self.path.clone()))
    }
}

impl Drop for HelperDownload {
    fn drop(&mut self) {
        // Fails if the file was moved into place.
        let _ = fs::remove_file(&self.new);
    }
}

/// Tells whether a file is the wanted program.
fn is_installed(path: &Path, wanted: &HelperFile) -> bool {
    // The size tells most others apart, without reading them.
    let is_safe = cache::check(path).is_ok_and(|found| found.len() == wanted.size);
    let content = || fs::read(path).is_ok_and(|bytes| Sha256::digest(&bytes)[..] == wanted.sha256);
    is_safe && content()
}

fn cannot_keep(path: &Path, error: &io::Error) -> String {
    format!("cannot keep {}: {error}", path.display())
}

/// Returns the file's name in the cache, such as `rlaunch-prover-HASH`.
fn name(helper: Helper, file: &HelperFile) -> String {
    let mut name = format!("{}-", helper.name());
    for byte in &file.sha256[..HASH_BYTES] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_arrives_once_and_a_damaged_one_never() {
        let content = b"#!/bin/true\n";
        let sha256: [u8; 32] = Sha256::digest(content).into();
        let wanted = HelperFile { sha256, size: content.len() as u64 };
        let receive = |bytes: &[u8]| {
            let Located::Missing(mut download) =
                HelperDownload::locate(Helper::Prover, wanted.clone()).unwrap()
            else {
                panic!("it is in the cache already");
            };
            for part in bytes.chunks(5) {
                assert_eq!(download.receive(part), Ok(None));
            }
            download.receive(&[])
        };
        assert!(receive(b"something else").is_err());
        let path = receive(content).unwrap().unwrap();
        assert_eq!(fs::read(&path).unwrap(), content);
        assert!(
            matches!(HelperDownload::locate(Helper::Prover, wanted.clone()), Ok(Located::Cached(found)) if found == path)
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_installed_file_is_used_if_it_is_the_wanted_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rlaunch-stack");
        let content = b"#!/bin/true\n";
        fs::write(&path, content).unwrap();
        let size = content.len() as u64;
        assert!(is_installed(&path, &HelperFile { sha256: Sha256::digest(content).into(), size }));
        assert!(!is_installed(&path, &HelperFile { sha256: [7; 32], size }));
        let missing = directory.path().join("missing");
        assert!(!is_installed(&missing, &HelperFile { sha256: [7; 32], size }));
    }
}
