//! Running other programs, and waiting for conditions.

pub(crate) mod background;

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{LabError, Stopwatch};

/// Runs a program without input and returns its output. A failure is an error that names
/// `operation` and has the last lines of stderr.
pub fn run(operation: &str, command: &mut Command) -> Result<Output, LabError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(LabError::io(format!("{operation}: start {}", program(command))))?;
    checked(operation, command, output)
}

/// Runs a program as [`run`] does, and returns what it printed on stdout.
pub(crate) fn printed(operation: &str, command: &mut Command) -> Result<String, LabError> {
    Ok(String::from_utf8_lossy(&run(operation, command)?.stdout).into_owned())
}

/// Runs a program as [`run`] does, with `input` on its stdin.
pub fn feed(operation: &str, command: &mut Command, input: &str) -> Result<Output, LabError> {
    let start = || LabError::io(format!("{operation}: start {}", program(command)));
    let start_error = start();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start_error)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that stops reading early reports the reason by its status and stderr.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(LabError::io(operation))?;
    checked(operation, command, output)
}

/// Runs a program that inherits stdin, stdout and stderr.
pub fn show(operation: &str, command: &mut Command) -> Result<(), LabError> {
    let status = command
        .status()
        .map_err(LabError::io(format!("{operation}: start {}", program(command))))?;
    checked(operation, command, Output { status, stdout: Vec::new(), stderr: Vec::new() }).map(drop)
}

/// Polls `condition` until it is true: every 5 ms at first. Fails after `limit` with an error that names `what`.
pub fn wait_until(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<bool, LabError>,
) -> Result<(), LabError> {
    let start = Stopwatch::start();
    loop {
        let began = Instant::now();
        if condition()? {
            return Ok(());
        }
        if start.elapsed() >= limit {
            return Err(LabError::Deadline {
                what: what.into(),
                seconds: limit.as_secs(),
                detail: String::new(),
            });
        }
        thread::sleep(pause(start.elapsed(), began.elapsed()));
    }
}

/// Returns the time from one look to the next, after looks for `waited` of which the last took `look`. Many looks, or long
/// ones, would keep a processor busy that the awaited processes need.
fn pause(waited: Duration, look: Duration) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(5);
    const LONGEST: Duration = Duration::from_millis(50);
    (waited / 50).clamp(SHORTEST, LONGEST).max(look.min(10 * LONGEST))
}

/// Calls `act` with each item in a thread of its own; returns the results in order, or the first error.
pub(crate) fn at_once<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    act: impl Fn(I) -> Result<T, LabError> + Sync,
) -> Result<Vec<T>, LabError> {
    let act = &act;
    let lost = |_| Err(LabError::Unexpected("a thread panicked".into()));
    thread::scope(|scope| {
        let started = items.into_iter().map(|item| scope.spawn(move || act(item)));
        let threads: Vec<_> = started.collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    })
}

/// Calls `act`, and meanwhile shows a spinner with a text and the elapsed time if stderr is a terminal.
pub fn with_spinner<T>(text: impl Into<String>, act: impl FnOnce() -> T) -> T {
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    let bar = ProgressBar::new_spinner().with_style(style).with_message(text.into());
    bar.enable_steady_tick(Duration::from_millis(120));
    let result = act();
    bar.finish_and_clear();
    result
}

/// Formats a command as it is typed in a shell.
pub fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for the shell, if it needs quotes.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn program(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Returns the output of a program, unless it failed.
pub(crate) fn checked(
    operation: &str,
    command: &Command,
    output: Output,
) -> Result<Output, LabError> {
    if output.status.success() {
        return Ok(output);
    }
    Err(LabError::Tool {
        operation: operation.into(),
        program: program(command),
        status: output.status.to_string(),
        stderr: last_lines(&String::from_utf8_lossy(&output.stderr), 10),
    })
}

/// Returns the last `count` lines of `text`.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_typed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'hi'", "", "a=b"]);
        assert_eq!(display(&command), r"sh -c 'echo '\''hi'\''' '' a=b");
    }

    #[test]
    fn looks_become_rarer() {
        let at = |waited, look| {
            pause(Duration::from_millis(waited), Duration::from_millis(look)).as_millis()
        };
        assert_eq!((at(0, 0), at(1000, 1), at(10_000, 1)), (5, 20, 50));
        assert_eq!((at(0, 80), at(10_000, 80), at(0, 10_000)), (80, 80, 500));
    }
}
