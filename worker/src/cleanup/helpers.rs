//! Helpers of the agent: its children that are no ranks.

use crate::cleanup::processes::parent;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// Time limit for helpers to exit after they were shut down.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Helpers that run: children of the agent that are not part of the user's program, so signals for
/// the ranks are not sent to them. They are the prover, the program that reads stacks, and the one
/// that reads the use of GPUs.
#[derive(Debug, Default)]
pub(crate) struct Helpers {
    pids: Vec<Pid>,
    /// Time at which they are killed, set once no other process is left.
    kill_at: Option<Instant>,
    killed: bool,
}

/// State of the helpers after their time to exit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HelperState {
    /// None runs any more.
    Gone,
    /// They were killed now.
    Killed,
    /// They run although they were killed before. The guardian deals with them.
    Stuck,
}

impl Helpers {
    pub(crate) fn new(pids: impl IntoIterator<Item = Pid>) -> Helpers {
        Helpers { pids: pids.into_iter().collect(), ..Helpers::default() }
    }

    pub(crate) fn pids(&self) -> &[Pid] {
        &self.pids
    }

    pub(crate) fn add(&mut self, pid: Pid) {
        self.pids.push(pid);
    }

    /// Removes a process that was reaped, if it is a helper.
    pub(crate) fn on_reaped(&mut self, pid: Pid) {
        self.pids.retain(|&helper| helper != pid);
    }

    /// Kills one helper, unless it has ended.
    pub(crate) fn kill(&self, pid: Pid) {
        // Until it is reaped, no other process gets its id.
        if self.pids.contains(&pid) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    /// Begins to wait for the helpers to exit.
    pub(crate) fn await_exit(&mut self, now: Instant) {
        self.kill_at.get_or_insert(now + EXIT_TIMEOUT);
    }

    /// Returns the time at which [`Helpers::end`] is due.
    pub(crate) fn kill_at(&self) -> Option<Instant> {
        self.kill_at
    }

    /// Kills helpers that were shut down and have not exited.
    pub(crate) fn end(&mut self) -> HelperState {
        self.kill_at = None;
        self.pids.retain(|&pid| parent(pid) == Some(Pid::this()));
        if self.pids.is_empty() {
            return HelperState::Gone;
        }
        if std::mem::replace(&mut self.killed, true) {
            return HelperState::Stuck;
        }
        self.pids.iter().for_each(|&pid| self.kill(pid));
        HelperState::Killed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_helper_that_does_not_exit_is_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let mut helpers = Helpers::new([pid]);
        let now = Instant::now();
        helpers.await_exit(now);
        helpers.await_exit(now + EXIT_TIMEOUT);
        assert_eq!(helpers.kill_at(), Some(now + EXIT_TIMEOUT));
        assert_eq!(helpers.end(), HelperState::Killed);
        child.wait().unwrap();
        helpers.on_reaped(pid);
        assert_eq!((helpers.end(), helpers.kill_at()), (HelperState::Gone, None));
    }
}
