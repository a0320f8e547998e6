//! The job's private directory on this node: its TMPDIR, and below it the preloaded files.
//!
//! Its path is fixed before the agent forks from its guardian, so that whoever lives longest can
//! remove it.

use nix::unistd::Uid;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A path that belongs to this agent alone. Nothing is there before [`Workspace::create`].
#[derive(Clone, Debug)]
pub(crate) struct Workspace(PathBuf);

impl Workspace {
    /// Chooses the path: below TMPDIR or `/tmp`, named by user, process and time.
    pub(crate) fn choose() -> Workspace {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name =
            format!("rlaunch-{}-{}-{:x}", Uid::effective(), std::process::id(), now.as_nanos());
        Workspace(std::env::temp_dir().join(name))
    }

    /// Makes the directory, for this user alone. An existing one is refused: it is not ours.
    pub(crate) fn create(&self) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(&self.0)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the directory and all that is in it; that it is not there is fine.
    pub(crate) fn remove(&self) {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                eprintln!("rlaunch-worker: cannot remove {}: {error}", self.0.display());
            }
            _ => {}
        }
    }
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
        workspace.remove();
        assert!(!workspace.path().exists());
        workspace.remove();
    }
}
