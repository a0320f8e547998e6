//! Programs that the launcher sends: the agent itself, and helpers.
//!
//! `__verify` and `__keep`, the verbs with which the launcher starts a copy of the agent that it
//! has just sent to this host. The copy checks that its own file is complete. `__keep` also moves
//! the file into place in the cache. That this code runs proves that the host can execute the copy.
//!
//! Executables of helper programs in this node's cache. They are in the same directory as the agent's
//! executable, and their names contain a hash of their content. Where rlaunch itself is installed, the
//! programs are beside the agent under their own names, and the directory may be read-only.

use crate::console::outln;
use crate::node::{self, cache};
use nix::unistd::{Pid, gethostname};
use rlaunch_bootstrap::protocol::control::{Helper, HelperFile};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::net::unix::pipe;

/// File name of the agent in its build directory.
const AGENT: &str = "rlaunch-worker";
/// Time limit for removing old builds: a file server may not answer requests for their locks.
const TRIMMING: Duration = Duration::from_secs(5);

/// Implements `__verify`: succeeds if the SHA-256 of this executable begins with the hexadecimal
/// digits `expected`.
pub(crate) fn verify(expected: Option<OsString>) -> ExitCode {
    match check_hash(Path::new("/proc/self/exe"), &expected_digits(expected)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            outln!("{cause}");
            ExitCode::FAILURE
        }
    }
}

/// Implements `__keep`: verifies this executable, moves it into place and removes old, unused
/// builds. If the executable is complete but cannot be moved, the printed error begins with `cannot
/// keep`.
pub(crate) fn keep(expected: Option<OsString>) -> ExitCode {
    let expected = expected_digits(expected);
    let kept = check_hash(Path::new("/proc/self/exe"), &expected).and_then(|()| {
        let new = std::env::current_exe().map_err(|error| error.to_string())?;
        let path = new.with_file_name(AGENT);
        move_into_place(&new, &path, &expected)
            .map_err(|error| format!("cannot keep {}: {error}", path.display()))?;
        Ok(path)
    });
    match kept {
        Ok(path) => {
            trim_beside(&path);
            ExitCode::SUCCESS
        }
        Err(cause) => {
            outln!("{cause}");
            ExitCode::FAILURE
        }
    }
}

fn expected_digits(word: Option<OsString>) -> String {
    word.and_then(|digits| digits.into_string().ok()).unwrap_or_default()
}

fn check_hash(path: &Path, expected: &str) -> Result<(), String> {
    let bytes = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if !expected.is_empty() && hex(&Sha256::digest(bytes)).starts_with(expected) {
        Ok(())
    } else {
        Err("the copy on this host differs from the file that was sent".to_owned())
    }
}

/// Moves `new` to `path`. A complete file at `path` is kept: agents may be running from it, also on
/// other hosts that share this home directory. Those agents would fail (ESTALE) if the file were
/// replaced.
fn move_into_place(new: &Path, path: &Path, expected: &str) -> io::Result<()> {
    let is_whole = || {
        let found = fs::symlink_metadata(path);
        let runs = found.is_ok_and(|f| f.is_file() && f.permissions().mode() & 0o100 != 0);
        runs && check_hash(path, expected).is_ok()
    };
    match fs::hard_link(new, path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_whole() => {}
        // The file at `path` is damaged, or the file system does not support hard links.
        Err(_) => return fs::rename(new, path),
    }
    fs::remove_file(new)
}

/// Removes old builds from the cache that contains the agent `path`, but keeps the build of `path`.
/// Takes no longer than the time [`TRIMMING`].
fn trim_beside(path: &Path) {
    let Some(own) = path.parent().map(Path::to_owned) else { return };
    let (is_done, waiting) = (Arc::new(AtomicBool::new(false)), thread::current());
    let done = Arc::clone(&is_done);
    let trimming = move || {
        if let Some(cache) = own.parent() {
            cache::trim(cache, cache::is_build, &own);
        }
        done.store(true, Ordering::Release);
        waiting.unpark();
    };
    let (begun, started) = (Instant::now(), node::start_thread(None, Box::new(trimming)));
    let left = || TRIMMING.checked_sub(begun.elapsed()).filter(|_| started.is_ok());
    while let Some(left) = left().filter(|_| !is_done.load(Ordering::Acquire)) {
        thread::park_timeout(left);
    }
}

/// Writes bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Number of bytes of the hash that are part of the file's name.
const HASH_BYTES: usize = 16;

/// Helper's file while it is being received.
#[derive(Debug)]
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
        let name = helper_name(helper, &wanted);
        let path = cache::store().unwrap_or(beside).join(&name);
        // The hash was verified before the file got this name; the size is checked again, because a
        // full disk may have truncated it since.
        let is_whole = |path: &PathBuf| {
            let has_size = fs::metadata(path).is_ok_and(|found| found.len() == wanted.size);
            has_size && cache::check_writers(path).is_ok()
        };
        if let Some(path) = [beside.join(&name), path.clone()].into_iter().find(is_whole) {
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
    let is_safe = cache::check_writers(path).is_ok_and(|found| found.len() == wanted.size);
    let content = || fs::read(path).is_ok_and(|bytes| Sha256::digest(&bytes)[..] == wanted.sha256);
    is_safe && content()
}

fn cannot_keep(path: &Path, error: &io::Error) -> String {
    format!("cannot keep {}: {error}", path.display())
}

/// Returns the file's name in the cache, such as `rlaunch-prover-HASH`.
fn helper_name(helper: Helper, file: &HelperFile) -> String {
    format!("{}-{}", helper.name(), hex(&file.sha256[..HASH_BYTES]))
}

/// Starts a helper program. Returns its process id, its stdin, and its stdout and stderr. The agent
/// reaps the process together with the ranks.
pub(crate) fn spawn_helper(
    command: &mut Command,
) -> io::Result<(Pid, pipe::Sender, [pipe::Receiver; 2])> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = rlaunch_sys::spawn(command)?;
    let missing = || io::Error::other("it has no pipe");
    let stdin = OwnedFd::from(child.stdin.take().ok_or_else(missing)?);
    let stdout = OwnedFd::from(child.stdout.take().ok_or_else(missing)?);
    let stderr = OwnedFd::from(child.stderr.take().ok_or_else(missing)?);
    let stdin = pipe::Sender::from_owned_fd(stdin)?;
    let outputs = [pipe::Receiver::from_owned_fd(stdout)?, pipe::Receiver::from_owned_fd(stderr)?];
    Ok((Pid::from_raw(child.id().cast_signed()), stdin, outputs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_whole_copy_stays_and_a_broken_one_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (new, path) = (directory.path().join("new"), directory.path().join(AGENT));
        let content = b"agent";
        let expected = hex(&Sha256::digest(content))[..32].to_owned();
        let write = |path: &Path, bytes: &[u8], mode| {
            fs::write(path, bytes).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            fs::metadata(path).unwrap().ino()
        };
        let first = write(&new, content, 0o700);
        move_into_place(&new, &path, &expected).unwrap();
        write(&new, content, 0o700);
        move_into_place(&new, &path, &expected).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), first, "a complete copy was replaced");
        for (bytes, mode) in [(&b"age"[..], 0o700), (content, 0o600)] {
            write(&path, bytes, mode);
            let second = write(&new, content, 0o700);
            move_into_place(&new, &path, &expected).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().ino(), second, "{bytes:?}, {mode:o}");
        }
        let names = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names, 1, "the temporary copy was not removed");
    }

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
