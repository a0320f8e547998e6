//! The job's private directory on this node: its TMPDIR, and below it the preloaded files.
//!
//! Its path is fixed before the agent forks from its guardian, so that whoever lives longest can
//! remove it.

use crate::say::complain;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use rlaunch_bootstrap::tree::payload::Payload;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Below a longer path a Unix socket cannot be named any more, in bytes.
const LONGEST: usize = 48;

/// A path that belongs to this agent alone. Nothing is there before [`Workspace::create`].
#[derive(Debug)]
pub(crate) struct Workspace {
    path: PathBuf,
    /// Held while the agent lives, so that [`sweep`] can tell a directory that is in use.
    lock: OnceLock<Flock<File>>,
}

impl Workspace {
    /// Chooses the path: below TMPDIR, unless that is long, or `/tmp`; named by user, process and time.
    pub(crate) fn choose() -> Workspace {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name =
            format!("rlaunch-{}-{}-{:016x}", Uid::effective(), std::process::id(), now.as_nanos());
        let below = std::env::temp_dir();
        let fits = below.as_os_str().len() <= LONGEST;
        let below = if fits { below } else { PathBuf::from("/tmp") };
        Workspace { path: below.join(name), lock: OnceLock::new() }
    }

    /// Makes the directory, for this user alone. One in which something is already is refused: it
    /// is not ours.
    ///
    /// It gets its name when it is locked already: [`sweep`] takes what it knows by name and finds
    /// unlocked.
    pub(crate) fn create(&self) -> io::Result<()> {
        let unnamed = self.path.with_extension("new");
        DirBuilder::new().mode(0o700).create(&unnamed)?;
        let made = lock(&unnamed)
            .ok_or_else(|| io::Error::other("it cannot be locked"))
            .and_then(|lock| fs::rename(&unnamed, &self.path).map(|()| lock));
        let lock = made.inspect_err(|_| drop(fs::remove_dir(&unnamed)))?;
        let _ = self.lock.set(lock);
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where [`Workspace::keep_rank_table`] puts it.
    pub(crate) fn rank_table(&self) -> PathBuf {
        self.path.join("rank-table.json")
    }

    /// Writes the rank table for the ranks to read; a job without a directory does without.
    pub(crate) fn keep_rank_table(&self, table: &Payload) -> io::Result<()> {
        if self.lock.get().is_none() {
            return Ok(());
        }
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.rank_table())?;
        table.chunks().try_for_each(|chunk| file.write_all(chunk))
    }

    /// A directory for the ranks' PATH in which this file is called `rlaunch`: beside the agent in
    /// its cache, or in the job's own directory where that may not be written.
    pub(crate) fn commands(&self) -> io::Result<PathBuf> {
        let agent = std::env::current_exe()?;
        let beside = agent.parent().unwrap_or(Path::new("/")).join("bin");
        let own = self.path.join("bin");
        link(&agent, &beside).map(|()| beside).or_else(|_| link(&agent, &own).map(|()| own))
    }

    /// Removes the directory and all that is in it; that it is not there is fine.
    pub(crate) fn remove(&self) {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                complain!("rlaunch-worker: cannot remove {}: {error}", self.path.display());
            }
            _ => {}
        }
    }
}

/// Makes `directory/rlaunch` lead to `agent`; that it does already is fine.
fn link(agent: &Path, directory: &Path) -> io::Result<()> {
    let path = directory.join("rlaunch");
    if fs::read_link(&path).is_ok_and(|target| target == agent) {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    match symlink(agent, &path) {
        // Another job of this moment may have made it.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let same = fs::read_link(&path)? == agent;
            if same { Ok(()) } else { Err(error) }
        }
        made => made,
    }
}

/// Removes what agents of this user left that were killed together with their guardians.
pub(crate) fn sweep() {
    let places = [std::env::temp_dir(), PathBuf::from("/tmp")];
    for entry in places.iter().filter_map(|p| fs::read_dir(p).ok()).flatten().flatten() {
        let ours = is_name(&entry.file_name().to_string_lossy(), Uid::effective())
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == Uid::effective().as_raw());
        let Some(_held) = ours.then(|| lock(&entry.path())).flatten() else { continue };
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Whether this is what [`Workspace::choose`] calls a directory of this user, and nothing else.
fn is_name(name: &str, user: Uid) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let ["rlaunch", uid, pid, time] = parts[..] else { return false };
    uid == user.to_string()
        && pid.parse::<u32>().is_ok()
        && time.len() == 16
        && time.bytes().all(|byte| byte.is_ascii_hexdigit())
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
        fs::write(workspace.path().join("x"), "x").unwrap();
        assert!(workspace.create().is_err(), "an existing directory is not taken over");
        sweep();
        assert!(workspace.path().exists(), "one in use is not swept");
        workspace.remove();
        assert!(!workspace.path().exists());
        workspace.remove();
    }

    #[test]
    fn other_directories_are_nobodys_workspace() {
        let user = Uid::from_raw(7);
        assert!(is_name("rlaunch-7-4711-18e9e9aa4fe64244", user));
        for other in ["rlaunch-notes", "rlaunch-7-1-2", "rlaunch-8-4711-18e9e9aa4fe64244"] {
            assert!(!is_name(other, user), "{other}");
        }
        let chosen = Workspace::choose();
        let name = chosen.path().file_name().unwrap().to_string_lossy().into_owned();
        assert!(is_name(&name, Uid::effective()), "{name}");
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
