//! Time limits for what this process waits for, while it runs.

use rlaunch_bootstrap::wire::OVERSLEPT;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// What `future` gives within `limit`. The limit begins anew if this process stood still meanwhile:
/// what is waited for may have come, and nobody has looked yet.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    loop {
        let due = Instant::now() + limit;
        match timeout_at(due, &mut future).await {
            Ok(output) => return Some(output),
            Err(_) if Instant::now() > due + OVERSLEPT => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const LIMIT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn what_does_not_come_is_given_up() {
        assert_eq!(within(LIMIT, pending::<()>()).await, None);
        assert_eq!(within(LIMIT, async { 7 }).await, Some(7));
    }

    #[tokio::test]
    async fn a_process_that_stood_still_waits_once_more() {
        let still = LIMIT + 2 * OVERSLEPT;
        let started = Instant::now();
        let looks_late = async {
            std::thread::sleep(still);
            pending::<()>().await;
        };
        assert_eq!(within(LIMIT, looks_late).await, None);
        assert!(started.elapsed() >= still + LIMIT, "{:?}", started.elapsed());
    }
}
