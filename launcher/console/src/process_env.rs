//! Environment variables and directories of this process.

use nix::unistd::{Uid, User};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment variables, working directory and home directory: those of this process, or substitutes in
/// tests.
#[derive(Clone, Debug, Default)]
pub struct ProcessEnv {
    /// Environment variables.
    pub variables: Vec<(OsString, OsString)>,
    /// Directory in which the search for `rlaunch.toml` begins; empty for the working directory.
    pub directory: PathBuf,
    /// Home directory of the user, if known.
    pub home: Option<PathBuf>,
}

impl ProcessEnv {
    /// Returns the environment of this process.
    pub fn current() -> ProcessEnv {
        ProcessEnv {
            variables: std::env::vars_os().collect(),
            directory: PathBuf::new(),
            home: home(),
        }
    }

    /// Returns the value of a variable, unless it is empty.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.variables.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// Returns the directory for state files of the user's programs: XDG_STATE_HOME if that is an absolute
    /// path, else ~/.local/state. `None` if the home directory is not known either.
    pub fn state_directory(&self) -> Option<PathBuf> {
        let state = self.variable("XDG_STATE_HOME").map(PathBuf::from);
        let state = state.filter(|path| path.is_absolute());
        state.or_else(|| Some(self.home.as_ref()?.join(".local/state")))
    }
}

/// Returns the home directory: HOME if that is an absolute path, else the home directory of the user's
/// account.
fn home() -> Option<PathBuf> {
    let account = || User::from_uid(Uid::effective()).ok().flatten().map(|user| user.dir);
    std::env::home_dir().filter(|home| home.is_absolute()).or_else(account)
}

/// Creates a directory below [`ProcessEnv::state_directory`] for this user alone, unless it exists. The superuser creates nothing
/// where another user's programs would then fail to write: `sudo` may keep that user's HOME. One that exists must be private
/// ([`check_private`]).
pub fn create_state_directory(directory: &Path) -> io::Result<()> {
    check_owner(directory, Uid::effective())?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    check_private(directory, &fs::metadata(directory)?)
}

/// Checks that a directory of state is this user's, and that no other user can create files in it: commands of a job that is
/// run again are read from there. Where all may write to XDG_STATE_HOME, another user may have been the first to create it.
pub fn check_private(directory: &Path, found: &Metadata) -> io::Result<()> {
    check_private_to(Uid::effective(), directory, found)
}

fn check_private_to(user: Uid, directory: &Path, found: &Metadata) -> io::Result<()> {
    let (path, owner) = (directory.display(), || account(found.uid()));
    let message = if found.uid() != user.as_raw() {
        format!("{path} belongs to {}, not to the user of this rlaunch", owner())
    } else if found.mode() & 0o022 != 0 {
        format!("{path} of {} can be written to by other users: `chmod go-w {path}`", owner())
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Returns the name of a user.
fn account(id: u32) -> String {
    let name = User::from_uid(Uid::from_raw(id)).ok().flatten().map(|user| user.name);
    name.unwrap_or_else(|| format!("uid {id}"))
}

/// Checks that a directory, or the one in which it would be created, is no other user's if `user` is the superuser.
fn check_owner(directory: &Path, user: Uid) -> io::Result<()> {
    let mut above = directory.ancestors();
    let existing = above.find_map(|path| Some((path, fs::metadata(path).ok()?.uid())));
    let Some((path, owner)) = existing.filter(|(_, owner)| user.is_root() && *owner != 0) else {
        return Ok(());
    };
    let name = account(owner);
    let message = format!(
        "{} belongs to {name}, and this rlaunch runs as root (`sudo -H` sets root's HOME)",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_superuser_leaves_directories_of_others_alone() {
        let directory = std::env::temp_dir().join(format!("rlaunch-owner-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (user, root) = (Uid::from_raw(54321), Uid::from_raw(0));
        if Uid::effective().is_root() {
            std::os::unix::fs::chown(&directory, Some(user.as_raw()), None).unwrap();
        }
        let below = directory.join("rlaunch/jobs");
        let checked = [&directory, &below].map(|path| check_owner(path, root));
        let of_user = check_owner(&below, user);
        fs::remove_dir(&directory).unwrap();
        for refused in checked {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(" belongs to ") && error.contains("as root"), "{error}");
        }
        assert!(of_user.is_ok() && check_owner(Path::new("/no/such"), root).is_ok());
    }

    #[test]
    fn a_directory_of_another_user_or_open_to_others_is_refused() {
        let above = std::env::temp_dir().join(format!("rlaunch-private-{}", std::process::id()));
        let directory = above.join("rlaunch/jobs");
        let created = create_state_directory(&directory);
        let found = fs::metadata(&directory).unwrap();
        let of_another = check_private_to(Uid::from_raw(found.uid() + 1), &directory, &found);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).unwrap();
        let open = create_state_directory(&directory);
        fs::remove_dir_all(&above).unwrap();
        assert!(created.is_ok());
        for (refused, cause) in [(of_another, " belongs to "), (open, "other users")] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(cause), "{error}");
            assert!(error.starts_with(directory.to_str().unwrap()), "{error}");
        }
    }
}
