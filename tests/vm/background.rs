//! A job that runs while its test does something to it.

use crate::support::{Field, SILENCE};
use rlaunch_lab::Stopwatch;
use std::time::Duration;

/// Time limit for every wait, on a computer that is emulated.
const BOUND: Duration = Duration::from_secs(240);

/// Job that was started on n1 and runs in the background. Its output is kept in files there.
pub(crate) struct Background<'a> {
    field: &'a Field,
}

impl<'a> Background<'a> {
    /// Starts rlaunch with `words`, which a shell on n1 splits.
    pub(crate) fn start(field: &'a Field, words: &str) -> Background<'a> {
        let line = format!(
            "rm -f /run/job.*; setsid sh -c '{} {SILENCE} {words} > /run/job.out 2> /run/job.err; \
             echo $? > /run/job.rc' < /dev/null > /dev/null 2>&1 &",
            field.rlaunch
        );
        field.on("n1", &line);
        Background { field }
    }

    /// Returns what rlaunch has printed on stderr so far.
    pub(crate) fn said(&self) -> String {
        self.field.tries("n1", "cat /run/job.err").out
    }

    /// Waits until rlaunch has printed `text` on stderr.
    pub(crate) fn says(&self, text: &str) {
        until(|| self.said().contains(text), || format!("{text:?} was not said:\n{}", self.said()));
    }

    /// Waits until rlaunch has ended, and returns its exit code.
    pub(crate) fn ends(&self) -> i32 {
        let code = || self.field.tries("n1", "cat /run/job.rc").out.trim().parse().ok();
        until(|| code().is_some(), || format!("it does not end:\n{}", self.said()));
        code().unwrap()
    }
}

/// Ends rlaunch if it is still running, also when the test fails.
impl Drop for Background<'_> {
    fn drop(&mut self) {
        self.field.tries("n1", "pkill -TERM -x rlaunch");
    }
}

/// Time between two checks. A check starts a shell in a guest, on the single emulated processor
/// that the job needs too. With checks in quick succession the job would miss heartbeats.
const PAUSE: Duration = Duration::from_millis(200);

/// Waits until `condition` holds. Panics with the message `otherwise` when [`BOUND`] has passed.
pub(crate) fn until(condition: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let began = Stopwatch::start();
    while !condition() {
        assert!(began.elapsed() < BOUND, "{}", otherwise());
        std::thread::sleep(PAUSE);
    }
}
