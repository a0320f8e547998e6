//! A running rlaunch, and the outcome of one that has ended.

use crate::support::{Field, state};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rlaunch_lab::Stopwatch;
use rlaunch_lab::command::wait_until;
use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of bytes at the end of each stream that a failed assertion shows.
const SHOWN: usize = 1500;

/// An rlaunch process that was started.
pub(crate) struct Running<'a> {
    field: &'a Field,
    child: Child,
    started: Stopwatch,
    bound: Duration,
    stdout: Collected,
    stderr: Collected,
    /// Job directories that existed before the start.
    directories: Vec<PathBuf>,
}

impl<'a> Running<'a> {
    pub(crate) fn start(field: &'a Field, command: &mut Command, bound: Duration) -> Running<'a> {
        let directories = field.job_directories();
        let started = Stopwatch::start();
        let mut child = command.spawn().unwrap();
        let stdout = Collected::from(child.stdout.take().unwrap());
        let stderr = Collected::from(child.stderr.take().unwrap());
        Running { field, child, started, bound, stdout, stderr, directories }
    }

    /// Like [`start`](Running::start), for a command whose stdin is a pipe, which is returned.
    /// Callers must write and wait for answers in turn.
    pub(crate) fn with_keyboard(
        field: &'a Field,
        command: &mut Command,
        bound: Duration,
    ) -> (ChildStdin, Running<'a>) {
        let mut running = Running::start(field, command, bound);
        (running.child.stdin.take().unwrap(), running)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal, and waits until a process that is to stop has stopped: on a busy machine it goes on for a moment.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
        if signal == Signal::SIGSTOP {
            self.field.wait_for("rlaunch to stop", || state(self.pid()) == 'T');
        }
    }

    /// Returns the stdout so far.
    pub(crate) fn out(&self) -> String {
        self.stdout.text()
    }

    /// Returns the stderr so far.
    pub(crate) fn err(&self) -> String {
        self.stderr.text()
    }

    /// Waits until stdout has at least `count` complete lines.
    pub(crate) fn wait_for_lines(&mut self, count: usize) {
        self.wait_for(&format!("{count} lines"), |running| running.stdout.lines() >= count);
    }

    /// Waits until `text` occurs in stdout at least `count` times.
    pub(crate) fn wait_for_text(&mut self, text: &str, count: usize) {
        self.wait_for(text, |running| running.stdout.text().matches(text).count() >= count);
    }

    /// Waits until `text` occurs in stderr at least `count` times.
    pub(crate) fn wait_for_stderr(&mut self, text: &str, count: usize) {
        self.wait_for(text, |running| running.stderr.text().matches(text).count() >= count);
    }

    fn wait_for(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let bound = self.bound;
        let mut ended = false;
        let waited = wait_until(bound, what, || {
            // Checked before the output, which is collected a moment after the process has ended.
            ended = ended || self.child.try_wait().unwrap().is_some();
            let all_read = self.stdout.is_complete() && self.stderr.is_complete();
            Ok(condition(self) || (ended && all_read))
        });
        let so_far =
            || (end_of(self.stdout.text().as_bytes()), end_of(self.stderr.text().as_bytes()));
        assert!(waited.is_ok(), "no {what} within {bound:?}: {:?}", so_far());
        let shown = so_far();
        assert!(condition(self), "it ended without {what}: {shown:?}");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end. Asserts that neither ranks, agents nor job directories are left on any
    /// host, and that the sshds of the job end soon.
    pub(crate) fn finish(self) -> Outcome {
        self.finish_and(|_| {})
    }

    /// Waits for the end as [`finish`](Running::finish) does. Asserts that rlaunch ended less than `seconds` after `since`, on
    /// a machine of its own. One that is shared has twice the time.
    pub(crate) fn finish_in(self, seconds: u64, since: Stopwatch) -> Outcome {
        self.finish_and(|outcome| {
            let took = since.elapsed();
            assert!(took < Duration::from_secs(2 * seconds), "{took:?}: {outcome}");
        })
    }

    fn finish_and(mut self, check: impl FnOnce(&Outcome)) -> Outcome {
        let field = self.field;
        let before = std::mem::take(&mut self.directories);
        let outcome = self.finish_first();
        check(&outcome);
        let left = field.started();
        assert!(left.is_empty(), "left when rlaunch returned: {left:#?}\n{outcome}");
        let mut left = field.job_directories();
        left.retain(|directory| !before.contains(directory));
        assert!(left.is_empty(), "left when rlaunch returned: {left:#?}\n{outcome}");
        field.assert_idle();
        outcome
    }

    /// Waits for the end, for tests in which other jobs are running or hosts are cut off.
    pub(crate) fn finish_first(mut self) -> Outcome {
        let bound = self.bound.saturating_sub(self.started.elapsed());
        let ended = wait_until(bound, "rlaunch to return", || Ok(self.has_ended()));
        if ended.is_err() {
            let _ = self.child.kill();
        }
        let (took, took_awake) = (self.started.total_elapsed(), self.started.elapsed());
        let status = self.child.wait().unwrap();
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or_default());
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let outcome = Outcome { code, stdout, stderr, took, took_awake };
        assert!(ended.is_ok(), "did not return within {:?}\n{outcome}", self.bound);
        outcome
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Only a failed test drops a process that is still running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stream that a thread reads as data arrives.
struct Collected {
    read: Arc<Mutex<ReadSoFar>>,
    reader: JoinHandle<()>,
}

#[derive(Default)]
struct ReadSoFar {
    bytes: Vec<u8>,
    /// Counted while reading, as there may be millions.
    lines: usize,
}

impl Collected {
    fn from(mut stream: impl Read + Send + 'static) -> Collected {
        let read = Arc::new(Mutex::new(ReadSoFar::default()));
        let sink = read.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let mut sink = sink.lock().unwrap();
                sink.bytes.extend_from_slice(&buffer[..count]);
                sink.lines += buffer[..count].iter().filter(|&&byte| byte == b'\n').count();
            }
        });
        Collected { read, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.read.lock().unwrap().bytes).into_owned()
    }

