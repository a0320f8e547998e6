//! A program that runs beside us: what it prints is collected, and it does not outlive its handle.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::LabError;
use crate::command::wait_until;

/// How long the last words of an ended program may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A started program.
#[derive(Debug)]
pub(crate) struct Background {
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

impl Background {
    /// Starts `command` without input.
    pub(crate) fn start(mut command: Command) -> Result<Background, LabError> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let operation = format!("start {}", command.get_program().display());
        let mut child = command.spawn().map_err(LabError::io(operation))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        Ok(Background { child, stdout: Collected::from(stdout), stderr: Collected::from(stderr) })
    }

    /// How it ended, once it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child.try_wait().map_err(LabError::io("look after a child process"))
    }

    /// How it ended, if it does so within `limit`; then all it printed is there.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, LabError> {
        // That it runs on is no error here.
        let _ = wait_until(limit, "a program", || Ok(self.ended()?.is_some()));
        let Some(status) = self.ended()? else { return Ok(None) };
        // Whoever it left behind may hold its streams open for ever.
        let complete = || Ok(self.stdout.is_complete() && self.stderr.is_complete());
        let _ = wait_until(LAST_WORDS, "a program's last words", complete);
        Ok(Some(status))
    }

    /// What it has printed so far.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.read()).into_owned()
    }

    /// The same of its stderr.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.read()).into_owned()
    }

    /// Sends it KILL.
    pub(crate) fn kill(&self) -> Result<(), LabError> {
        self.signal(Signal::SIGKILL)
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), LabError> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).map_err(LabError::errno("signal a launcher"))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Both fail for one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A stream, read as it comes.
#[derive(Debug)]
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    fn from(stream: Option<impl Read + Send + 'static>) -> Collected {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let sink = bytes.clone();
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            let Some(mut stream) = stream else { return };
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
                sink.extend_from_slice(&buffer[..count]);
            }
        });
        Collected { bytes, reader }
    }

    fn read(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_complete(&self) -> bool {
        self.reader.is_finished()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Background {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Background::start(command).unwrap()
    }

    #[test]
    fn all_it_printed_is_there_at_its_end() {
        let mut child = sh("echo out; echo err >&2; exit 7");
        let status = child.wait(LAST_WORDS).unwrap().unwrap();
        assert_eq!(
            (status.code(), child.stdout(), child.stderr()),
            (Some(7), "out\n".into(), "err\n".into())
        );
    }

    #[test]
    fn one_that_runs_on_is_not_waited_for() {
        let mut child = sh("exec sleep 60");
        assert_eq!(child.wait(Duration::from_millis(20)).unwrap(), None);
        child.kill().unwrap();
        assert!(child.wait(LAST_WORDS).unwrap().is_some());
    }
}
