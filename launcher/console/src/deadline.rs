//! Time limits for what this process waits for, while it runs.

use rlaunch_bootstrap::deadline;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// A limit for several steps together. It begins anew if this process stood still meanwhile: what is
/// waited for may have come without being read yet.
#[derive(Debug)]
pub struct Deadline(deadline::Deadline);

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl Deadline {
    /// Starts a limit that is due in `limit`.
    pub fn after(limit: Duration) -> Deadline {
        Deadline(deadline::Deadline::after(limit, now()))
    }

    /// The same, looked at in between as well: a standstill that ends before it is due is noticed.
    pub fn often(self) -> Deadline {
        Deadline(self.0.checked_every(deadline::CHECK_INTERVAL))
    }

    /// The time for all steps.
    pub fn limit(&self) -> Duration {
        self.0.limit()
    }

    /// What is left of it.
    pub fn left(&self) -> Duration {
        self.0.due().saturating_duration_since(now())
    }

    /// Whether it has begun anew because this process stood still.
    pub fn has_begun_anew(&self) -> bool {
        self.0.restarts() > 0
    }

    /// Does not count the time since `since`, in which somebody else was waited for.
    pub fn exclude(&mut self, since: Instant) {
        self.0.exclude(since.into_std(), now());
    }

    /// Begins anew.
    pub fn restart(&mut self) {
        self.0.restart(now());
    }

    /// Returns when it is over. Can be asked again.
    pub async fn over(&mut self) {
        // Never ends by itself.
        let _: Option<()> = self.keep(std::future::pending()).await;
    }

    /// What `future` gives in time.
    pub async fn keep<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        loop {
            let kept = timeout_at(self.0.next_check().into(), &mut future).await;
            // An output that comes as a standstill ends leaves the next step its time as well.
            let is_over = self.0.has_expired(now());
            match kept {
                Ok(output) => return Some(output),
                Err(_) if is_over => return None,
                Err(_) => {}
            }
        }
    }
}

/// What `future` gives within `limit`, which is that of a [`Deadline`].
pub async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    Deadline::after(limit).keep(future).await
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
        assert_eq!(deadline.keep(pending::<()>()).await, None);
        assert_eq!(deadline.left(), Duration::ZERO);

        std::thread::sleep(2 * SUSPENSION_THRESHOLD);
        let started = Instant::now();
        assert_eq!(deadline.keep(pending::<()>()).await, None);
        assert!(started.elapsed() >= LIMIT, "{:?}", started.elapsed());
    }

    #[test]
    fn time_of_others_does_not_count() {
        let (limit, others) = (Duration::from_secs(60), Duration::from_secs(30));
        let mut deadline = Deadline::after(limit);
        deadline.exclude(Instant::now() - others);
        assert!(deadline.left() > limit, "{:?}", deadline.left());
    }
}
