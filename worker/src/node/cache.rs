//! The cache that this agent lies in: a directory for each build, named by its hash, in which also lies
//! what its ranks load. Hosts may share it by a home on NFS.
//!
//! A build in use is kept: an agent holds a shared lock in the directory of its build and in that of its
//! library, and the modification time of each says when it was last used. Old builds are removed only
//! after a new one was installed, not when an agent starts from a build that is already here.

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::statfs;
use nix::unistd::Uid;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, SystemTime};

/// The locked file in a directory that is in use.
const IN_USE: &str = ".in-use";
/// Hexadecimal digits in the name of a build's directory.
const DIGITS: usize = 32;
/// How many directories of a kind are kept, whatever their age.
const KEEP_NEWEST: usize = 3;
/// Age up to which an unused build is kept while there is room.
const RECENT_AGE: Duration = Duration::from_hours(7 * 24);
/// Age up to which an unused build is kept even without room: its agent may not hold it yet.
const FRESH_AGE: Duration = Duration::from_hours(1);
/// The room for directories of a kind, in bytes. A build takes about 10 MiB with what its ranks load.
const SIZE_LIMIT: u64 = 512 << 20;
/// Most that a directory's modification time may lag behind the start of its last use.
const TOUCH_INTERVAL: Duration = Duration::from_hours(1);
/// Numbers in statfs(2) of file systems that are this host's own: ext4, XFS, Btrfs, overlayfs, tmpfs.
const LOCAL: [u32; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x794C_7630, 0x0102_1994];
/// Stack of a thread that makes a few system calls, in bytes.
const STACK: usize = 64 << 10;

/// Fails where others than this user and root may have written what is at `path`, or may still: it is
/// not to be executed or loaded.
pub(crate) fn check(path: &Path) -> io::Result<fs::Metadata> {
    let found = fs::symlink_metadata(path)?;
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    match (found.uid(), found.mode()) {
        _ if found.is_symlink() => refused("it is a link".to_owned()),
        (uid, _) if uid != 0 && uid != Uid::effective().as_raw() => {
            refused(format!("it belongs to another user, {uid}"))
        }
        (_, mode) if mode & 0o022 != 0 => {
            refused(format!("others may write to it, its mode is {:o}", mode & 0o7777))
        }
        _ => Ok(found),
    }
}

/// Returns the file that this agent runs from. The kernel is asked once, as it makes the path anew each
/// time.
pub(crate) fn agent() -> Option<&'static Path> {
    static AGENT: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::current_exe().ok());
    AGENT.as_deref()
}

/// Whether this is the name of a build's directory.
pub(crate) fn is_build(name: &str) -> bool {
    name.len() == DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Keeps the build that this agent runs from, if that lies in a cache.
pub(crate) fn hold_build() {
    let Some(agent) = agent() else { return };
    let build = agent.parent().filter(|directory| {
        directory.file_name().is_some_and(|name| is_build(&name.to_string_lossy()))
    });
    if let Some(build) = build {
        hold(build.to_owned());
    }
}

/// Keeps a directory from being removed as long as this process lives. A file server may take its time
/// to give a lock, so that is waited for beside everything else. Nothing waits for a local lock, and a
/// thread would take 0.05 ms.
pub(crate) fn hold(directory: PathBuf) {
    if is_local(&directory) && try_hold(&directory) {
        return;
    }
    let holding = move || {
        touch(&directory);
        match lock_shared(&directory) {
            // The process's own end gives it back.
            Ok(lock) => std::mem::forget(lock),
            // Without locks the time alone says that the directory is in use.
            Err(_) => loop {
                thread::park_timeout(TOUCH_INTERVAL);
                touch(&directory);
            },
        }
    };
    // If no thread can be started, the directory keeps its old time and is not locked.
    let _ = thread::Builder::new().stack_size(STACK).spawn(holding);
}

/// Whether the directory is on a file system of this host's own, whose calls do not wait for another
/// host. Unknown ones are not.
pub(crate) fn is_local(directory: &Path) -> bool {
    // The type's width is the C library's.
    statfs(directory).is_ok_and(|found| LOCAL.contains(&(found.filesystem_type().0 as u32)))
}

/// Locks a directory if nothing has to be waited for.
fn try_hold(directory: &Path) -> bool {
    touch(directory);
    let lock = open_lock(directory, true)
        .map(|file| Flock::lock(file, FlockArg::LockSharedNonblock).map_err(|(_, errno)| errno));
    match lock {
        Ok(Ok(lock)) => {
            // The process's own end gives it back.
            std::mem::forget(lock);
            true
        }
        _ => false,
    }
}

/// Sets a directory's modification time to now, unless it is recent.
fn touch(directory: &Path) {
    let is_old =
        |found: fs::Metadata| found.modified().is_ok_and(|used| age(used) > TOUCH_INTERVAL);
    if fs::metadata(directory).is_ok_and(is_old) {
        // Root's directories serve other users as well, who cannot set the time.
        let _ = File::open(directory).and_then(|opened| opened.set_modified(SystemTime::now()));
    }
}

fn age(used: SystemTime) -> Duration {
    SystemTime::now().duration_since(used).unwrap_or_default()
}

fn open_lock(directory: &Path, create: bool) -> io::Result<File> {
    // On NFS, an exclusive lock takes a file that is open for writing.
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false).mode(0o600);
    options.open(directory.join(IN_USE))
}

