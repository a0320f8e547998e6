//! Environment variables and directories of this process.

use nix::unistd::{Uid, User};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

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
    pub fn state(&self) -> Option<PathBuf> {
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
