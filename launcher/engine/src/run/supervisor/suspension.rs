//! Ctrl-Z: ranks are stopped on all nodes, then this process stops itself.

use super::{Action, Supervisor};
use crate::run::live::messages::Reply;
use rlaunch_bootstrap::protocol::control::ToAgent;
use std::time::{Duration, Instant};

/// Time that agents have to stop their ranks before this process stops itself.
const SUSPEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Pending Ctrl-Z: some nodes have not stopped their ranks yet.
pub(super) struct Suspension {
    /// Number of nodes that have not reported yet that their ranks are stopped.
    pub(super) unconfirmed: usize,
    pub(super) due: Instant,
}

impl Supervisor<'_> {
    pub(super) fn suspend(&mut self, now: Instant) {
        self.send_all(ToAgent::Suspend);
        self.sessions.tell_all(&Reply::Suspended);
        self.send_for_sessions();
        let unconfirmed = self.ends.iter().filter(|end| end.is_none()).count();
        self.suspension = Some(Suspension { unconfirmed, due: now + SUSPEND_TIMEOUT });
        if unconfirmed == 0 {
            self.stop_process();
        }
    }

    /// Counts a node that has stopped its ranks.
    pub(super) fn on_suspended(&mut self) {
        let Some(suspension) = &mut self.suspension else { return };
        suspension.unconfirmed -= 1;
        if suspension.unconfirmed == 0 {
            self.stop_process();
        }
    }

    /// Stops this process if a Ctrl-Z is pending, even if some nodes have not stopped their ranks. All ranks
    /// continue when this process is continued.
    pub(super) fn stop_process(&mut self) {
        if self.suspension.take().is_some() {
            self.actions.push_back(Action::StopProcess);
            self.send_all(ToAgent::Resume);
            self.sessions.tell_all(&Reply::Resumed);
            self.send_for_sessions();
        }
    }
}
