//! Connection of a rank to its rlaunch agent.
//!
//! When a peer dies its connections may close, or may only fall silent. The launcher knows which
//! rank failed first and how, and agents report that unasked ([`JobEvent`]).

use rlaunch_bootstrap::client::Client;
use rlaunch_bootstrap::client::events::JobEvent;
use rlaunch_bootstrap::id::NodeId;
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a rank that has lost another waits for the launcher's explanation, which takes
/// milliseconds: it travels from the lost rank's agent through the launcher to this agent.
const EXPLANATION: Duration = Duration::from_secs(2);

/// Unasked report of the agent.
#[derive(Debug)]
pub(crate) enum AgentEvent {
    Job(JobEvent),
    /// The agent has ended.
    Gone,
}

/// Client of the agent, shared by all threads of the process.
#[derive(Debug)]
pub(crate) struct Agent {
    client: Mutex<Client>,
    /// Node of each rank of the job.
    pub(crate) nodes: Vec<NodeId>,
    /// Time of the first failed call.
    failed_at: OnceLock<Instant>,
}

impl Agent {
    pub(crate) fn new(client: Client, nodes: Vec<NodeId>) -> Agent {
        Agent { client: Mutex::new(client), nodes, failed_at: OnceLock::new() }
    }

    /// Runs `asks` on the client. Blocks while another thread uses the client.
    pub(crate) fn ask<R>(&self, asks: impl FnOnce(&mut Client) -> R) -> R {
        asks(&mut self.client.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a report that has arrived. Returns `None` while another thread uses the client,
    /// which receives reports too.
    pub(crate) fn poll_event(&self) -> Option<AgentEvent> {
        match self.client.try_lock() {
            Ok(mut client) => next_event(&mut client, None),
            Err(TryLockError::Poisoned(client)) => next_event(&mut client.into_inner(), None),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for a report after a call has failed. All such waits together take at most
    /// [`EXPLANATION`].
    pub(crate) fn wait_for_event(&self) -> Option<AgentEvent> {
        let begin = *self.failed_at.get_or_init(Instant::now);
        let left = EXPLANATION.saturating_sub(begin.elapsed());
        match left.is_zero() {
            true => None,
            false => self.ask(|client| next_event(client, Some(left))),
        }
    }

    /// Tells whether [`Agent::wait_for_event`] still waits.
    pub(crate) fn may_still_explain(&self) -> bool {
        self.failed_at.get().is_none_or(|begin| begin.elapsed() < EXPLANATION)
    }

    /// Runs `uses` on the socket, which is readable when the agent has sent something.
    pub(crate) fn with_fd<R>(&self, uses: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> R) -> R {
        self.ask(|client| uses(client.as_fd()))
    }
}

fn next_event(client: &mut Client, longest: Option<Duration>) -> Option<AgentEvent> {
    match client.job_event(longest) {
        Ok(event) => event.map(AgentEvent::Job),
        Err(_) => Some(AgentEvent::Gone),
    }
}
