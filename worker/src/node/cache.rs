//! The cache directory that this agent runs from. It has a subdirectory for each build of rlaunch,
//! named by the build's hash, with the agent and, beside it, the libraries for ranks. Hosts may
//! share the cache through a home directory on NFS.
//!
//! A build in use is not removed: its agent holds a shared lock in the directory of the build and
//! in the directory of the library. The modification times of these directories tell when they were
//! last used. Old builds are removed only after a new one was installed.
//!
//! `rlaunch-worker cache`: lists what this account keeps of rlaunch on this host, or removes it.

use crate::console::{self, errln};
use crate::node;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, Uid, access};
use rlaunch_bootstrap::job::library::LIBRARY_PREFIX;
use rlaunch_bootstrap::protocol::housekeeping::{
    CacheReport, CachedDirectory, CachedKind, CachedState,
};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use std::{io, thread};

/// Name of the file that is locked while its directory is in use.
const IN_USE: &str = ".in-use";
/// Length of a build directory's name, in hexadecimal digits.
const DIGITS: usize = 32;
/// Number of directories of each kind (builds, libraries) that are kept regardless of age: those
/// used last.
const KEEP_NEWEST: usize = 3;
/// Time since its last use after which an unused directory is removed.
const RECENT_AGE: Duration = Duration::from_hours(7 * 24);
/// Time since its last use after which an unused directory is removed if the cache is too large. A
/// younger directory is never removed, because its agent may not have locked it yet.
const FRESH_AGE: Duration = Duration::from_hours(1);
/// Total size of all directories of a kind, in bytes, above which the cache is too large. A build
/// with its library takes about 10 MiB.
const SIZE_LIMIT: u64 = 512 << 20;
/// Age that the modification time of a directory in use may reach before it is set to the present.
const TOUCH_INTERVAL: Duration = Duration::from_hours(1);
/// File-system types of statfs(2) that are local: ext4, XFS, Btrfs, overlayfs, tmpfs.
const LOCAL: [u32; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x794C_7630, 0x0102_1994];
/// Stack size of a thread that makes a few system calls, in bytes.
const STACK: usize = 64 << 10;
/// Time limit for word that the agents of all hosts have started, in milliseconds.
const GO_TIMEOUT: u16 = 60_000;
/// Time that an agent of another host has to finish a removal.
const REMOVAL_TIME: Duration = Duration::from_millis(200);

/// Checks that no user except this one and root can have written the file at `path`. A file that
/// fails the check must not be executed or loaded.
pub(crate) fn check_writers(path: &Path) -> io::Result<fs::Metadata> {
    let found = fs::symlink_metadata(path)?;
    let (uid, mode) = (found.uid(), found.mode());
    let why = if found.is_symlink() {
        "it is a symbolic link".to_owned()
    } else if uid != 0 && uid != Uid::effective().as_raw() {
        format!("it belongs to user {uid}")
    } else if mode & 0o022 != 0 {
        format!("other users can write to it (mode {:o})", mode & 0o7777)
    } else {
        return Ok(found);
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Returns the path of this agent's executable. The result is kept, since the kernel builds the
/// path again on each call.
pub(crate) fn agent_path() -> Option<&'static Path> {
    static AGENT: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::current_exe().ok());
    AGENT.as_deref()
}

/// Parent directories of [`store`], where the agent's own directory is not writable.
const PLACES: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Returns the directory for what the launcher sends beside the agent: that of the agent itself. In a container the host's
/// is mounted for reading, so that there is a private one instead, which is gone with the container.
pub(crate) fn store() -> Option<&'static Path> {
    static STORE: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let beside = agent_path()?.parent()?;
        let places = PLACES.map(Path::new);
        Some(store_in(beside, &places).unwrap_or_else(|| beside.to_owned()))
    });
    STORE.as_deref()
}

/// Returns `beside` if it is writable, or else a private directory in the first usable one of `places`.
fn store_in(beside: &Path, places: &[&Path]) -> Option<PathBuf> {
    if access(beside, AccessFlags::W_OK).is_ok() {
        return Some(beside.to_owned());
    }
    let name = format!(".rlaunch-{}", Uid::effective());
    let own = places.iter().map(|place| place.join(&name).join("inside"));
    own.into_iter().find(|own| {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(own);
        let above = own.parent().unwrap_or(own);
        made.is_ok() && [above, own].iter().all(|path| check_writers(path).is_ok())
    })
}

