//! A job that runs while its test does something to it.

use crate::support::{Field, SILENCE};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::Stopwatch;
use std::cell::RefCell;
use std::fs::File;
use std::process::{Child, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit for every wait, on a computer that is emulated.
const BOUND: Duration = Duration::from_secs(240);

/// Job that runs in the background.
pub(crate) struct Background {
    rlaunch: RefCell<Child>,
    /// Directory with what it prints on stderr.
    output: TempDir,
}

impl Background {
    /// Starts rlaunch with `words`, which a shell splits.
    pub(crate) fn start(field: &Field, words: &str) -> Background {
        let output = tempfile::tempdir().unwrap();
        let mut command = field.command(&format!("exec rlaunch {SILENCE} {words}"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(output.path().join("stderr")).unwrap());
        Background { rlaunch: RefCell::new(command.spawn().unwrap()), output }
    }

    /// Returns what rlaunch has printed on stderr so far.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.output.path().join("stderr")).unwrap()
    }

    /// Waits until rlaunch has printed `text` on stderr.
    pub(crate) fn says(&self, text: &str) {
        until(
            || self.said().contains(text) || !self.runs(),
            || format!("{text:?} was not said:\n{}", self.said()),
        );
        assert!(self.said().contains(text), "{text:?} was not said:\n{}", self.said());
    }

    /// Waits until rlaunch has ended, and returns its exit code.
    pub(crate) fn ends(&self) -> i32 {
        until(|| self.code().is_some(), || format!("it does not end:\n{}", self.said()));
        self.code().unwrap()
    }

    /// Tells whether rlaunch is still running.
    pub(crate) fn runs(&self) -> bool {
        self.code().is_none()
    }

    /// Kills rlaunch, so that it cannot end anything.
    pub(crate) fn kill(&self) {
        self.rlaunch.borrow_mut().kill().unwrap();
    }

    /// Returns the exit code of a shell if rlaunch has ended.
    fn code(&self) -> Option<i32> {
        let status = self.rlaunch.borrow_mut().try_wait().unwrap();
        status.map(|status| status.code().unwrap_or(128 + 9))
    }
}

/// Ends rlaunch if it is still running, also when the test fails.
impl Drop for Background {
    fn drop(&mut self) {
        if self.runs() {
            let id = self.rlaunch.borrow().id().cast_signed();
            let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
            let began = Stopwatch::start();
            while self.runs() && began.elapsed() < BOUND {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Time between two checks. Most start a shell in a guest, on the single emulated processor that the
/// job needs too. With checks in quick succession the job would miss heartbeats.
const PAUSE: Duration = Duration::from_millis(200);

/// Waits until `condition` holds. Panics with the message `otherwise` when [`BOUND`] has passed.
pub(crate) fn until(condition: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let began = Stopwatch::start();
    while !condition() {
        assert!(began.elapsed() < BOUND, "{}", otherwise());
        std::thread::sleep(PAUSE);
    }
}