    fn lines(&self) -> usize {
        self.read.lock().unwrap().lines
    }

    fn is_complete(&self) -> bool {
        self.reader.is_finished()
    }

    /// Returns everything that was read, once all writers have closed the stream.
    fn take(&self) -> Vec<u8> {
        let limit = Duration::from_secs(5);
        wait_until(limit, "the end of rlaunch's output", || Ok(self.is_complete())).unwrap();
        std::mem::take(&mut self.read.lock().unwrap().bytes)
    }
}

/// Tells whether this line of stderr names the hosts that rlaunch is waiting for. rlaunch prints
/// such a line after a second.
pub(crate) fn is_about_a_wait(line: &str) -> bool {
    let words = line.strip_prefix("rlaunch: waiting ").and_then(|rest| rest.split_once(" s for: "));
    words.is_some_and(|(seconds, _)| seconds.parse::<u64>().is_ok())
}

/// Returns the lines of stderr but those about waiting, which a machine with other work brings about.
pub(crate) fn said(err: &str) -> Vec<String> {
    err.lines().filter(|line| !is_about_a_wait(line)).map(str::to_owned).collect()
}

/// Outcome of an rlaunch that has ended.
pub(crate) struct Outcome {
    /// Exit code, or the negative number of the signal that killed rlaunch.
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) took: Duration,
    /// Part of `took` that [`Stopwatch::elapsed`] counts, which leaves out stalls of the machine.
    pub(crate) took_awake: Duration,
}

impl Outcome {
    pub(crate) fn out(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    pub(crate) fn err(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }

    /// Returns the lines of stdout in alphabetical order, since ranks print in any order.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.out().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }

    pub(crate) fn ended_with(&self, code: i32) -> &Outcome {
        assert_eq!(self.code, code, "{self}");
        self
    }

    pub(crate) fn succeeded(&self) -> &Outcome {
        self.ended_with(0)
    }

    /// Asserts that stderr contains each of `texts`.
    pub(crate) fn says(&self, texts: &[&str]) -> &Outcome {
        for text in texts {
            assert!(self.err().contains(text), "no `{text}` in\n{self}");
        }
        self
    }

    pub(crate) fn said(&self) -> Vec<String> {
        said(&self.err())
    }

    /// Asserts that [`said`](Outcome::said) returns no lines.
    pub(crate) fn says_nothing(&self) -> &Outcome {
        assert_eq!(self.said(), [""; 0], "{self}");
        self
    }

    /// Asserts that stderr contains none of `texts`.
    pub(crate) fn keeps_quiet_about(&self, texts: &[&str]) -> &Outcome {
        for text in texts {
            assert!(!self.err().contains(text), "`{text}` in\n{self}");
        }
        self
    }

    /// Asserts that rlaunch ended with `code` and one error before any rank wrote, and that stderr
    /// contains each of `texts`.
    pub(crate) fn refused(&self, code: i32, texts: &[&str]) -> &Outcome {
        self.ended_with(code);
        let is_error = |line: &&str| line.starts_with("error: ") || line.starts_with("error[");
        let errors = self.err().lines().filter(is_error).count();
        assert_eq!(errors, 1, "not one error:\n{self}");
        assert!(self.stdout.is_empty(), "a rank has run:\n{self}");
        self.says(texts)
    }

    /// Asserts that `text` is in a hint or in the lines to paste below it.
    pub(crate) fn hints(&self, text: &str) -> &Outcome {
        let err = self.err();
        let mut lines = err.lines().skip_while(|line| !line.starts_with("hint: "));
        assert!(lines.any(|line| line.contains(text)), "no hint with `{text}`:\n{self}");
        self
    }

    /// Asserts that it took less than `seconds`, on a machine of its own. One that is shared has twice the time.
    pub(crate) fn took_less_than(&self, seconds: u64) -> &Outcome {
        let limit = Duration::from_secs(2 * seconds);
        assert!(self.took_awake < limit, "not within {limit:?}: {self}");
        self
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (out, err) = (end_of(&self.stdout), end_of(&self.stderr));
        writeln!(f, "code {}, took {:?}", self.code, self.took)?;
        writeln!(f, "stdout, {} bytes: {out}", self.stdout.len())?;
        writeln!(f, "stderr, {} bytes: {err}", self.stderr.len())
    }
}

fn end_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SHOWN)..]).into_owned()
}