/// Tells whether this is the name of a build directory.
pub(crate) fn is_build(name: &str) -> bool {
    name.len() == DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Protects the build that this agent runs from against removal, if it is in a cache.
pub(crate) fn hold_build() {
    if let Some(build) = own_build() {
        hold(build.to_owned());
    }
}

/// Returns the directory of the build that this agent runs from, if it is in a cache.
fn own_build() -> Option<&'static Path> {
    let directory = agent_path()?.parent()?;
    is_build(&directory.file_name()?.to_string_lossy()).then_some(directory)
}

/// Protects a directory against removal while this process lives. On a network file system, where
/// locking may take long, a thread acquires the lock. On a local one the lock is acquired directly,
/// since starting a thread would cost 0.05 ms.
pub(crate) fn hold(directory: PathBuf) {
    if is_local(&directory) && try_hold(&directory) {
        return;
    }
    let holding = move || {
        touch(&directory);
        match lock_shared(&directory) {
            // Released when the process exits.
            Ok(lock) => std::mem::forget(lock),
            // Without locks, only the modification time tells that the directory is in use.
            Err(_) => loop {
                thread::park_timeout(TOUCH_INTERVAL);
                touch(&directory);
            },
        }
    };
    // If no thread can be started, the directory is not protected.
    let _ = node::start_thread(Some(STACK), Box::new(holding));
}

/// Tells whether a directory is on a known local file system, where calls do not wait for another
/// host.
pub(crate) fn is_local(directory: &Path) -> bool {
    // The width of the type depends on the C library.
    statfs(directory).is_ok_and(|found| LOCAL.contains(&(found.filesystem_type().0 as u32)))
}

/// Locks a directory if that is possible without waiting. Returns false if the directory is not
/// locked.
fn try_hold(directory: &Path) -> bool {
    touch(directory);
    let Ok(file) = open_lock(directory, true) else { return false };
    let Ok(lock) = Flock::lock(file, FlockArg::LockSharedNonblock) else { return false };
    // Released when the process exits.
    std::mem::forget(lock);
    true
}

/// Sets a directory's modification time to now if it is older than [`TOUCH_INTERVAL`].
fn touch(directory: &Path) {
    let is_old =
        |found: fs::Metadata| found.modified().is_ok_and(|used| age(used) > TOUCH_INTERVAL);
    if fs::metadata(directory).is_ok_and(is_old) {
        // Other users of root's directories are not permitted to set the time.
        let _ = File::open(directory).and_then(|opened| opened.set_modified(SystemTime::now()));
    }
}

fn age(used: SystemTime) -> Duration {
    SystemTime::now().duration_since(used).unwrap_or_default()
}

fn open_lock(directory: &Path, create: bool) -> io::Result<File> {
    // On NFS, an exclusive lock requires a file that is open for writing.
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false).mode(0o600);
    options.open(directory.join(IN_USE))
}

fn lock_shared(directory: &Path) -> io::Result<Flock<File>> {
    let file = open_lock(directory, true)?;
    Flock::lock(file, FlockArg::LockShared).map_err(|(_, errno)| errno.into())
}

/// Use of a directory in the cache.
enum UseState {
    /// No agent uses the directory, and none can lock it while this lock is held. The lock is
    /// `None` if the directory was never locked.
    Unused {
        _lock: Option<Flock<File>>,
    },
    Held,
    /// The file system does not support locks, or refuses them.
    Unknown,
}

fn use_state(directory: &Path) -> UseState {
    let file = match open_lock(directory, false) {
        Ok(file) => file,
        // It was never locked.
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

/// Directory that may be removed.
struct Candidate {
    used: SystemTime,
    path: PathBuf,
    size: u64,
}

/// Removes this user's directories in `cache` whose names `is_kind` accepts. Keeps `own`, the
/// newest ones, those used recently, and those in use.
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
    // `own` counts as the newest.
    let old = all.len().saturating_sub(KEEP_NEWEST - 1);
    for Candidate { used, path, size } in &all[..old] {
        let in_use = use_state(path);
        // An agent that began to use the directory meanwhile has touched it first.
        let is_still = fs::metadata(path).is_ok_and(|now| now.modified().is_ok_and(|m| m == *used));
        let is_due = match &in_use {
            UseState::Unused { .. } => {
                age(*used) > if room > SIZE_LIMIT { FRESH_AGE } else { RECENT_AGE }
            }
            UseState::Held => false,
            UseState::Unknown => age(*used) > RECENT_AGE,
        };
        if is_due && is_still {
            let _ = fs::remove_dir_all(path);
            room = room.saturating_sub(*size);
            // On NFS the lock file remains until it is closed.
            drop(in_use);
            let _ = fs::remove_dir(path);
        }
    }
}

/// Returns the size of a directory in bytes, the time since its last use, and its state. If `clean` is true, it is
/// removed unless a job uses it. `None` if it is not a directory of the account `me`.
pub(crate) fn examine(path: &Path, me: u32, clean: bool) -> Option<(u64, Duration, CachedState)> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_dir() || found.uid() != me {
        return None;
    }
    let (size, idle) = (size(path), age(found.modified().ok()?));
    let state = match use_state(path) {
        UseState::Held => CachedState::InUse,
        UseState::Unused { .. } | UseState::Unknown if !clean => CachedState::Idle,
        UseState::Unused { _lock: lock } => {
            let removed = fs::remove_dir_all(path);
            // On NFS the lock file remains until it is closed.
            drop(lock);
            let _ = fs::remove_dir(path);
            match removed {
                Err(error) if path.exists() => CachedState::Failed(error.to_string()),
                _ => CachedState::Removed,
            }
        }
        // Without locks, an agent touches what it uses every hour.
        UseState::Unknown if idle < 2 * TOUCH_INTERVAL => CachedState::InUse,
        UseState::Unknown => match fs::remove_dir_all(path) {
            Ok(()) => CachedState::Removed,
            Err(error) => CachedState::Failed(error.to_string()),
        },
    };
    Some((size, idle, state))
}

