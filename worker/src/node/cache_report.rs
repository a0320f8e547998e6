//! `rlaunch-worker cache`: lists what this account keeps of rlaunch on this host, or removes it.

use super::cache;
use super::inventory;
use crate::console::errln;
use nix::unistd::Uid;
use rlaunch_bootstrap::job::library::LIBRARY_PREFIX;
use rlaunch_bootstrap::protocol::housekeeping::{CacheReport, CachedDirectory, CachedKind};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Directories in which an account whose home directory takes no programs has its cache.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Writes the report to stdout. With the word `clean`, directories that are not in use are removed.
pub(crate) fn print(word: Option<&OsStr>) -> ExitCode {
    let clean = match word.map(OsStr::to_str) {
        None => false,
        Some(Some("clean")) => true,
        Some(_) => {
            errln!("rlaunch-worker cache: only `clean` may follow");
            return ExitCode::from(2);
        }
    };
    let mut report = CacheReport::default();
    for directory in caches() {
        report.0.extend(visit(&directory, clean));
        if clean {
            // Fails if something is left in it.
            let _ = fs::remove_dir(&directory);
        }
    }
    inventory::write(&report)
}

/// Lists the directories that may be caches of this account: the one that this agent runs from, and
/// those in which launchers put agents.
fn caches() -> Vec<PathBuf> {
    let build = cache::agent().and_then(Path::parent).filter(|build| {
        build.file_name().is_some_and(|name| cache::is_build(&name.to_string_lossy()))
    });
    let own = build.and_then(Path::parent).map(Path::to_owned);
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
    let mut found: Vec<CachedDirectory> =
        entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let kind = match () {
                    () if cache::is_build(&name) => CachedKind::Agent,
                    () if name.starts_with(LIBRARY_PREFIX) => CachedKind::Library,
                    () => return None,
                };
                cache::examine(&entry.path(), me, clean).map(|(size, idle, state)| {
                    CachedDirectory { path: entry.path(), kind, size, idle: idle.as_secs(), state }
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
    use std::os::unix::fs::symlink;

    #[test]
    fn only_what_launchers_made_is_listed_and_removed() {
        let cache = tempfile::tempdir().unwrap();
        let build = cache.path().join("0123456789abcdef0123456789abcdef");
        let library = cache.path().join("library-00");
        for directory in [&build, &library, &cache.path().join("mine")] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("file"), [0; 1000]).unwrap();
        }
        symlink("/", cache.path().join("library-link")).unwrap();
        let listed = visit(cache.path(), false);
        let kinds: Vec<_> = listed.iter().map(|found| (found.kind, found.size)).collect();
        assert_eq!(kinds, [(CachedKind::Agent, 1000), (CachedKind::Library, 1000)]);
        assert!(listed.iter().all(|found| found.state == CachedState::Idle));
        assert!(build.exists() && library.exists());
        cache::hold(library.clone());
        let states: Vec<_> =
            visit(cache.path(), true).into_iter().map(|found| found.state).collect();
        assert_eq!(states, [CachedState::Removed, CachedState::InUse]);
        assert!(!build.exists() && library.exists() && cache.path().join("mine").exists());
    }
}
