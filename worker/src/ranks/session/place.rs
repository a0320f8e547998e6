//! The place of a running rank, in which a command of the user can run too.

use crate::node::environment::Environment;
use nix::unistd::Pid;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::RankSetup;
use rlaunch_bootstrap::protocol::session::SessionError;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Running rank, with what its process was given.
pub(super) struct RankPlace<'a> {
    pub(super) rank: Rank,
    pub(super) pid: Pid,
    /// Binding of the rank to CPUs and memory.
    pub(super) setup: &'a RankSetup,
}

impl RankPlace<'_> {
    /// Reads the environment with which the rank's process was started.
    pub(super) fn environment(&self) -> Result<Environment, SessionError> {
        let path = format!("/proc/{}/environ", self.pid);
        let bytes = fs::read(&path)
            .map_err(|error| SessionError::cannot(format!("read {path}"), &error))?;
        // The memory of a process that has ended is gone.
        if bytes.is_empty() { Err(SessionError::RankEnded) } else { Ok(parse(&bytes)) }
    }

    /// Returns a path that leads to the working directory of the rank's process.
    pub(super) fn directory(&self) -> PathBuf {
        format!("/proc/{}/cwd", self.pid).into()
    }
}

/// Parses `/proc/PID/environ`.
fn parse(bytes: &[u8]) -> Environment {
    let own = |bytes: &[u8]| -> OsString { OsStr::from_bytes(bytes).to_owned() };
    let mut env = Environment::new();
    for entry in bytes.split(|&byte| byte == 0) {
        if let Some(at) = entry.iter().position(|&byte| byte == b'=') {
            env.insert(own(&entry[..at]), own(&entry[at + 1..]));
        }
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_without_a_value_are_left_out() {
        let env = parse(b"A=1\0B=x=y\0C\0\0D=\0");
        let pairs: Vec<_> = env.iter().map(|(n, v)| (n.to_str(), v.to_str())).collect();
        let expected = [("A", "1"), ("B", "x=y"), ("D", "")];
        assert_eq!(pairs, expected.map(|(name, value)| (Some(name), Some(value))));
    }

    #[test]
    fn the_place_of_this_process_is_read() {
        let setup = RankSetup::default();
        let place = RankPlace { rank: Rank(0), pid: Pid::this(), setup: &setup };
        assert!(place.environment().unwrap().contains_key(OsStr::new("PATH")));
        let here = fs::read_link(place.directory()).unwrap();
        assert_eq!(here, std::env::current_dir().unwrap());
    }
}