/// Returns the size of all files in a directory, in bytes. Does not follow links.
fn size(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| {
        let found = entry.metadata().ok()?;
        Some(if found.is_dir() { size(&entry.path()) } else { found.len() })
    });
    sizes.sum()
}

/// Directories in which an account whose home directory takes no programs has its cache.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Writes the report to stdout. With the word `clean`, directories that are not in use are removed.
///
/// With `clean-together` that begins once something comes from stdin, or its end: hosts may share a cache, and their agents,
/// each of which says by an empty frame that it has started, are executed from there.
pub(crate) fn print_report(word: Option<&OsStr>) -> ExitCode {
    let (clean, is_together) = match word.map(OsStr::to_str) {
        None => (false, false),
        Some(Some("clean")) => (true, false),
        Some(Some("clean-together")) => (true, true),
        Some(_) => {
            errln!("rlaunch-worker cache: only `clean` or `clean-together` may follow");
            return ExitCode::from(2);
        }
    };
    // Found before another agent removes the file that this one runs from.
    let caches = caches();
    let go = || {
        console::write_message(&());
        await_go(&io::stdin());
    };
    let report = look(&caches, clean, is_together.then_some(go));
    if is_together {
        console::write_message_behind(&[], &report)
    } else {
        console::write_message(&report)
    }
}

/// Reports on caches, and cleans them. If hosts may share them, `go` returns once the agents of all have started.
fn look(caches: &[PathBuf], clean: bool, go: Option<impl FnOnce()>) -> CacheReport {
    let is_together = go.is_some();
    if let Some(go) = go {
        go();
    }
    let mut report = CacheReport::default();
    for directory in caches {
        report.0.extend(visit(directory, clean));
    }
    if is_together {
        correct_shared(&mut report);
    }
    if clean {
        for directory in caches {
            // Fails if something is left in it.
            let _ = fs::remove_dir(directory);
        }
    }
    report
}

/// Waits until something comes from stdin, or its end.
fn await_go(stdin: &impl AsFd) {
    let mut watched = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    // A launcher that says nothing for so long wants the cache cleaned all the same.
    let _ = poll(&mut watched, PollTimeout::from(GO_TIMEOUT));
}

/// Corrects the state of directories that looked used only because an agent of another host was removing them.
fn correct_shared(report: &mut CacheReport) {
    if report.0.iter().any(|found| found.state == CachedState::InUse) {
        thread::sleep(REMOVAL_TIME);
    }
    for found in report.0.iter_mut().filter(|found| found.state == CachedState::InUse) {
        if !found.path.exists() {
            found.state = CachedState::Removed;
        }
    }
}

/// Lists the directories that may be caches of this account: the one that this agent runs from, and
/// those in which launchers put agents.
pub(crate) fn caches() -> Vec<PathBuf> {
    let own = own_build().and_then(Path::parent).map(Path::to_owned);
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let name = format!(".rlaunch-{}", Uid::effective());
    let shared = SHARED.into_iter().map(|directory| Path::new(directory).join(&name));
    let usual = home.map(|home| home.join(".cache/rlaunch")).into_iter().chain(shared);
    let mut caches: Vec<PathBuf> = own.into_iter().chain(usual).collect();
    // A home directory may be reached by several paths.
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let mut seen = Vec::new();
    caches.retain(|path| {
        let is_new = !seen.contains(&real(path));
        seen.push(real(path));
        is_new
    });
    caches
}

