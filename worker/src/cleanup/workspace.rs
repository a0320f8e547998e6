//! Private directory of the job on this node. It is the ranks' TMPDIR, and contains the preloaded
//! files and the job's sockets.
//!
//! Its name is short, random and the same on all nodes, for programs such as Ray that hand their TMPDIR on
//! to their processes on other hosts. Agent and guardian share the name in memory, so each of the two can
//! remove the directory if the other one has died. The directory is created in the first of several
//! parent directories that is usable. If no sockets can be there, because its path is too long or its
//! file system has none, a second one of the same name has the sockets.
//!
//! A file in it, which is locked while the agent lives, says whose it is. Nothing without such a file is
//! removed: programs and users may have made a directory of that name.

use crate::cleanup::shm;
use crate::console::errln;
use crate::node::cache;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::Uid;
use rlaunch_bootstrap::id::JobId;
use rlaunch_sys::SharedMemory;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
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

/// Name of the file that is locked, and has the tag of the agent to which the directory belongs.
const LOCK: &str = ".rlaunch";
/// Length in bytes of the memory with the number in the directory's name: one page.
const LENGTH: usize = 4096;

/// Directory of one agent. It does not exist before [`Workspace::create`].
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Identifies this agent on the host: process and time.
    tag: String,
    places: Vec<PathBuf>,
    /// Memory whose first word is the number in the directory's name, 0 before there is one. Without it, the guardian
    /// leaves the directory to [`sweep`].
    number: Option<SharedMemory>,
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

/// Reason why a directory was not created.
#[derive(Debug)]
enum CreateError {
    /// There is one of this name: of another agent of the job on this machine, or on a machine that shares the place.
    Taken,
    /// Cause for each place.
    Unusable(String),
}

impl CreateError {
    fn cause(self) -> String {
        match self {
            CreateError::Taken => "a directory of this name exists".to_owned(),
            CreateError::Unusable(cause) => cause,
        }
    }
}

impl Workspace {
    /// Lists the parent directories to try: TMPDIR, then [`PLACES`]. Processes that are forked later know the name of the
    /// directory once it is created.
    pub(crate) fn choose() -> Workspace {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let tag = format!("{}-{:016x}", std::process::id(), now.as_nanos());
        let memory = SharedMemory::unnamed(LENGTH, LENGTH);
        let memory = memory.and_then(|memory| memory.reserve(0..LENGTH).map(|()| memory));
        Workspace { tag, places: places(), number: memory.ok(), created: OnceLock::new() }
    }

    /// Creates the directory, accessible to this user only, in the first usable parent directory, and
    /// one for sockets if it takes none. If no parent is usable, returns an error text with the cause
    /// for each.
    pub(crate) fn create(&self, job: JobId) -> Result<(), String> {
        let created = match self.create_named(u64::try_from(job.0 >> 64).unwrap_or_default()) {
            // Another agent of the job is on this machine, or on one that has the same place.
            Err(CreateError::Taken) => self.create_named(RandomState::new().hash_one(&self.tag)),
            created => created,
        };
        created.map_err(CreateError::cause)
    }

    fn create_named(&self, number: u64) -> Result<(), CreateError> {
        if let Some(memory) = &self.number {
            memory.word(0).store(number, Ordering::Release);
        }
        let name = name(number);
        let (files, passed_over) = self.create_first(&name, |_| true, |_| Ok(()))?;
        let sockets = if takes_sockets(&files.path) && probe_sockets(&files.path).is_ok() {
            None
        } else {
            let is_other = |path: &Path| path != files.path && takes_sockets(path);
            let created = self.create_first(&name, is_other, probe_sockets);
            let created = created.inspect_err(|_| drop(fs::remove_dir_all(&files.path)));
            Some(created?.0)
        };
        // Fails only if this is called twice.
        let created = Created { files, sockets, passed_over };
        self.created.set(created).map_err(|Created { files, sockets, .. }| {
            for directory in [Some(&files), sockets.as_ref()].into_iter().flatten() {
                let _ = fs::remove_dir_all(&directory.path);
            }
            CreateError::Unusable(format!("{}: it exists already", files.path.display()))
        })
    }

