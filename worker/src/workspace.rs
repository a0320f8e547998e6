//! The job's private directory on this node: its TMPDIR, and below it the preloaded files.
//!
//! Its path is fixed before the agent forks from its guardian, so that whoever lives longest can
//! remove it.

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// The start of every such directory's name.
const PREFIX: &str = "rlaunch-";

/// A path that belongs to this agent alone. Nothing is there before [`Workspace::create`].
#[derive(Debug)]
pub(crate) struct Workspace {
    path: PathBuf,
    /// Held while the agent lives, so that [`sweep`] can tell a directory that is in use.
    lock: OnceLock<Flock<File>>,
}

impl Workspace {
    /// Chooses the path: below TMPDIR or `/tmp`, named by user, process and time.
    pub(crate) fn choose() -> Workspace {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name =
            format!("{PREFIX}{}-{}-{:x}", Uid::effective(), std::process::id(), now.as_nanos());
        Workspace { path: std::env::temp_dir().join(name), lock: OnceLock::new() }
    }

    /// Makes the directory, for this user alone. An existing one is refused: it is not ours.
    pub(crate) fn create(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.path)?;
        if let Some(lock) = lock(&self.path) {
            let _ = self.lock.set(lock);
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory and all that is in it; that it is not there is fine.
    pub(crate) fn remove(&self) {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                eprintln!("rlaunch-worker: cannot remove {}: {error}", self.path.display());
            }
            _ => {}
        }
    }
}

/// Removes what agents of this user left that were killed together with their guardians.
pub(crate) fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == Uid::effective().as_raw());
        if ours && lock(&entry.path()).is_some() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// `None` when somebody else holds it.
fn lock(path: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(path).ok()?, FlockArg::LockExclusiveNonblock).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_goes() {
        let workspace = Workspace::choose();
        workspace.create().unwrap();
        assert!(workspace.create().is_err(), "an existing directory is not taken over");
        fs::write(workspace.path().join("x"), "x").unwrap();
        sweep();
        assert!(workspace.path().exists(), "one in use is not swept");
        workspace.remove();
        assert!(!workspace.path().exists());
        workspace.remove();
    }

    #[test]
    fn one_whose_owner_is_gone_is_swept() {
        let workspace = Workspace::choose();
        workspace.create().unwrap();
        let path = workspace.path().to_owned();
        drop(workspace);
        assert!(path.exists());
        sweep();
        assert!(!path.exists());
    }
}
