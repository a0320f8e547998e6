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
    let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let here = id(&physical);
    let has_dots = |path: &Path| path.components().any(|part| part == Component::ParentDir);
    // PWD is also inherited from processes that have changed their directory without a shell.
    let leads_here = |path: &PathBuf| here.is_some() && id(path) == here;
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
    // The parent of a directory depends on where links lead, which only paths without links show.
    if wdir.components().any(|part| part == Component::ParentDir) {
        let typed = here.physical.join(wdir);
        return typed.canonicalize().unwrap_or(typed);
    }
    here.path.join(wdir).components().collect()
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