fn lock_shared(directory: &Path) -> io::Result<Flock<File>> {
    let file = open_lock(directory, true)?;
    Flock::lock(file, FlockArg::LockShared).map_err(|(_, errno)| errno.into())
}

/// Whether a directory is in use.
enum UseState {
    /// Not in use, and no agent can begin to hold it before this lock goes.
    Unused {
        _lock: Option<Flock<File>>,
    },
    Held,
    /// The file system has no locks, or gives none.
    Unknown,
}

fn use_state(directory: &Path) -> UseState {
    let file = match open_lock(directory, false) {
        Ok(file) => file,
        // It never was.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return UseState::Unused { _lock: None };
        }
        Err(_) => return UseState::Unknown,
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => UseState::Unused { _lock: Some(lock) },
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => UseState::Held,
        Err(_) => UseState::Unknown,
    }
}

/// A directory that may go.
struct Candidate {
    used: SystemTime,
    path: PathBuf,
    size: u64,
}

/// Removes directories of this user in `cache` whose names `is_kind` knows: all but the newest, those
/// that were used lately, and those in use. `own` stays.
pub(crate) fn trim(cache: &Path, is_kind: impl Fn(&str) -> bool, own: &Path) {
    let me = Uid::effective().as_raw();
    let candidate = |entry: fs::DirEntry| {
        let found = entry.metadata().ok()?;
        let is_one = found.is_dir()
            && found.uid() == me
            && entry.path() != own
            && is_kind(&entry.file_name().to_string_lossy());
        let used = found.modified().ok()?;
        is_one.then(|| Candidate { used, path: entry.path(), size: size(&entry.path()) })
    };
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    let mut all: Vec<Candidate> = entries.filter_map(candidate).collect();
    all.sort_unstable_by_key(|candidate| candidate.used);
    let mut room = size(own) + all.iter().map(|candidate| candidate.size).sum::<u64>();
    // Its own is the newest.
    let old = all.len().saturating_sub(KEEP_NEWEST - 1);
    for Candidate { used, path, size } in &all[..old] {
        let in_use = use_state(path);
        // Whoever holds it by now has touched it before.
        let is_still = fs::metadata(path).is_ok_and(|now| now.modified().is_ok_and(|m| m == *used));
        let goes = match &in_use {
            UseState::Unused { .. } => {
                age(*used) > if room > SIZE_LIMIT { FRESH_AGE } else { RECENT_AGE }
            }
            UseState::Held => false,
            UseState::Unknown => age(*used) > RECENT_AGE,
        };
        if goes && is_still {
            let _ = fs::remove_dir_all(path);
            room = room.saturating_sub(*size);
            // On NFS a file that is open stays until it is closed.
            drop(in_use);
            let _ = fs::remove_dir(path);
        }
    }
}

