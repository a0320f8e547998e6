//! Time limits for async code. They restart if this process was suspended while it waited.

use rlaunch_bootstrap::deadline;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Time limit that several steps of an operation share. The limit restarts if this process was suspended
/// (stopped, or the machine asleep) while it waited, because the answer may have arrived in that time without
/// having been read.
#[derive(Debug)]
pub struct Deadline(deadline::Deadline);

/// Error of a wait that took too long, which names what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {awaited} within {} s", limit.as_secs())]
pub struct Late {
    /// Thing that did not come, such as `hello from the agent`.
    pub awaited: &'static str,
    pub limit: Duration,
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl Deadline {
    /// Starts a time limit that expires after `limit`.
    pub fn after(limit: Duration) -> Deadline {
        Deadline(deadline::Deadline::after(limit, now()))
    }

    /// Makes the limit check for suspension every `interval`. The limit then restarts even after a suspension
    /// that ends before the limit expires.
    #[must_use]
    pub fn checked_every(self, interval: Duration) -> Deadline {
        Deadline(self.0.checked_every(interval))
    }

    /// Returns the full length of the time limit.
    pub fn limit(&self) -> Duration {
        self.0.limit()
    }

    /// Returns the time until the limit expires; zero once it has expired.
    pub fn left(&self) -> Duration {
        self.0.due().saturating_duration_since(now())
    }

    /// Tells whether a suspension of this process has restarted the limit.
    pub fn was_restarted(&self) -> bool {
        self.0.restarts() > 0
    }

    /// Extends the limit by the time since `since`, which the caller spent waiting for a permit or for the
    /// user.
    pub fn exclude(&mut self, since: Instant) {
        self.0.exclude(since.into_std(), now());
    }

    /// Starts the full time limit again.
    pub fn restart(&mut self) {
        self.0.restart(now());
    }

    /// Returns once the limit has expired. May be cancelled and called again.
    pub async fn expired(&mut self) {
        // `pending` never completes, so `run` returns only when the limit expires.
        let _: Option<()> = self.run(std::future::pending()).await;
    }

    /// Runs `future`, which waits for `awaited`. Returns its output, or an error that names `awaited` if the
    /// limit expires first.
    pub async fn wait<F: Future>(
        &mut self,
        awaited: &'static str,
        future: F,
    ) -> Result<F::Output, Late> {
        self.run(future).await.ok_or(Late { awaited, limit: self.limit() })
    }

    /// Runs `future`; returns its output, or `None` if the limit expires first.
    pub async fn run<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        loop {
            let output = timeout_at(self.0.next_check().into(), &mut future).await;
            // Checked even if `future` has completed: if this process was just suspended, the check
            // restarts the limit, so that the next step does not time out at once.
            let has_expired = self.0.has_expired(now());
            match output {
                Ok(output) => return Some(output),
                Err(_) if has_expired => return None,
                Err(_) => {}
            }
        }
    }
}

/// Runs `future` with a new time limit; returns its output, or `None` if the limit expires first.
pub async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    Deadline::after(limit).run(future).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
    use std::future::pending;

    const LIMIT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn what_does_not_come_is_given_up() {
        assert_eq!(within(LIMIT, pending::<()>()).await, None);
        assert_eq!(within(LIMIT, async { 7 }).await, Some(7));
    }

    #[tokio::test]
    async fn a_process_that_stood_still_waits_once_more() {
        let still = LIMIT + 2 * SUSPENSION_THRESHOLD;
        let started = Instant::now();
        let looks_late = async {
            std::thread::sleep(still);
            pending::<()>().await;
        };
        assert_eq!(within(LIMIT, looks_late).await, None);
        assert!(started.elapsed() >= still + LIMIT, "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn steps_share_a_limit_until_the_process_stands_still() {
        let mut deadline = Deadline::after(LIMIT);
        assert_eq!(deadline.run(pending::<()>()).await, None);
        assert_eq!(deadline.left(), Duration::ZERO);

        std::thread::sleep(2 * SUSPENSION_THRESHOLD);
        let started = Instant::now();
        assert_eq!(deadline.run(pending::<()>()).await, None);
        assert!(started.elapsed() >= LIMIT, "{:?}", started.elapsed());
    }

    #[tokio::test]
    async fn what_is_late_is_named() {
        let late = Deadline::after(LIMIT).wait("answer", pending::<()>()).await.unwrap_err();
        assert_eq!((late.awaited, late.limit), ("answer", LIMIT));
        let late = Late { limit: Duration::from_secs(8), ..late };
        assert_eq!(late.to_string(), "no answer within 8 s");
    }

    #[test]
    fn time_of_others_does_not_count() {
        let (limit, others) = (Duration::from_secs(60), Duration::from_secs(30));
        let mut deadline = Deadline::after(limit);
        deadline.exclude(Instant::now() - others);
        assert!(deadline.left() > limit, "{:?}", deadline.left());
    }
}
