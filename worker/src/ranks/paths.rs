//! Paths of a job on this node: where programs are, whether paths lead to what they should, and why not.

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};
use rlaunch_bootstrap::job::PathDefect;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Maximum number of links that are followed, as in the kernel.
const MAX_LINKS: usize = 40;

/// Returns what is at a path.
pub(super) fn metadata(path: &Path) -> Result<Metadata, PathDefect> {
    fs::metadata(path).map_err(|error| explain(path, &error))
}

/// Checks that a path leads to a file that this user may execute.
pub(super) fn check_executable(path: &Path) -> Result<(), PathDefect> {
    let found = metadata(path)?;
    if !found.is_file() {
        return Err(PathDefect::NotAFile { is_directory: found.is_dir() });
    }
    if may_execute(path) {
        return Ok(());
    }
    // Without this, chmod would seem to help.
    let is_noexec = statvfs(path).is_ok_and(|stat| stat.flags().contains(FsFlags::ST_NOEXEC));
    Err(if is_noexec { PathDefect::MountedNoexec } else { PathDefect::NotExecutable })
}

/// Tells whether [`check_executable`] succeeds; cheaper where the reason does not matter.
pub(super) fn is_executable(path: &Path) -> bool {
    path.is_file() && may_execute(path)
}

/// Finds an executable file of this name; entries of the path may be relative to `directory`.
pub(super) fn find_on_path(name: &OsStr, search_path: &OsStr, directory: &Path) -> Option<PathBuf> {
    on_path(name, search_path, directory).find(|path| is_executable(path))
}

/// Returns the paths at which a program of this name is looked for.
pub(super) fn on_path(
    name: &OsStr,
    search_path: &OsStr,
    directory: &Path,
) -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(search_path).map(move |entry| directory.join(entry).join(name))
}

/// Checks that a path leads to a directory that this user may enter.
pub(super) fn check_directory(path: &Path) -> Result<(), PathDefect> {
    if !metadata(path)?.is_dir() {
        return Err(PathDefect::NotADirectory { file: path.to_owned() });
    }
    if may_execute(path) { Ok(()) } else { Err(PathDefect::Closed { directory: path.to_owned() }) }
}

/// Tells whether this user may execute a file, or enter a directory.
fn may_execute(path: &Path) -> bool {
    access(path, AccessFlags::X_OK).is_ok()
}

/// Says why stat(2) has failed for a path: what is wrong, and where on the way.
fn explain(path: &Path, error: &io::Error) -> PathDefect {
    let first = first_broken(path);
    let mut at = first.clone();
    for _ in 0..MAX_LINKS {
        // Fails for everything but links, and in a directory that this user may not enter.
        let Ok(target) = fs::read_link(&at) else { break };
        at = first_broken(&parent(&at).join(target));
    }
    match error.kind() {
        ErrorKind::NotFound if at == first => PathDefect::Missing,
        ErrorKind::NotFound => PathDefect::DanglingLink { link: first, target: at },
        ErrorKind::PermissionDenied => PathDefect::Closed { directory: parent(&at).to_owned() },
        ErrorKind::NotADirectory => PathDefect::NotADirectory { file: parent(&at).to_owned() },
        _ if error.raw_os_error() == Some(libc::ELOOP) => PathDefect::LinkLoop { link: first },
        _ => PathDefect::Unreachable { cause: error.to_string() },
    }
}

/// Returns the beginning of a path up to the first name at which stat(2) fails.
fn first_broken(path: &Path) -> PathBuf {
    let is_broken = |path: &&Path| !path.as_os_str().is_empty() && fs::metadata(path).is_err();
    path.ancestors().take_while(is_broken).last().unwrap_or(path).to_owned()
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn what_is_wrong_is_found_on_the_way() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let of = |name: &str| metadata(&path(name)).map(|_| ()).unwrap_err();
        assert_eq!(of("none/x"), PathDefect::Missing);
        symlink("gone", path("link")).unwrap();
        let dangling =
            |link: &str| PathDefect::DanglingLink { link: path(link), target: path("gone") };
        assert_eq!((of("link"), of("link/x")), (dangling("link"), dangling("link")));
        // A link to a link ends where the second does.
        symlink("link", path("further")).unwrap();
        assert_eq!(of("further"), dangling("further"));
        symlink("b", path("a")).unwrap();
        symlink("a", path("b")).unwrap();
        assert_eq!(of("a/x"), PathDefect::LinkLoop { link: path("a") });
        fs::write(path("file"), "").unwrap();
        symlink("file", path("to-file")).unwrap();
        assert_eq!(of("file/x"), PathDefect::NotADirectory { file: path("file") });
        assert_eq!(of("to-file/x"), PathDefect::NotADirectory { file: path("to-file") });
        // What lies in a directory that exists is just not there.
        symlink(".", path("here")).unwrap();
        assert_eq!(of("here/none"), PathDefect::Missing);
    }

    #[test]
    fn programs_and_directories_are_told_apart() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(check_executable(&file), Err(PathDefect::NotExecutable));
        assert_eq!(check_directory(&file), Err(PathDefect::NotADirectory { file: file.clone() }));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check_executable(&file), Ok(()));
        let not_a_file = |is_directory| Err(PathDefect::NotAFile { is_directory });
        assert_eq!(check_executable(scratch.path()), not_a_file(true));
        assert_eq!(check_executable(Path::new("/dev/null")), not_a_file(false));
        assert_eq!(check_directory(scratch.path()), Ok(()));
    }

    /// Most systems mount /proc so.
    #[test]
    fn a_mount_without_programs_is_named() {
        let proc = Path::new("/proc/self/status");
        let is_noexec = statvfs(proc).unwrap().flags().contains(FsFlags::ST_NOEXEC);
        let defect = if is_noexec { PathDefect::MountedNoexec } else { PathDefect::NotExecutable };
        assert_eq!(check_executable(proc), Err(defect));
    }
}
