//! Lines that run by `sh -c`.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit for a line: it may install a package.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two looks whether a line has ended.
const INTERVAL: Duration = Duration::from_millis(5);
/// Time in which the rest of an output is read. A service that the line has started may hold it open.
const REST: Duration = Duration::from_millis(200);
/// Maximum size of an output, in bytes.
const MAX_OUTPUT: usize = 1 << 20;
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a line, and returns what it prints, without the ends of the last line. The error is what it says on stderr. `saved`
/// is its variable `SAVED`.
pub(super) fn run(line: &str, saved: Option<&str>, limit: Duration) -> Result<String, String> {
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("PATH", SYSTEM_PATH).env("LC_ALL", "C");
    command.env("DEBIAN_FRONTEND", "noninteractive").env("SAVED", saved.unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let cannot = |error: std::io::Error| format!("cannot run sh: {error}");
    let mut child = rlaunch_sys::spawn(command.current_dir("/")).map_err(cannot)?;
    let output = child.stdout.take().map(Output::read);
    let errors = child.stderr.take().map(Output::read);
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(cannot)? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                if let Ok(group) = i32::try_from(child.id()) {
                    // It may have ended just now.
                    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
                }
                child.wait().map_err(cannot)?;
                return Err(format!("it did not end within {} s", limit.as_secs()));
            }
            None => std::thread::sleep(INTERVAL),
        }
    };
    let text = |output: Option<Output>| output.map(Output::text).unwrap_or_default();
    let (output, errors) = (text(output), text(errors));
    if status.success() {
        return Ok(output.trim_end_matches('\n').to_owned());
    }
    // The reason is at the end of what is said.
    let said = if errors.trim().is_empty() { &output } else { &errors };
    let mut last: Vec<&str> = said.trim().lines().rev().take(3).collect();
    last.reverse();
    Err(if last.is_empty() { status.to_string() } else { last.join("; ") })
}

/// Output that is read in a thread.
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Output {
    fn read(mut pipe: impl Read + Send + 'static) -> Output {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let read = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                let mut bytes = read.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_OUTPUT.saturating_sub(bytes.len());
                bytes.extend_from_slice(buffer.get(..length.min(room)).unwrap_or_default());
            }
        });
        Output { bytes, reader }
    }

    fn text(self) -> String {
        let deadline = Instant::now() + REST;
        while !self.reader.is_finished() && Instant::now() < deadline {
            std::thread::sleep(INTERVAL);
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_prints_or_says_why_it_failed() {
        let run = |line| run(line, Some("7"), Duration::from_secs(60));
        assert_eq!(run("echo one; echo $SAVED"), Ok("one\n7".to_owned()));
        assert_eq!(run("echo printed; echo a >&2; echo b >&2; exit 3"), Err("a; b".to_owned()));
        assert_eq!(run("exit 3"), Err("exit status: 3".to_owned()));
    }

    #[test]
    fn a_service_that_a_line_starts_does_not_hold_it() {
        let started = run("sleep 60 & echo $!", None, Duration::from_secs(30)).unwrap();
        let service = Pid::from_raw(started.parse().unwrap());
        nix::sys::signal::kill(service, Signal::SIGKILL).unwrap();
    }

    #[test]
    fn a_line_without_end_is_ended() {
        let late = run("sleep 60", None, Duration::from_millis(100));
        assert_eq!(late, Err("it did not end within 0 s".to_owned()));
    }
}