/// Sums the bytes in a directory; links are not followed.
fn size(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let found = entry.metadata().ok()?;
        Some(if found.is_dir() { size(&entry.path()) } else { found.len() })
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A directory that was used so long ago, with a file of this size in it, which takes no room.
    fn used(cache: &Path, name: &str, ago: Duration, size: u64) -> PathBuf {
        let path = cache.join(name);
        fs::create_dir(&path).unwrap();
        File::create(path.join("file")).unwrap().set_len(size).unwrap();
        File::open(&path).unwrap().set_modified(SystemTime::now() - ago).unwrap();
        path
    }

    fn left(cache: &Path) -> String {
        let entries = fs::read_dir(cache).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names.join(" ")
    }

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn the_newest_the_recent_and_those_in_use_are_kept() {
        let cache = tempfile::tempdir().unwrap();
        let own = used(cache.path(), "own", Duration::ZERO, 1);
        for (name, days) in [("b1", 8), ("b2", 9), ("b3", 10), ("b4", 11), ("a5", 12)] {
            used(cache.path(), name, DAY * days, 1);
        }
        let _held = lock_shared(&cache.path().join("b4")).unwrap();
        // The file is new, and the directory was touched by it.
        let opened = File::open(cache.path().join("b4")).unwrap();
        opened.set_modified(SystemTime::now() - DAY * 11).unwrap();
        fs::write(cache.path().join("b6"), "no directory").unwrap();
        trim(cache.path(), |name| name.starts_with('b'), &own);
        assert_eq!(left(cache.path()), "a5 b1 b2 b4 b6 own");
    }

    #[test]
    fn what_was_used_this_week_goes_only_for_want_of_room() {
        let cache = tempfile::tempdir().unwrap();
        let own = used(cache.path(), "own", Duration::ZERO, 1);
        for (name, hours) in [("b0", 0), ("b1", 1), ("b2", 2), ("b3", 3), ("b4", 4)] {
            used(cache.path(), name, Duration::from_hours(hours), SIZE_LIMIT / 4 - 1024);
        }
        trim(cache.path(), |name| name.starts_with('b'), &own);
        assert_eq!(left(cache.path()), "b0 b1 b2 b3 own", "until there is room");
        for name in ["b5", "b6", "b7"] {
            used(cache.path(), name, Duration::from_secs(60), SIZE_LIMIT);
        }
        trim(cache.path(), |name| name.starts_with('b'), &own);
        assert_eq!(left(cache.path()), "b0 b5 b6 b7 own", "those of this hour stay");
    }

    #[test]
    fn builds_are_known_by_their_names() {
        assert!(is_build("0123456789abcdef0123456789abcdef"));
        assert!(!is_build("library-0123456789abcdef01234567") && !is_build("..") && !is_build(""));
    }

    #[test]
    fn a_directory_that_is_held_is_touched_and_locked() {
        let cache = tempfile::tempdir().unwrap();
        let held = used(cache.path(), "held", DAY * 30, 1);
        hold(held.clone());
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !matches!(use_state(&held), UseState::Held) {
            assert!(std::time::Instant::now() < deadline, "it is not held");
            thread::yield_now();
        }
        let used = fs::metadata(&held).unwrap().modified().unwrap();
        assert!(age(used) < DAY, "{used:?}");
    }

    #[test]
    fn what_others_can_have_written_is_refused() {
        let cache = tempfile::tempdir().unwrap();
        let path = used(cache.path(), "library", Duration::ZERO, 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        check(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
        let why = check(&path).unwrap_err().to_string();
        assert_eq!(why, "others may write to it, its mode is 775");
        let link = cache.path().join("link");
        std::os::unix::fs::symlink("/usr", &link).unwrap();
        assert_eq!(check(&link).unwrap_err().to_string(), "it is a link");
        check(Path::new("/usr")).unwrap();
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            let why = check(&path).unwrap_err().to_string();
            assert_eq!(why, "it belongs to another user, 65534");
        }
    }
}
