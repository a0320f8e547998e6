//! A job that runs while its test does something to it.

use crate::support::{Field, SILENCE};
use rlaunch_lab::Stopwatch;
use std::time::Duration;

/// What takes longer than this on an emulated computer hangs.
const BOUND: Duration = Duration::from_secs(60);

/// A job on n1, its words kept in files there.
pub(crate) struct Background<'a> {
    field: &'a Field,
}

impl<'a> Background<'a> {
    /// Starts rlaunch with these words, which a shell on n1 reads.
    pub(crate) fn start(field: &'a Field, words: &str) -> Background<'a> {
        let line = format!(
            "rm -f /run/job.*; setsid sh -c '{} {SILENCE} {words} > /run/job.out 2> /run/job.err; \
             echo $? > /run/job.rc' < /dev/null > /dev/null 2>&1 &",
            field.rlaunch
        );
        field.on("n1", &line);
        Background { field }
    }

    /// What it has said on stderr.
    pub(crate) fn said(&self) -> String {
        self.field.tries("n1", "cat /run/job.err").out
    }

    /// Waits until it has said this.
    pub(crate) fn says(&self, text: &str) {
        until(|| self.said().contains(text), || format!("{text:?} was not said:\n{}", self.said()));
    }

    /// Waits for its end, and returns its code.
    pub(crate) fn ends(&self) -> i32 {
        let code = || self.field.tries("n1", "cat /run/job.rc").out.trim().parse().ok();
        until(|| code().is_some(), || format!("it does not end:\n{}", self.said()));
        code().unwrap()
    }
}

/// Ends what is left of it, however the test ends.
impl Drop for Background<'_> {
    fn drop(&mut self) {
        self.field.tries("n1", "pkill -TERM -x rlaunch");
    }
}

/// Between two looks. A look is a shell in a guest, and takes what the job there would use of its
/// one emulated processor: a job that is looked at all the time loses its beats.
const PAUSE: Duration = Duration::from_millis(200);

/// Waits for a condition.
pub(crate) fn until(condition: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let began = Stopwatch::start();
    while !condition() {
        assert!(began.elapsed() < BOUND, "{}", otherwise());
        std::thread::sleep(PAUSE);
    }
}