    /// Creates a directory in the first parent directory that is usable, of those where its path would be
    /// one that `is_wanted`. Also returns the causes why others before it are not usable, as the error does.
    fn create_first(
        &self,
        name: &str,
        is_wanted: impl Fn(&Path) -> bool,
        probe: impl Fn(&Path) -> io::Result<()>,
    ) -> Result<(OwnDirectory, String), CreateError> {
        let mut causes = Vec::new();
        for place in self.places.iter().filter(|place| is_wanted(&place.join(name))) {
            match create_locked(place, name, &self.tag, &probe) {
                Ok(created) => return Ok((created, causes.join("; "))),
                Err(error) if is_taken(error.kind()) => {
                    return Err(CreateError::Taken);
                }
                Err(error) => causes.push(format!("{}: {error}", place.display())),
            }
        }
        Err(CreateError::Unusable(causes.join("; ")))
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

    /// Returns what identifies this agent on the host: process and time.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
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

    /// Finds what the agent has created, by its tag: another agent of the job may have a directory of the same name elsewhere.
    fn find(&self) -> Vec<PathBuf> {
        let number =
            self.number.as_ref().map_or(0, |memory| memory.word(0).load(Ordering::Acquire));
        let name = name(number);
        let is_its = |path: &PathBuf| {
            is_own(path) && fs::read(path.join(LOCK)).is_ok_and(|tag| tag == self.tag.as_bytes())
        };
        self.places.iter().map(|place| place.join(&name)).filter(is_its).collect()
    }

    /// Removes the directory and its content, and the files in shared memory that it names. The guardian looks in
    /// every parent directory, since it does not know in which one the agent has created it. A
    /// missing directory is not an error.
    pub(crate) fn remove(&self) {
        let paths: Vec<PathBuf> = match self.created.get() {
            Some(Created { files, sockets, .. }) => [Some(files), sockets.as_ref()]
                .into_iter()
                .flatten()
                .map(|own| own.path.clone())
                .collect(),
            None => self.find(),
        };
        for path in paths.into_iter().filter(|path| path.symlink_metadata().is_ok()) {
            shm::sweep_noted(&path);
            if let Err(error) = fs::remove_dir_all(&path) {
                errln!("rlaunch-worker: cannot remove {}: {error}", path.display());
            }
        }
    }
}

/// Returns the name of the directory with a number: 24 bytes, since programs have sockets below it.
fn name(number: u64) -> String {
    format!("rlaunch-{number:016x}")
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

/// Creates a directory with a lock, which shows that files can be created there (on a full disk only directories can be),
/// and which `probe` accepts. If there is one of this name, which belongs to another agent, the error [`is_taken`].
///
/// The directory gets its final name only after it was locked, because [`sweep`] removes
/// directories that have such a name and a lock that nobody holds.
fn create_locked(
    place: &Path,
    name: &str,
    tag: &str,
    probe: impl Fn(&Path) -> io::Result<()>,
) -> io::Result<OwnDirectory> {
    let path = place.join(name);
    let unnamed = place.join(format!("{name}.{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&unnamed)?;
    let claim = || {
        let mut new = OpenOptions::new();
        let mut file =
            new.read(true).write(true).create_new(true).mode(0o600).open(unnamed.join(LOCK))?;
        file.write_all(tag.as_bytes())?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::other(format!("it cannot be locked: {errno}")))?;
        probe(&unnamed)?;
        fs::rename(&unnamed, &path)?;
        // Some file systems have no owners and modes. And where others may rename what they do not own, this may be
        // somebody else's by now.
        if !is_own(&path) {
            return Err(io::Error::other("a directory in it would not be private"));
        }
        Ok(lock)
    };
    let lock = claim().inspect_err(|_| drop(fs::remove_dir_all(&unnamed)))?;
    Ok(OwnDirectory { path, _lock: lock })
}

/// Tells whether an error means that another agent has a directory of this name.
fn is_taken(kind: ErrorKind) -> bool {
    // NFS says the latter of a directory that is not empty.
    matches!(kind, ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists)
}

/// Tells whether a path is a directory of this user that others cannot access.
fn is_own(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| {
        let is_mine = found.uid() == Uid::effective().as_raw();
        found.is_dir() && is_mine && found.mode() & 0o077 == 0
    })
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
        if !(is_name(&entry.file_name().to_string_lossy()) && is_own(&entry.path())) {
            continue;
        }
        let Some(_held) = lock(&entry.path()) else { continue };
        shm::sweep_noted(&entry.path());
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Tells whether a name has the form of the names of directories.
fn is_name(name: &str) -> bool {
    let number = name.strip_prefix("rlaunch-").unwrap_or_default();
    number.len() == 16 && number.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Locks a directory that an agent has left. Returns `None` if it has no lock of an agent, or another process holds it.
fn lock(directory: &Path) -> Option<Flock<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(directory.join(LOCK)).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_goes() {
        let workspace = Workspace::choose();
        workspace.create(random_job()).unwrap();
        let path = workspace.path().unwrap().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
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
        let shared = workspace.number.as_ref().unwrap();
        let guardian = || {
            let mine = Workspace::choose();
            let number = shared.word(0).load(Ordering::Acquire);
            mine.number.as_ref().unwrap().word(0).store(number, Ordering::Release);
            Workspace { tag: workspace.tag.clone(), places: workspace.places.clone(), ..mine }
        };
        workspace.create(random_job()).unwrap();
        assert_eq!(workspace.path().unwrap().parent(), Some(good.path()));
        let passed_over = workspace.passed_over().unwrap();
        assert!(passed_over.starts_with("/nonexistent: No such file"), "{passed_over}");
        let left: Vec<_> = fs::read_dir(workspace.path().unwrap()).unwrap().collect();
        assert_eq!(left.len(), 1, "more than the lock: {left:?}");
        guardian().remove();
        assert_eq!(fs::read_dir(good.path()).unwrap().count(), 0);
        let places = vec!["/nonexistent".into(), file.path().into()];
        let why = Workspace { places, ..Workspace::choose() }.create(random_job()).unwrap_err();
        assert!(why.starts_with("/nonexistent: No such file or directory"), "{why}");
        assert!(why.ends_with("Not a directory (os error 20)"), "{why}");
    }

    #[test]
    fn sockets_are_elsewhere_if_the_path_is_long() {
        let [host, short] = [(); 2].map(|()| tempfile::tempdir_in("/tmp").unwrap());
        let room = |length: usize| length - host.path().as_os_str().len() - 1;
        let fits_below = MAX_ADDRESS - SOCKETS_OF_RANKS;
        // Python's multiprocessing works below the first, and below the second only without our directory.
        for (length, has_sockets) in [(fits_below - 25, true), (fits_below, false), (200, false)] {
            let long = host.path().join("x".repeat(room(length)));
            fs::create_dir(&long).unwrap();
            let places = vec![long.clone(), short.path().into()];
            let workspace = Workspace { places, ..Workspace::choose() };
            workspace.create(random_job()).unwrap();
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

    fn random_job() -> JobId {
        let half = || u128::from(RandomState::new().hash_one(0));
        JobId(half() << 64 | half())
    }

    #[test]
    fn agents_of_a_job_have_the_same_name_unless_they_share_the_place() {
        let [own, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let job = random_job();
        let agent = |place: &Path, tag: &str| {
            let workspace =
                Workspace { places: vec![place.into()], tag: tag.into(), ..Workspace::choose() };
            workspace.create(job).unwrap();
            let name =
                workspace.path().unwrap().file_name().unwrap().to_string_lossy().into_owned();
            (workspace, name)
        };
        let (first, name) = agent(own.path(), "1-a");
        let (_elsewhere, same) = agent(other.path(), "1-b");
        let (_beside, another) = agent(own.path(), "1-c");
        assert_eq!((&same, name.len()), (&name, 24));
        assert_ne!(another, name);
        // The guardian of the second agent would look in all places.
        let number = first.number.as_ref().unwrap().word(0).load(Ordering::Acquire);
        let guardian = Workspace {
            places: vec![own.path().into(), other.path().into()],
            tag: "1-b".into(),
            ..Workspace::choose()
        };
        guardian.number.as_ref().unwrap().word(0).store(number, Ordering::Release);
        guardian.remove();
        assert!(own.path().join(&name).exists(), "that of another agent was removed");
        assert!(!other.path().join(&name).exists());
    }

    #[test]
    fn only_what_has_a_lock_of_an_agent_is_swept() {
        let numbered = name(RandomState::new().hash_one(1));
        assert!(is_name(&numbered), "{numbered}");
        for other in
            ["rlaunch-notes", "rlaunch-7-4711-18e9e9aa4fe64244", "rlaunch-0123456789ABCDEF"]
        {
            assert!(!is_name(other), "{other}");
        }
        let path = std::env::temp_dir().join(numbered);
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        sweep();
        assert!(path.exists(), "a program's own directory was removed");
        std::os::unix::fs::symlink("/dev/null", path.join(LOCK)).unwrap();
        sweep();
        assert!(path.exists());
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn one_whose_owner_is_gone_is_swept() {
        let workspace = Workspace::choose();
        workspace.create(random_job()).unwrap();
        let path = workspace.path().unwrap().to_owned();
        drop(workspace);
        assert!(path.exists());
        sweep();
        assert!(!path.exists());
    }
}
