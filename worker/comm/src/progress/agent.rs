//! This rank's agent: asked for things, and listened to while the rank waits for others.
//!
//! A peer that dies may take a connection with it, or may only fall silent; who failed first, and
//! how, the launcher knows. Agents tell it unasked ([`JobEvent`]).

use rlaunch_bootstrap::client::Client;
use rlaunch_bootstrap::client::events::JobEvent;
use rlaunch_bootstrap::id::NodeId;
use std::os::fd::AsFd;
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a rank that has lost another waits to be told why. The news go from the other's agent
/// over the launcher, and take milliseconds.
const EXPLANATION: Duration = Duration::from_secs(2);

/// What the agent has said.
#[derive(Debug)]
pub(crate) enum AgentEvent {
    Job(JobEvent),
    /// It is not there any more.
    Gone,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Agent {
    client: Mutex<Client>,
    /// By rank of the job.
    pub(crate) nodes: Vec<NodeId>,
    /// When a call failed for the first time.
    failed_at: OnceLock<Instant>,
}

impl Agent {
    pub(crate) fn new(client: Client, nodes: Vec<NodeId>) -> Agent {
        Agent { client: Mutex::new(client), nodes, failed_at: OnceLock::new() }
    }

    /// Asks for something, and waits for the answer.
    pub(crate) fn ask<R>(&self, asks: impl FnOnce(&mut Client) -> R) -> R {
        asks(&mut self.client.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What it has said unasked, if it has; nothing while another thread asks something.
    pub(crate) fn poll_event(&self) -> Option<AgentEvent> {
        match self.client.try_lock() {
            Ok(mut client) => news(&mut client, None),
            Err(TryLockError::Poisoned(client)) => news(&mut client.into_inner(), None),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The same after a call has failed, when there is time to wait for it.
    pub(crate) fn wait_for_event(&self) -> Option<AgentEvent> {
        let begin = *self.failed_at.get_or_init(Instant::now);
        let left = EXPLANATION.saturating_sub(begin.elapsed());
        match left.is_zero() {
            true => None,
            false => self.ask(|client| news(client, Some(left))),
        }
    }

    /// Whether it is worth while to ask for an [`Agent::wait_for_event`] once more.
    pub(crate) fn may_still_explain(&self) -> bool {
        self.failed_at.get().is_none_or(|begin| begin.elapsed() < EXPLANATION)
    }

    /// What becomes readable when it says something.
    pub(crate) fn with_fd<R>(&self, uses: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> R) -> R {
        self.ask(|client| uses(client.as_fd()))
    }
}

fn news(client: &mut Client, longest: Option<Duration>) -> Option<AgentEvent> {
    match client.job_event(longest) {
        Ok(news) => news.map(AgentEvent::Job),
        Err(_) => Some(AgentEvent::Gone),
    }
}
