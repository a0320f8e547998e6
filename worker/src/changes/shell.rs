//! Lines that run by `sh -c`.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::mem::take;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit for a line: it may install a package.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
/// Time between two looks whether a line has ended.
const INTERVAL: Duration = Duration::from_millis(5);
/// Time in which the rest of a message is read. A service that the line has started may hold it open.
const REST: Duration = Duration::from_millis(200);
/// Time in which the rest of an output is read that has to be whole.
const WHOLE: Duration = Duration::from_secs(10);
/// Maximum size of an output, in bytes.
const MAX_OUTPUT: usize = 1 << 20;
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a line. The error is what it says on stderr. `saved` is its variable `SAVED`.
pub(super) fn run(line: &str, saved: Option<&str>, limit: Duration) -> Result<(), String> {
    output_of(line, saved, None, limit).map(drop)
}

/// Runs a line, and returns all that it prints, without the ends of the last line.
pub(super) fn ask(line: &str, limit: Duration) -> Result<String, String> {
    let printed = output_of(line, None, None, limit)?.whole()?;
    Ok(printed.trim_end_matches('\n').to_owned())
}

/// Runs a line that gets a text at stdin, and returns all that it prints.
pub(super) fn filter(line: &str, input: &str, limit: Duration) -> Result<String, String> {
    output_of(line, None, Some(input), limit)?.whole()
}

fn output_of(
    line: &str,
    saved: Option<&str>,
    input: Option<&str>,
    limit: Duration,
) -> Result<Output, String> {
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("PATH", SYSTEM_PATH).env("LC_ALL", "C");
    command.env("DEBIAN_FRONTEND", "noninteractive").env("SAVED", saved.unwrap_or_default());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // The agent waits for its own signals in a thread, and blocks them in all.
    rlaunch_sys::unblock_signals(&mut command);
    let cannot = |error: std::io::Error| format!("cannot run sh: {error}");
    let mut child = rlaunch_sys::spawn(command.current_dir("/")).map_err(cannot)?;
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("there is no pipe to sh".to_owned());
    };
    let (output, errors) = (Output::read(output), Output::read(errors));
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input.map(str::to_owned)) {
        // A line may leave the rest unread.
        std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    }
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
    if status.success() {
        return Ok(output);
    }
    let (output, errors) = (output.text(), errors.text());
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
                // One byte too many tells that it is too long.
                let room = (MAX_OUTPUT + 1).saturating_sub(bytes.len());
                bytes.extend_from_slice(buffer.get(..length.min(room)).unwrap_or_default());
            }
        });
        Output { bytes, reader }
    }

    /// Returns the beginning, for a message.
    fn text(self) -> String {
        self.wait(REST);
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the whole output.
    fn whole(self) -> Result<String, String> {
        self.wait(WHOLE);
        if !self.reader.is_finished() {
            let seconds = WHOLE.as_secs();
            return Err(format!("its output was still open {seconds} s after its end"));
        }
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.len() > MAX_OUTPUT {
            return Err(format!("it prints more than {} MiB", MAX_OUTPUT >> 20));
        }
        String::from_utf8(take(&mut bytes)).map_err(|_| "what it prints is no text".to_owned())
    }

    fn wait(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !self.reader.is_finished() && Instant::now() < deadline {
            std::thread::sleep(INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_prints_or_says_why_it_failed() {
        let limit = Duration::from_secs(60);
        assert_eq!(ask("echo one; echo two; echo", limit), Ok("one\ntwo".to_owned()));
        assert_eq!(run("[ $SAVED = 7 ]", Some("7"), limit), Ok(()));
        let run = |line| run(line, None, limit);
        assert_eq!(run("echo printed; echo a >&2; echo b >&2; exit 3"), Err("a; b".to_owned()));
        assert_eq!(run("exit 3"), Err("exit status: 3".to_owned()));
    }

    #[test]
    fn an_output_is_whole_or_an_error() {
        let limit = Duration::from_secs(60);
        let long = "a\n".repeat(MAX_OUTPUT / 2);
        assert_eq!(filter("cat", &long, limit).as_ref(), Ok(&long));
        assert_eq!(filter("exec cat -; true", "", limit), Ok(String::new()));
        let cut = filter("cat; echo", &long, limit);
        assert_eq!(cut, Err("it prints more than 1 MiB".to_owned()));
        assert_eq!(run("head -c 2000000 /dev/zero", None, limit), Ok(()), "nobody reads it");
        assert_eq!(filter(":", &long, limit), Ok(String::new()), "a line may read nothing");
        let strange = ask("printf '\\377'", limit);
        assert_eq!(strange, Err("what it prints is no text".to_owned()));
    }

    #[test]
    fn a_service_that_a_line_starts_does_not_hold_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let line = format!("sleep 60 & echo $! > {}", file.display());
        run(&line, None, Duration::from_secs(30)).unwrap();
        let service = std::fs::read_to_string(file).unwrap();
        let service = Pid::from_raw(service.trim().parse().unwrap());
        nix::sys::signal::kill(service, Signal::SIGKILL).unwrap();
    }

    /// The agent blocks signals, and a package manager that was told to end would not.
    #[test]
    fn a_line_starts_without_blocked_signals() {
        let term: nix::sys::signal::SigSet = [Signal::SIGTERM].into_iter().collect();
        term.thread_block().unwrap();
        let blocked = ask("grep SigBlk /proc/self/status", Duration::from_secs(60));
        assert_eq!(blocked, Ok("SigBlk:\t0000000000000000".to_owned()));
    }

    #[test]
    fn a_line_without_end_is_ended() {
        let late = run("sleep 60", None, Duration::from_millis(100));
        assert_eq!(late, Err("it did not end within 0 s".to_owned()));
    }
}
