//! Private directory of the job on this node. It is the ranks' TMPDIR, and contains the preloaded
//! files and the job's sockets.
//!
//! The name of the directory is chosen before the guardian forks the agent. So each of the two can
//! remove the directory if the other one has died. The directory is created in the first of several
//! parent directories that is usable. If no sockets can be there, because its path is too long or its
//! file system has none, a second one of the same name has the sockets.

use crate::cleanup::shm;
use crate::console::errln;
use crate::node::cache;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Maximum length in bytes of the path of a Unix socket.
const MAX_ADDRESS: usize = 107;
/// Number of bytes that the job's own sockets and those of MPI libraries add to the directory's path.
const OWN_SOCKETS: usize = 21;
/// Number of bytes that a rank's program adds to TMPDIR for a socket: a UUID in vLLM, and 32 in Python's
/// multiprocessing, by which torch's data loaders pass tensors (`/pymp-xxxxxxxx/listener-xxxxxxxx`).
const SOCKETS_OF_RANKS: usize = 37;
/// Parent directories to try if TMPDIR is not usable. Files in the last one take memory.
const PLACES: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Directory of one agent. It does not exist before [`Workspace::create`].
#[derive(Debug)]
pub(crate) struct Workspace {
    name: String,
    places: Vec<PathBuf>,
    created: OnceLock<Created>,
}

#[derive(Debug)]
struct Created {
    files: OwnDirectory,
    /// Directory for sockets, if that of the files takes none.
    sockets: Option<OwnDirectory>,
    /// Parent directories that were not usable for the files, with the cause for each.
    passed_over: String,
}

#[derive(Debug)]
struct OwnDirectory {
    path: PathBuf,
    /// Lock that is held while the agent lives, so that [`sweep`] does not remove the directory.
    _lock: Flock<File>,
}

impl Workspace {
    /// Chooses a name made of user, process and time. Lists the parent directories to try: TMPDIR, then
    /// [`PLACES`].
    pub(crate) fn choose() -> Workspace {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name =
            format!("rlaunch-{}-{}-{:016x}", Uid::effective(), std::process::id(), now.as_nanos());
        Workspace { name, places: places(), created: OnceLock::new() }
    }

    /// Creates the directory, accessible to this user only, in the first usable parent directory, and
    /// one for sockets if it takes none. If no parent is usable, returns an error text with the cause
    /// for each.
    pub(crate) fn create(&self) -> Result<(), String> {
        let (files, passed_over) = self.create_first(|_| true, |_| Ok(()))?;
        let sockets = if takes_sockets(&files.path) && probe_sockets(&files.path).is_ok() {
            None
        } else {
            let is_other = |path: &Path| path != files.path && takes_sockets(path);
            let created = self.create_first(is_other, probe_sockets);
            let created = created.inspect_err(|_| drop(fs::remove_dir_all(&files.path)));
            Some(created?.0)
        };
        // Fails only if this is called twice.
        let created = Created { files, sockets, passed_over };
        self.created.set(created).map_err(|Created { files, sockets, .. }| {
            for directory in [Some(&files), sockets.as_ref()].into_iter().flatten() {
                let _ = fs::remove_dir(&directory.path);
            }
            format!("{}: it exists already", files.path.display())
        })
    }

