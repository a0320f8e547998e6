//! Threads for what may take long, such as a name that no server answers for.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Work in a thread of its own. A thread that is not done in time is left alone; it ends with the
/// process.
#[derive(Debug)]
pub(crate) struct Background<T> {
    result: Receiver<T>,
    since: Instant,
}

impl<T: Send + 'static> Background<T> {
    /// Starts the work.
    pub(crate) fn start(work: impl FnOnce() -> T + Send + 'static) -> Background<T> {
        let (sender, result) = channel();
        // Without a thread the result is missing, as if it came too late.
        let _ = thread::Builder::new().spawn(move || sender.send(work()));
        Background { result, since: Instant::now() }
    }

    /// Waits for the result until `limit` after the start. Returns `None` if it takes longer.
    pub(crate) fn wait(self, limit: Duration) -> Option<T> {
        self.result.recv_timeout(limit.saturating_sub(self.since.elapsed())).ok()
    }
}
