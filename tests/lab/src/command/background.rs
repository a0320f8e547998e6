//! Programs that run in the background: their output is collected, and they are killed when their
//! handle is dropped.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::LabError;
use crate::command::wait_until;

/// Time that output may take to arrive after a program has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// Handle of a started program.
#[derive(Debug)]
pub(crate) struct Background {
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

impl Background {
    /// Starts a program with no input.
    pub(crate) fn start(command: Command) -> Result<Background, LabError> {
        Background::start_with(command, [Stdio::piped(), Stdio::piped()])
    }

    /// Starts a program with no input, and with these as stdout and stderr. What is no pipe of
    /// [`Stdio::piped`] is not collected.
    pub(crate) fn start_with(
        mut command: Command,
        [stdout, stderr]: [Stdio; 2],
    ) -> Result<Background, LabError> {
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let operation = format!("start {}", command.get_program().display());
        let mut child = command.spawn().map_err(LabError::io(operation))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        Ok(Background { child, stdout: Collected::from(stdout), stderr: Collected::from(stderr) })
    }

    /// Returns the exit status if the program has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, LabError> {
        self.child.try_wait().map_err(LabError::io("look after a child process"))
    }

    /// Waits until the program ends, and returns its exit status, or nothing if it still runs after
    /// `limit`. After it has ended, all of its output has been collected, unless another process
    /// holds its streams open.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>, LabError> {
        // A program that still runs is not an error here.
        let _ = wait_until(limit, "a program", || Ok(self.ended()?.is_some()));
        let Some(status) = self.ended()? else { return Ok(None) };
        // A child that it left behind may hold its streams open for ever.
        let complete = || Ok(self.stdout.is_complete() && self.stderr.is_complete());
        let _ = wait_until(LAST_OUTPUT, "a program's last output", complete);
        Ok(Some(status))
    }

    /// Returns the program's stdout so far.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.read()).into_owned()
    }

    /// Returns the program's stderr so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.read()).into_owned()
    }

    pub(crate) fn kill(&self) -> Result<(), LabError> {
        self.signal(Signal::SIGKILL)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), LabError> {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).map_err(LabError::errno("signal a launcher"))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Both fail if the program has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Output of a stream, read by a thread until the stream is closed.
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
        let status = child.wait(LAST_OUTPUT).unwrap().unwrap();
        assert_eq!(
            (status.code(), child.stdout(), child.stderr()),
            (Some(7), "out\n".into(), "err\n".into())
        );
    }
}
