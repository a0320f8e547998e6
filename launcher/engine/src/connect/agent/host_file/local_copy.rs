//! Copies of files that rlaunch carries, for programs that run on this machine. They are in the cache that hosts have
//! too, under the same names: `~/.cache/rlaunch/HASH/NAME`.

use super::{HostFile, make_executable};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Group, Uid, User};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Directories for caches of accounts whose home directory takes no programs.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Returns the path of a copy of `file`, which is made if there is none yet. Fails, with the reason for the home
/// directory, if no directory takes programs.
pub(super) fn place(file: &HostFile, name: &OsStr) -> io::Result<PathBuf> {
    let mut first_error = None;
    for cache in caches() {
        match place_in(&cache, file, name) {
            Ok(path) => return Ok(path),
            Err(error) => {
                let error = io::Error::new(error.kind(), format!("{}: {error}", cache.display()));
                first_error.get_or_insert(error);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

fn caches() -> impl Iterator<Item = PathBuf> {
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let own = format!(".rlaunch-{}", Uid::effective());
    let shared = SHARED.into_iter().map(move |directory| Path::new(directory).join(&own));
    home.map(|home| home.join(".cache/rlaunch")).into_iter().chain(shared)
}

fn place_in(cache: &Path, file: &HostFile, name: &OsStr) -> io::Result<PathBuf> {
    let build = cache.join(&file.hash);
    // Before anything is created: with HOME of another account, root would leave directories there.
    check_way(cache)?;
    DirBuilder::new().recursive(true).mode(0o700).create(&build)?;
    for directory in [cache, &build] {
        check(&fs::symlink_metadata(directory)?)?;
    }
    let path = build.join(name);
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_file() && found.len() == file.size && check(&found).is_ok() => {
            return Ok(path);
        }
        _ => {}
    }
    if statvfs(&build)?.flags().contains(FsFlags::ST_NOEXEC) {
        return Err(io::Error::other("programs may not be executed from there"));
    }
    let mut copy = NamedTempFile::new_in(&build)?;
    file.copy(copy.as_file_mut())?;
    make_executable(copy.as_file())?;
    // A later start looks at the size alone, which a crash of this machine may leave without the content.
    copy.as_file().sync_data()?;
    copy.persist(&path).map_err(|error| error.error)?;
    Ok(path)
}

/// Fails if another account may replace a directory above the cache, and so swap the copy between check and start. The
/// rules are those of the agent's installation on hosts (`place.sh`): directories belong to this account or to root, and
/// others may write only where the sticky bit keeps them from renaming what is not theirs. The root directory is not
/// checked.
fn check_way(cache: &Path) -> io::Result<()> {
    let existing = cache.ancestors().skip(1).find(|directory| directory.exists());
    let existing = existing.unwrap_or(Path::new("/")).canonicalize()?;
    for directory in existing.ancestors().filter(|directory| *directory != Path::new("/")) {
        let found = fs::metadata(directory)?;
        let (mode, owner) = (found.mode(), found.uid());
        let is_own = owner == 0 || owner == Uid::effective().as_raw();
        let others_write = mode & 0o002 != 0 || mode & 0o020 != 0 && !is_private(found.gid());
        if !is_own || others_write && mode & 0o1000 == 0 {
            let directory = directory.display();
            let why =
                format!("others may change {directory}: owner {owner}, mode {:o}", mode & 0o7777);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

/// Tells whether a group is the account's own: its primary group, of the account's name.
fn is_private(group: u32) -> bool {
    let account = User::from_uid(Uid::effective()).ok().flatten();
    account.is_some_and(|account| {
        let is_primary = account.gid.as_raw() == group;
        let named = Group::from_gid(account.gid).ok().flatten();
        is_primary && named.is_some_and(|named| named.name == account.name)
    })
}

/// Fails if another account may have written a file or directory.
fn check(found: &Metadata) -> io::Result<()> {
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if found.uid() != Uid::effective().as_raw() {
        return refused(format!("it belongs to user {}", found.uid()));
    }
    if found.is_symlink() || found.mode() & 0o022 != 0 {
        return refused(format!("other users may change it (mode {:o})", found.mode() & 0o7777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn file(root: &Path) -> HostFile {
        let path = root.join("content");
        fs::write(&path, b"a program").unwrap();
        HostFile::on_disk(&path).unwrap()
    }

    #[test]
    fn a_copy_is_made_once_and_repaired() {
        let root = tempfile::tempdir().unwrap();
        let (file, cache) = (file(root.path()), root.path().join("cache"));
        let place = || place_in(&cache, &file, OsStr::new("agent")).unwrap();
        let path = place();
        assert_eq!(path, cache.join(&file.hash).join("agent"));
        let inode = || fs::metadata(&path).unwrap().ino();
        let first = inode();
        assert_eq!((place(), inode()), (path.clone(), first));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        let spoil: [fn(&Path); 2] = [
            |path| fs::write(path, "short").unwrap(),
            |path| fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap(),
        ];
        for spoil in spoil {
            spoil(&path);
            place();
            assert_eq!(fs::read(&path).unwrap(), b"a program");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        }
    }

    #[test]
    fn a_cache_that_others_may_change_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let (file, cache) = (file(root.path()), root.path().join("cache"));
        fs::create_dir(&cache).unwrap();
        fs::set_permissions(&cache, Permissions::from_mode(0o777)).unwrap();
        let refused =
            |cache: &Path| place_in(cache, &file, OsStr::new("agent")).unwrap_err().to_string();
        assert_eq!(refused(&cache), "other users may change it (mode 777)");
        let link = root.path().join("link");
        fs::set_permissions(&cache, Permissions::from_mode(0o700)).unwrap();
        symlink(&cache, &link).unwrap();
        assert!(refused(&link).starts_with("other users may change it"));
    }

    #[test]
    fn a_cache_below_a_directory_that_others_may_change_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let (file, upper) = (file(root.path()), root.path().join("upper"));
        let cache = upper.join("home/.cache/rlaunch");
        fs::create_dir(&upper).unwrap();
        let link = root.path().join("link");
        symlink(&upper, &link).unwrap();
        for (mode, is_used) in [(0o777, false), (0o1777, true), (0o755, true)] {
            fs::set_permissions(&upper, Permissions::from_mode(mode)).unwrap();
            for cache in [&cache, &link.join("home/.cache/rlaunch")] {
                let placed = place_in(cache, &file, OsStr::new("agent"));
                assert_eq!(placed.is_ok(), is_used, "{mode:o} {placed:?}");
                let refused = placed.err().map(|error| error.to_string()).unwrap_or_default();
                let why = format!("others may change {}: owner ", upper.display());
                assert!(is_used || refused.starts_with(&why), "{refused}");
                // What was refused is left as it was.
                assert_eq!(upper.join("home").exists(), is_used);
            }
            let _ = fs::remove_dir_all(upper.join("home"));
        }
    }
}
