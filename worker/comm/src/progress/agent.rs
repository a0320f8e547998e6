//! Connection of a rank to its rlaunch agent.
//!
//! When a peer dies, its connections may close, or may only carry no more data. The launcher knows
//! which rank failed first and how. Each agent reports this to its ranks as a [`JobEvent`], without
//! being asked.
//!
//! Time for which this process has waited for other ranks. Its agent reads it from a file
//! ([`WaitRecord`]), for `rlaunch monitor` and for the search for stragglers.

use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::rank::{JobEvent, WaitRecord};
use rlaunch_client::Client;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Maximum time for which a rank that has lost a peer waits for the launcher's explanation. The
/// explanation usually takes milliseconds: it travels from the lost rank's agent through the
/// launcher to this rank's agent.
const EXPLANATION_TIMEOUT: Duration = Duration::from_secs(2);

/// Event that the agent reports without being asked, or the end of the connection to the agent.
#[derive(Debug)]
pub(crate) enum AgentEvent {
    Job(JobEvent),
    /// The connection to the agent has ended, so the job is over.
    Gone,
}

/// Connection to the rlaunch agent, shared by all threads of the process.
#[derive(Debug)]
pub(crate) struct Agent {
    client: Mutex<Client>,
    /// Node of each rank of the job.
    pub(crate) nodes: Vec<NodeId>,
    /// Time of the first call of [`Agent::wait_for_event`]; unset before a communicator call has
    /// failed.
    failed_at: OnceLock<Instant>,
}

impl Agent {
    pub(crate) fn new(client: Client, nodes: Vec<NodeId>) -> Agent {
        Agent { client: Mutex::new(client), nodes, failed_at: OnceLock::new() }
    }

    /// Runs `f` on the client. Blocks while another thread uses the client.
    pub(crate) fn ask<R>(&self, f: impl FnOnce(&mut Client) -> R) -> R {
        f(&mut self.client.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns an event that has already arrived, if there is one. Also returns `None` while
    /// another thread uses the client; the client keeps events that arrive meanwhile for later
    /// calls.
    pub(crate) fn poll_event(&self) -> Option<AgentEvent> {
        match self.client.try_lock() {
            Ok(mut client) => next_event(&mut client, None),
            Err(TryLockError::Poisoned(client)) => next_event(&mut client.into_inner(), None),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for an event that may explain why a communicator call has failed. Returns `None` if no
    /// event arrives in time. All such waits end [`EXPLANATION_TIMEOUT`] after the first one began.
    pub(crate) fn wait_for_event(&self) -> Option<AgentEvent> {
        let begin = *self.failed_at.get_or_init(Instant::now);
        let left = EXPLANATION_TIMEOUT.saturating_sub(begin.elapsed());
        if left.is_zero() { None } else { self.ask(|client| next_event(client, Some(left))) }
    }

    /// Tells whether [`Agent::wait_for_event`] would still wait: less than [`EXPLANATION_TIMEOUT`]
    /// has passed since its first call.
    pub(crate) fn may_still_explain(&self) -> bool {
        self.failed_at.get().is_none_or(|begin| begin.elapsed() < EXPLANATION_TIMEOUT)
    }

    /// Runs `f` on the socket to the agent. The socket is readable when the agent has sent
    /// something.
    pub(crate) fn with_fd<R>(&self, f: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> R) -> R {
        self.ask(|client| f(client.as_fd()))
    }
}

fn next_event(client: &mut Client, longest: Option<Duration>) -> Option<AgentEvent> {
    match client.job_event(longest) {
        Ok(event) => event.map(AgentEvent::Job),
        Err(_) => Some(AgentEvent::Gone),
    }
}

/// Shortest time between two writes of the file. A write takes about a microsecond.
const INTERVAL: Duration = Duration::from_millis(100);

/// Time for which the threads of this process have waited, all together.
#[derive(Debug, Default)]
pub(crate) struct WaitedTime {
    micros: AtomicU64,
    /// Time of the last write of the file, in microseconds of the rank's clock.
    written_at: AtomicU64,
    file: OnceLock<File>,
}

impl WaitedTime {
    /// Begins to write the time to a file, which is created.
    pub(crate) fn publish(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all_at(&WaitRecord(Duration::ZERO).encode(), 0)?;
        let _ = self.file.set(file);
        Ok(())
    }

    /// Adds a wait from `begin` to `end`, times of the rank's clock.
    pub(crate) fn add(&self, begin: Duration, end: Duration) {
        let waited = micros(end.saturating_sub(begin));
        let sum = self.micros.fetch_add(waited, Ordering::Relaxed) + waited;
        let Some(file) = self.file.get() else { return };
        let (now, last) = (micros(end), self.written_at.load(Ordering::Relaxed));
        if now.saturating_sub(last) < micros(INTERVAL) {
            return;
        }
        self.written_at.store(now, Ordering::Relaxed);
        // Another thread may write an older sum after this one. The next write corrects it.
        let _ = file.write_all_at(&WaitRecord(Duration::from_micros(sum)).encode(), 0);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_sum_of_all_waits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("waited-0");
        let at = Duration::from_millis;
        let waited = WaitedTime::default();
        waited.add(at(0), at(50));
        waited.publish(&path).unwrap();
        let published = || WaitRecord::decode(&std::fs::read(&path).unwrap()).unwrap().0;
        assert_eq!(published(), Duration::ZERO);
        waited.add(at(1000), at(1200));
        assert_eq!(published(), at(250));
        // Too soon after the last write.
        waited.add(at(1200), at(1250));
        assert_eq!(published(), at(250));
        waited.add(at(2000), at(2001));
        assert_eq!(published(), at(301));
    }
}