    /// Creates a directory in the first parent directory that is usable, of those where its path would be
    /// one that `is_wanted`. Also returns the causes why others before it are not usable, as the error does.
    fn create_first(
        &self,
        is_wanted: impl Fn(&Path) -> bool,
        probe: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<(OwnDirectory, String), String> {
        let mut causes = Vec::new();
        for place in self.places.iter().filter(|place| is_wanted(&place.join(&self.name))) {
            match create_locked(place, &self.name, &probe) {
                Ok(created) => return Ok((created, causes.join("; "))),
                Err(error) => causes.push(format!("{}: {error}", place.display())),
            }
        }
        Err(causes.join("; "))
    }

    /// Returns the path of the directory that takes sockets, or `None` before [`Workspace::create`].
    pub(crate) fn path(&self) -> Option<&Path> {
        let Created { files, sockets, .. } = self.created.get()?;
        Some(&sockets.as_ref().unwrap_or(files).path)
    }

    /// Returns the path of the directory for files that may be large, or `None` before
    /// [`Workspace::create`].
    pub(crate) fn files(&self) -> Option<&Path> {
        self.created.get().map(|created| created.files.path.as_path())
    }

    /// Returns the parent directories that were tried for the files and are not usable, with the cause for each; `None` if
    /// the best one is, or before [`Workspace::create`].
    pub(crate) fn passed_over(&self) -> Option<&str> {
        let passed_over = &self.created.get()?.passed_over;
        (!passed_over.is_empty()).then_some(passed_over)
    }

    /// Returns the TMPDIR for ranks, below which a socket of a rank fits. `None` if they keep the host's
    /// own: if one fits below that, but not below our directory in it.
    pub(crate) fn tmpdir(&self) -> Option<&Path> {
        let fits = |path: &Path| path.as_os_str().len() + SOCKETS_OF_RANKS <= MAX_ADDRESS;
        let files = self.files()?;
        if files.parent().is_some_and(fits) {
            Some(files).filter(|files| fits(files))
        } else {
            self.path()
        }
    }

    /// Returns the part of the name that identifies this agent on the host: process and time.
    pub(crate) fn tag(&self) -> String {
        self.name.splitn(3, '-').nth(2).unwrap_or_default().to_owned()
    }

    /// Returns the path of the file that [`Workspace::write_rank_table`] writes.
    pub(crate) fn rank_table(&self) -> Option<PathBuf> {
        self.path().map(|path| path.join("rank-table.json"))
    }

    /// Writes the rank table to a file for the ranks. Does nothing if the job has no directory.
    pub(crate) fn write_rank_table(&self, json: &[u8]) -> io::Result<()> {
        let Some(path) = self.rank_table() else { return Ok(()) };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(json)
    }

    /// Returns a directory for the ranks' PATH in which this executable is called `rlaunch`: beside
    /// the agent in its cache, or in the job's directory if the cache is not writable.
    pub(crate) fn command_directory(&self) -> io::Result<PathBuf> {
        let agent = cache::agent_path().ok_or(io::ErrorKind::NotFound)?;
        let beside = agent.parent().unwrap_or(Path::new("/")).join("bin");
        link_command(agent, &beside).map(|()| beside).or_else(|error| {
            let own = self.path().ok_or(error)?.join("bin");
            link_command(agent, &own).map(|()| own)
        })
    }

    /// Removes the directory and its content, and the files in shared memory that it names. Looks in
    /// every parent directory, since the guardian does not know in which one the agent has created it. A
    /// missing directory is not an error.
    pub(crate) fn remove(&self) {
        for path in self.places.iter().map(|place| place.join(&self.name)) {
            if path.symlink_metadata().is_err() {
                continue;
            }
            shm::sweep_noted(&path);
            if let Err(error) = fs::remove_dir_all(&path) {
                errln!("rlaunch-worker: cannot remove {}: {error}", path.display());
            }
        }
    }
}

/// Returns the parent directories to try, best first.
fn places() -> Vec<PathBuf> {
    let own = Some(std::env::temp_dir()).filter(|own| own.is_absolute());
    let mut places: Vec<PathBuf> = own.into_iter().collect();
    for place in PLACES.map(PathBuf::from) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// Tells whether a directory's path leaves room for the names of sockets.
fn takes_sockets(directory: &Path) -> bool {
    directory.as_os_str().len() + OWN_SOCKETS <= MAX_ADDRESS
}

/// Creates a directory that can be locked, in which files can be created and which `probe` accepts.
/// Fails if the directory exists and is not empty, because then it belongs to another agent.
///
/// The directory gets its final name only after it was locked, because [`sweep`] removes
/// directories that have such a name and are not locked.
fn create_locked(
    place: &Path,
    name: &str,
    probe: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<OwnDirectory> {
    let path = place.join(name);
    let unnamed = path.with_extension("new");
    DirBuilder::new().mode(0o700).create(&unnamed)?;
    let claim = || {
        let lock = lock(&unnamed).ok_or_else(|| io::Error::other("it cannot be locked"))?;
        probe_files(&unnamed)?;
        probe(&unnamed)?;
        fs::rename(&unnamed, &path)?;
        Ok::<_, io::Error>(lock)
    };
    let lock = claim().inspect_err(|_| drop(fs::remove_dir_all(&unnamed)))?;
    Ok(OwnDirectory { path, _lock: lock })
}

/// Checks that files can be created in a directory. On a full disk only directories can be.
fn probe_files(directory: &Path) -> io::Result<()> {
    let file = directory.join("try");
    fs::write(&file, "x")?;
    fs::remove_file(&file)
}

/// Checks that sockets can be created in a directory. Some network file systems do not support them.
fn probe_sockets(directory: &Path) -> io::Result<()> {
    if cache::is_local(directory) {
        return Ok(());
    }
    let socket = directory.join("try.sock");
    UnixListener::bind(&socket)?;
    fs::remove_file(&socket)
}

/// Creates the link `directory/rlaunch` to `agent`, unless it exists.
fn link_command(agent: &Path, directory: &Path) -> io::Result<()> {
    let path = directory.join("rlaunch");
    if fs::read_link(&path).is_ok_and(|target| target == agent) {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    match symlink(agent, &path) {
        // Another job may have created it in the meantime.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let same = fs::read_link(&path)? == agent;
            if same { Ok(()) } else { Err(error) }
        }
        created => created,
    }
}

/// Removes directories of this user's agents that were killed together with their guardians, and the
/// files in shared memory that they name.
pub(crate) fn sweep() {
    for entry in places().iter().filter_map(|p| fs::read_dir(p).ok()).flatten().flatten() {
        let is_ours = is_name(&entry.file_name().to_string_lossy(), Uid::effective())
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == Uid::effective().as_raw());
        if !is_ours {
            continue;
        }
        let Some(_held) = lock(&entry.path()) else { continue };
        shm::sweep_noted(&entry.path());
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Tells whether a name has the form of the names that [`Workspace::choose`] makes for `user`.
fn is_name(name: &str, user: Uid) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let ["rlaunch", uid, pid, time] = parts[..] else { return false };
    uid == user.to_string()
        && pid.parse::<u32>().is_ok()
        && time.len() == 16
        && time.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Locks a directory. Returns `None` if it cannot be opened or another process holds the lock.
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
        let path = workspace.path().unwrap().to_owned();
        fs::write(path.join("x"), "x").unwrap();
        let (place, name) = (path.parent().unwrap(), path.file_name().unwrap());
        let again = create_locked(place, name.to_str().unwrap(), |_| Ok(()));
        assert!(again.is_err(), "an existing directory was taken over");
        sweep();
        assert!(path.exists(), "a directory in use was swept");
        workspace.remove();
        assert!(!path.exists());
        workspace.remove();
    }

    #[test]
    fn a_place_that_does_not_serve_is_passed_over() {
        let (good, file) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let places = vec!["/nonexistent".into(), file.path().into(), good.path().into()];
        let workspace = Workspace { places, ..Workspace::choose() };
        // The guardian was forked before the directory was created.
        let guardian = Workspace {
            name: workspace.name.clone(),
            places: workspace.places.clone(),
            ..Workspace::choose()
        };
        workspace.create().unwrap();
        assert_eq!(workspace.path().unwrap().parent(), Some(good.path()));
        let passed_over = workspace.passed_over().unwrap();
        assert!(passed_over.starts_with("/nonexistent: No such file"), "{passed_over}");
        assert_eq!(fs::read_dir(workspace.path().unwrap()).unwrap().count(), 0);
        guardian.remove();
        assert_eq!(fs::read_dir(good.path()).unwrap().count(), 0);
        let places = vec!["/nonexistent".into(), file.path().into()];
        let why = Workspace { places, ..Workspace::choose() }.create().unwrap_err();
        assert!(why.starts_with("/nonexistent: No such file or directory"), "{why}");
        assert!(why.ends_with("Not a directory (os error 20)"), "{why}");
    }

    #[test]
    fn sockets_are_elsewhere_if_the_path_is_long() {
        let [host, short] = [(); 2].map(|()| tempfile::tempdir_in("/tmp").unwrap());
        let room = |length: usize| length - host.path().as_os_str().len() - 1;
        let fits_below = MAX_ADDRESS - SOCKETS_OF_RANKS;
        // Python's multiprocessing works below the first, and below the second only without our directory.
        for (length, has_sockets) in [(fits_below - 44, true), (fits_below, false), (200, false)] {
            let long = host.path().join("x".repeat(room(length)));
            fs::create_dir(&long).unwrap();
            let places = vec![long.clone(), short.path().into()];
            let workspace = Workspace { places, ..Workspace::choose() };
            workspace.create().unwrap();
            let (files, sockets) = (workspace.files().unwrap(), workspace.path().unwrap());
            assert_eq!(files.parent(), Some(long.as_path()));
            assert_eq!(sockets == files, has_sockets, "{sockets:?}");
            UnixListener::bind(sockets.join("agent.sock")).unwrap();
            let tmpdir =
                if length > fits_below { Some(sockets) } else { has_sockets.then_some(files) };
            assert_eq!(workspace.tmpdir(), tmpdir);
            workspace.remove();
            for place in [long.as_path(), short.path()] {
                assert_eq!(fs::read_dir(place).unwrap().count(), 0);
            }
        }
    }

    #[test]
    fn other_directories_are_nobodys_workspace() {
        let user = Uid::from_raw(7);
        assert!(is_name("rlaunch-7-4711-18e9e9aa4fe64244", user));
        for other in ["rlaunch-notes", "rlaunch-7-1-2", "rlaunch-8-4711-18e9e9aa4fe64244"] {
            assert!(!is_name(other, user), "{other}");
        }
        let chosen = Workspace::choose();
        let name = &chosen.name;
        assert!(is_name(name, Uid::effective()), "{name}");
        assert_eq!(*name, format!("rlaunch-{}-{}", Uid::effective(), chosen.tag()));
    }

    #[test]
    fn one_whose_owner_is_gone_is_swept() {
        let workspace = Workspace::choose();
        workspace.create().unwrap();
        let path = workspace.path().unwrap().to_owned();
        drop(workspace);
        assert!(path.exists());
        sweep();
        assert!(!path.exists());
    }
}
