//! Threads for what may take long, such as a name that no server answers for.

use crate::node;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Work in a thread of its own. A thread that is not done in time is left alone; it ends with the
/// process.
#[derive(Debug)]
pub(crate) struct Background<T> {
    result: Arc<(Mutex<Option<T>>, Condvar)>,
    since: Instant,
}

impl<T: Send + 'static> Background<T> {
    /// Starts the work.
    pub(crate) fn start(work: impl FnOnce() -> T + Send + 'static) -> Background<T> {
        let result = Arc::new((Mutex::new(None), Condvar::new()));
        let shared = result.clone();
        let work = move || {
            let found = work();
            *shared.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            shared.1.notify_one();
        };
        node::in_thread(work);
        Background { result, since: Instant::now() }
    }

    /// Waits for the result until `limit` after the start. Returns `None` if it takes longer.
    pub(crate) fn wait(self, limit: Duration) -> Option<T> {
        let (result, is_done) = &*self.result;
        let left = limit.saturating_sub(self.since.elapsed());
        let result = result.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = is_done.wait_timeout_while(result, left, |result| result.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_too_long_is_left_alone() {
        assert_eq!(Background::start(|| 7).wait(Duration::from_secs(60)), Some(7));
        let (keep, held) = std::sync::mpsc::channel::<()>();
        let slow = Background::start(move || held.recv().is_ok());
        assert_eq!(slow.wait(Duration::from_millis(10)), None);
        drop(keep);
    }
}
