//! Working directories of ranks: that of the launcher, and those of `--wdir`.

use super::JobError;
use rlaunch_bootstrap::job::{LauncherDir, WorkingDir};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::{env, fs, io};

/// Returns the working directory of this process. Its path is that in PWD, if that leads there.
pub(crate) fn here() -> io::Result<LauncherDir> {
    let physical = env::current_dir()?;
    Ok(known_as(env::var_os("PWD").map(PathBuf::from), physical))
}

/// Returns the directory `physical` with the path by which the user knows it: `pwd`, if that is another path to it.
fn known_as(pwd: Option<PathBuf>, physical: PathBuf) -> LauncherDir {
    let has_dots = |path: &Path| path.components().any(|part| part == Component::ParentDir);
    // PWD is also inherited from processes that have changed their directory without a shell.
    let leads_here = |path: &PathBuf| is_same(path, &physical);
    let pwd = pwd.filter(|path| path.is_absolute() && !has_dots(path));
    match pwd.filter(leads_here) {
        Some(path) => LauncherDir { path: path.components().collect(), physical },
        None => physical.into(),
    }
}

/// Returns the directory of `--wdir`, or else that of the launcher.
pub(super) fn of_option(wdir: Option<PathBuf>) -> Result<WorkingDir, JobError> {
    match wdir {
        Some(wdir) => required(wdir),
        None => Ok(WorkingDir::SameAsLauncher(here().map_err(JobError::WorkingDir)?)),
    }
}

/// Returns the directory of `--wdir`. A relative one is relative to the launcher's, as for mpirun and hydra, unless it
/// begins with `~`, which each host takes for its own home directory.
pub(super) fn required(wdir: PathBuf) -> Result<WorkingDir, JobError> {
    if wdir.is_absolute() || wdir.starts_with("~") {
        // The launcher's own directory does not matter, and may have been deleted.
        return Ok(WorkingDir::Required(wdir));
    }
    let here = here().map_err(JobError::WorkingDir)?;
    Ok(WorkingDir::Required(below(&here, &wdir)))
}

fn below(here: &LauncherDir, wdir: &Path) -> PathBuf {
    if !wdir.components().any(|part| part == Component::ParentDir) {
        return here.path.join(wdir).components().collect();
    }
    // The parent of a directory depends on where links lead, which only paths without links show. The path that the user
    // went leads to the same directory, as a rule, and other hosts may have that path alone.
    let typed = here.physical.join(wdir);
    let Ok(real) = typed.canonicalize() else { return typed };
    Some(without_dots(&here.path.join(wdir))).filter(|path| is_same(path, &real)).unwrap_or(real)
}

/// Tells whether two paths lead to the same directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    id(one).is_some_and(|found| id(other) == Some(found))
}

/// Returns a path in which each `..` takes away the name before it.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
        } else {
            plain.push(part);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_path_in_pwd_counts_where_it_leads_here() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().canonicalize().unwrap();
        let (export, link) = (real.join("export92"), real.join("data92"));
        fs::create_dir_all(export.join("run")).unwrap();
        symlink("export92", &link).unwrap();
        let known = |pwd: Option<PathBuf>| known_as(pwd, export.clone()).path;
        assert_eq!(known(Some(link.clone())), link);
        for other in [real.clone(), link.join("run"), link.join("run/.."), "data92".into()] {
            assert_eq!(known(Some(other)), export);
        }
        assert_eq!(known(None), export);
        assert_eq!(known_as(Some(link), export.clone()).physical, export);
    }

    #[test]
    fn the_way_up_goes_by_the_path_that_the_user_went_if_it_leads_there() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().canonicalize().unwrap();
        let (export, link) = (real.join("export92"), real.join("data92"));
        fs::create_dir_all(export.join("x/deep")).unwrap();
        fs::create_dir_all(export.join("y")).unwrap();
        symlink("export92", &link).unwrap();
        symlink("x/deep", export.join("short")).unwrap();
        let from = |below: &str, wdir: &str| {
            let here = LauncherDir {
                path: link.join(below),
                physical: export.join(below).canonicalize().unwrap(),
            };
            super::below(&here, Path::new(wdir))
        };
        assert_eq!(from("x", "../y"), link.join("y"));
        assert_eq!(from("x", ".."), link);
        assert_eq!(from("", ".."), real);
        assert_eq!(from("x", "deep/../../y/."), link.join("y"));
        // Above the other link is another directory than the path says.
        assert_eq!(from("short", ".."), export.join("x"));
    }

    #[test]
    fn a_relative_directory_is_below_this_one() {
        let scratch = tempfile::tempdir().unwrap();
        let physical = scratch.path().canonicalize().unwrap();
        fs::create_dir(physical.join("here")).unwrap();
        let here = LauncherDir { path: "/data92".into(), physical: physical.join("here") };
        let text = |wdir: &str| below(&here, Path::new(wdir)).into_os_string();
        assert_eq!(text("."), "/data92");
        assert_eq!(text("./run//a/."), "/data92/run/a");
        assert_eq!(text(".."), physical.as_os_str());
        assert_eq!(text("../gone"), physical.join("here/../gone").as_os_str());
        let absolute = required("/srv/".into()).unwrap();
        assert_eq!(absolute, WorkingDir::Required("/srv/".into()));
        assert_eq!(required("~/run".into()).unwrap(), WorkingDir::Required("~/run".into()));
        assert_eq!(text("./~"), "/data92/~");
    }
}
