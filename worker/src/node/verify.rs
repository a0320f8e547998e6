//! `__verify` and `__keep`, the verbs with which the launcher starts a copy of the agent that it
//! has just sent to this host. The copy checks that its own file is complete. `__keep` also moves
//! the file into place in the cache. That this code runs proves that the host can execute the copy.

use crate::console::outln;
use crate::node::cache;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// File name of the agent in its build directory.
const AGENT: &str = "rlaunch-worker";
/// Time limit for removing old builds: a file server may not answer requests for their locks.
const TRIMMING: Duration = Duration::from_secs(5);

/// Implements `__verify`: succeeds if the SHA-256 of this executable begins with the hexadecimal
/// digits `expected`.
pub(crate) fn verify(expected: Option<OsString>) -> ExitCode {
    match check(Path::new("/proc/self/exe"), &digits(expected)) {
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
    let expected = digits(expected);
    let kept = check(Path::new("/proc/self/exe"), &expected).and_then(|()| {
        let new = std::env::current_exe().map_err(|error| error.to_string())?;
        let path = new.with_file_name(AGENT);
        put(&new, &path, &expected)
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

fn digits(word: Option<OsString>) -> String {
    word.and_then(|digits| digits.into_string().ok()).unwrap_or_default()
}

fn check(path: &Path, expected: &str) -> Result<(), String> {
    let bytes = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let is_it = !expected.is_empty() && hex(&Sha256::digest(bytes)).starts_with(expected);
    is_it
        .then_some(())
        .ok_or_else(|| "the copy on this host differs from the file that was sent".to_owned())
}

/// Moves `new` to `path`. A complete file at `path` is kept: agents may be running from it, also on
/// other hosts that share this home directory. Those agents would fail (ESTALE) if the file were
/// replaced.
fn put(new: &Path, path: &Path, expected: &str) -> io::Result<()> {
    let is_whole = || {
        let found = fs::symlink_metadata(path);
        let runs = found.is_ok_and(|f| f.is_file() && f.permissions().mode() & 0o100 != 0);
        runs && check(path, expected).is_ok()
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
    let (done, trimmed) = mpsc::channel();
    let trimming = thread::Builder::new().spawn(move || {
        if let Some(cache) = own.parent() {
            cache::trim(cache, cache::is_build, &own);
        }
        let _ = done.send(());
    });
    if trimming.is_ok() {
        let _ = trimmed.recv_timeout(TRIMMING);
    }
}

/// Writes bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
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
        put(&new, &path, &expected).unwrap();
        write(&new, content, 0o700);
        put(&new, &path, &expected).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), first, "a complete copy was replaced");
        for (bytes, mode) in [(&b"age"[..], 0o700), (content, 0o600)] {
            write(&path, bytes, mode);
            let second = write(&new, content, 0o700);
            put(&new, &path, &expected).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().ino(), second, "{bytes:?}, {mode:o}");
        }
        let names = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names, 1, "the temporary copy was not removed");
    }
}