/// Describes the directories in a cache, after removing those that are not in use if `clean` is true.
fn visit(directory: &Path, clean: bool) -> Vec<CachedDirectory> {
    let me = Uid::effective().as_raw();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<CachedDirectory> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let kind = if is_build(&name) {
                CachedKind::Agent
            } else if name.starts_with(LIBRARY_PREFIX) {
                CachedKind::Library
            } else {
                return None;
            };
            examine(&entry.path(), me, clean).map(|(size, idle, state)| CachedDirectory {
                path: entry.path(),
                kind,
                size,
                idle: idle.as_secs(),
                state,
            })
        })
        .collect();
    found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::housekeeping::CachedState;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Creates a directory that was last used `ago`, with a sparse file of `size` bytes in it.
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
        // Creating the lock file has changed the time.
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
        assert_eq!(
            left(cache.path()),
            "b0 b1 b2 b3 own",
            "removed until the size is below the limit"
        );
        for name in ["b5", "b6", "b7"] {
            used(cache.path(), name, Duration::from_secs(60), SIZE_LIMIT);
        }
        trim(cache.path(), |name| name.starts_with('b'), &own);
        assert_eq!(left(cache.path()), "b0 b5 b6 b7 own", "builds used within the hour are kept");
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
        check_writers(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o775)).unwrap();
        let why = check_writers(&path).unwrap_err().to_string();
        assert_eq!(why, "other users can write to it (mode 775)");
        let link = cache.path().join("link");
        std::os::unix::fs::symlink("/usr", &link).unwrap();
        assert_eq!(check_writers(&link).unwrap_err().to_string(), "it is a symbolic link");
        check_writers(Path::new("/usr")).unwrap();
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            let why = check_writers(&path).unwrap_err().to_string();
            assert_eq!(why, "it belongs to user 65534");
        }
    }

    #[test]
    fn only_what_launchers_made_is_listed_and_removed() {
        let cache = tempfile::tempdir().unwrap();
        let build = cache.path().join("0123456789abcdef0123456789abcdef");
        let library = cache.path().join("library-00");
        // By its notes, what was copied can be listed and removed: `rlaunch push --prune`.
        let copies = cache.path().join("copy");
        for directory in [&build, &library, &copies, &cache.path().join("mine")] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("file"), [0; 1000]).unwrap();
        }
        symlink("/", cache.path().join("library-link")).unwrap();
        let listed = visit(cache.path(), false);
        let kinds: Vec<_> = listed.iter().map(|found| (found.kind, found.size)).collect();
        let expected = [CachedKind::Agent, CachedKind::Library];
        assert_eq!(kinds, expected.map(|kind| (kind, 1000)));
        assert!(listed.iter().all(|found| found.state == CachedState::Idle));
        assert!(build.exists() && library.exists());
        super::hold(library.clone());
        let states: Vec<_> =
            visit(cache.path(), true).into_iter().map(|found| found.state).collect();
        assert_eq!(states, [CachedState::Removed, CachedState::InUse]);
        assert!(
            !build.exists()
                && copies.exists()
                && library.exists()
                && cache.path().join("mine").exists()
        );
    }

    #[test]
    fn a_cache_that_hosts_share_is_cleaned_once_the_agents_of_all_have_started() {
        let cache = tempfile::tempdir().unwrap();
        let build = used(cache.path(), "0123456789abcdef0123456789abcdef", Duration::ZERO, 1);
        let (stdin, launcher) = io::pipe().unwrap();
        let have_started = AtomicBool::new(false);
        thread::scope(|scope| {
            let go = || {
                let (mut launcher, have_started) = (launcher, &have_started);
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(50));
                    have_started.store(true, Ordering::Relaxed);
                    launcher.write_all(b"x").unwrap();
                });
                await_go(&stdin);
                assert!(have_started.load(Ordering::Relaxed) && build.exists());
            };
            let report = look(&[cache.path().to_owned()], true, Some(go));
            assert_eq!(report.0[0].state, CachedState::Removed);
        });
        assert!(!build.exists() && have_started.into_inner());
    }

    #[test]
    fn what_another_host_has_removed_meanwhile_is_not_in_use() {
        let cache = tempfile::tempdir().unwrap();
        let library = used(cache.path(), "library-00", Duration::ZERO, 1);
        let of_other_host = lock_shared(&library).unwrap();
        let mut report = CacheReport(visit(cache.path(), true));
        assert_eq!(report.0[0].state, CachedState::InUse);
        correct_shared(&mut report);
        assert_eq!(report.0[0].state, CachedState::InUse);
        fs::remove_dir_all(&library).unwrap();
        drop(of_other_host);
        correct_shared(&mut report);
        assert_eq!(report.0[0].state, CachedState::Removed);
    }
}
