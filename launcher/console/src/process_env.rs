//! The environment, the directory and the home of this process.

use nix::unistd::{Uid, User};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Variables and directories of this process and its user.
#[derive(Clone, Debug, Default)]
pub struct ProcessEnv {
    /// Environment variables.
    pub variables: Vec<(OsString, OsString)>,
    /// Directory in which a file is looked for first; empty for the working directory.
    pub directory: PathBuf,
    /// Home directory of the user, if known.
    pub home: Option<PathBuf>,
}

impl ProcessEnv {
    /// Those of this process.
    pub fn current() -> ProcessEnv {
        ProcessEnv {
            variables: std::env::vars_os().collect(),
            directory: PathBuf::new(),
            home: home(),
        }
    }

    /// A variable's value, unless that is empty.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        let found = self.variables.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_os_str()).filter(|value| !value.is_empty())
    }

    /// Finds the directory in which programs keep a user's state.
    pub fn state(&self) -> Option<PathBuf> {
        let state = self.variable("XDG_STATE_HOME").map(PathBuf::from);
        let state = state.filter(|path| path.is_absolute());
        state.or_else(|| Some(self.home.as_ref()?.join(".local/state")))
    }
}

/// Finds the home directory, in the environment or else in the list of users.
fn home() -> Option<PathBuf> {
    let account = || User::from_uid(Uid::effective()).ok().flatten().map(|user| user.dir);
    std::env::home_dir().filter(|home| home.is_absolute()).or_else(account)
}
