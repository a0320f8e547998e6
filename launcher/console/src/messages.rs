//! Messages of rlaunch on stderr: errors with details and hints, warnings, progress, log lines. Since messages may
//! quote other programs, [`printable`] makes each of them safe for a terminal.

use crate::footer;
use crate::line_writer::LineWriter;
use crate::signals::EndSignals;
use crate::{limits, terminal};
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, raise};
pub use rlaunch_bootstrap::error_chain;
use rlaunch_text::message::{Failed, Message};
use rlaunch_text::{printable, style};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tracing::Level;
use tracing_subscriber::EnvFilter;

const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Style of the prefix `warning:`.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Style of an end that the user has asked for.
const ASKED: Style = AnsiColor::Yellow.on_default();
/// Style of lines that may be skipped.
const DIM: Style = Style::new().dimmed();
/// Style of the prefix `hint:`.
pub const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// Prints an error, or the end that the user has asked for, with details and hints, unless its message is empty. Adds a
/// hint if the limit of open files, or of the size of files, caused the error.
pub fn error(failed: &Failed) {
    if failed.message.is_empty() || failed.is_asked && is_quiet() {
        return;
    }
    let mut err = Vec::new();
    let message = printable::message(&printable::without_codes(&failed.message));
    let _ = if failed.is_asked {
        writeln!(err, "{ASKED}{message}{ASKED:#}")
    } else {
        writeln!(err, "{ERROR}{}:{ERROR:#} {message}", label("error", failed.finding))
    };
    for detail in &failed.details {
        // Indented ones quote others, such as a rank.
        let is_quote = detail.starts_with(' ');
        let plain = if is_quote { detail.clone() } else { printable::without_codes(detail) };
        let _ = writeln!(err, "  {}", printable::message(&plain));
    }
    for aside in &failed.asides {
        let _ = writeln!(err, "  {DIM}{}{DIM:#}", printable::message(aside));
    }
    let of_limits =
        [limits::open_files_hint(&failed.message), limits::file_size_hint(&failed.message)];
    let of_limits = of_limits.iter().flatten().filter(|hint| !failed.hints.contains(hint));
    for hint in failed.hints.iter().chain(of_limits) {
        let _ = writeln!(err, "{HINT}hint:{HINT:#} {}", printable::text(hint));
    }
    if let Some(id) = failed.finding {
        let _ = writeln!(err, "{HINT}hint:{HINT:#} `rlaunch help {id}` explains this");
    }
    keep(&err);
    STDERR.write_always(err);
}

/// Writer to stderr. Escape sequences are removed if stderr does not support them.
static STDERR: LazyLock<LineWriter> = LazyLock::new(|| {
    LineWriter::start(write_to_stderr, |count| {
        format!("rlaunch: {count} messages dropped, since stderr was not read\n").into_bytes()
    })
});

/// Stands for the transient line as it is when this is written: it may have been erased by then.
const REDRAW: &[u8] = b"\0";

/// Writes lines to stderr, above rows that are at the bottom of the terminal.
fn write_to_stderr(lines: &[u8]) -> io::Result<()> {
    let columns = terminal::message_columns().map(usize::from);
    let again = (lines == REDRAW).then(|| transient().cut_to(columns));
    let lines = again.as_deref().unwrap_or(lines);
    let mut coloured = AutoStream::new(Vec::new(), AutoStream::choice(&io::stderr()));
    coloured.write_all(lines)?;
    let erasure = transient().replace(lines, columns);
    footer::write_above(&[erasure.into_bytes(), coloured.into_inner()].concat(), write_all)
}

/// Writes to stderr, even if another process that shares it has made it non-blocking.
fn write_all(mut left: &[u8]) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    while !left.is_empty() {
        match stderr.write(left) {
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Line that whatever is written next replaces.
struct Transient {
    /// The line, with its colours; empty if there is none.
    line: String,
    /// Number of its columns, with keys that the terminal has shown behind it.
    columns: usize,
}

static TRANSIENT: Mutex<Transient> = Mutex::new(Transient { line: String::new(), columns: 0 });

fn transient() -> MutexGuard<'static, Transient> {
    TRANSIENT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transient {
    /// Returns what erases the line before `next` is written at a terminal with this number of columns. What has no newline
    /// at its end is transient itself.
    fn replace(&mut self, next: &[u8], columns: Option<usize>) -> String {
        let shown = self.columns;
        let is_transient = next.last().is_some_and(|byte| *byte != b'\n');
        self.line = if is_transient { String::from_utf8_lossy(next).into() } else { String::new() };
        self.columns = footer::width(&self.line);
        // A terminal that has become narrower has broken the line.
        let above = columns.map_or(0, |columns| shown.saturating_sub(1) / columns.max(1));
        match (shown, above) {
            (0, _) => String::new(),
            (shown, 0) => format!("\r{:shown$}\r", ""),
            (_, above) => format!("\r\x1b[{above}A\x1b[J"),
        }
    }

    /// Returns the line for a terminal with this number of columns.
    fn cut_to(&self, columns: Option<usize>) -> Vec<u8> {
        footer::cut(&self.line, columns.unwrap_or(usize::MAX)).into_bytes()
    }

    /// Counts the columns of a key behind the line. Returns `false` if there is no line.
    fn lengthen_by_key(&mut self) -> bool {
        let is_shown = self.columns > 0;
        self.columns += if is_shown { "^C".len() } else { 0 };
        is_shown
    }
}

/// Writes a dim line that whatever is written next replaces. It is cut to the terminal's width.
pub(crate) fn write_transient(line: &str) {
    if !is_quiet() {
        let columns = terminal::message_columns().map_or(usize::MAX, usize::from);
        let line = format!("{DIM}rlaunch: {line}{DIM:#}");
        STDERR.write(footer::cut(&line, columns).into_bytes());
    }
}

/// Erases the transient line, if there is one or it waits for a slow terminal.
pub(crate) fn erase_transient() {
    if transient().columns > 0 || STDERR.is_behind() {
        STDERR.write(Vec::new());
    }
}

/// Draws again what is at the bottom of the terminal, since its size has changed.
pub fn redraw() {
    if transient().columns > 0 || footer::is_shown() {
        STDERR.write(REDRAW.to_vec());
    }
}

/// Ends the line in which the terminal has shown a key that sent a signal, as `^C`, so that what is printed next has one of
/// its own.
pub fn end_line_of_key() {
    if !terminal::shows_keys() {
        return;
    }
    let is_erased = transient().lengthen_by_key() || footer::is_shown();
    STDERR.write(if is_erased { Vec::new() } else { b"\n".to_vec() });
}

/// Waits until the reader has taken all messages so far, for a second at most.
pub fn settle() {
    STDERR.wait(LAST_TIMEOUT);
}

/// Writes the last words of this process, whose reader has a second for them.
pub(crate) fn last_words(lines: Vec<u8>) {
    STDERR.write_always(lines);
    STDERR.wait(LAST_TIMEOUT);
}

/// Whether the last messages have only [`LAST_TIMEOUT`].
static HURRIED: AtomicBool = AtomicBool::new(false);

/// Time that the last messages have after the user has asked for the end.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two looks whether the last messages are written.
const LAST_CHECK: Duration = Duration::from_millis(20);

/// Makes the last messages wait for their reader for a second only, since the user has asked for the end.
pub fn hurry_last_messages() {
    HURRIED.store(true, Ordering::Relaxed);
}

/// Waits until the reader has taken all messages, or the user asks for the end. To be called before the process exits,
/// outside of a runtime.
pub fn flush() {
    // A reader that reads is waited for without a runtime, which takes files that may not be opened any more.
    STDERR.wait(LAST_CHECK);
    if !STDERR.is_behind() {
        return;
    }
    // A runtime of this process may have handlers of signals, so that these would not end it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if runtime.and_then(|runtime| runtime.block_on(until_read())).is_err() {
        STDERR.wait(LAST_TIMEOUT);
    }
}

/// Returns once the reader has taken all messages, or a signal ends the wait for it.
async fn until_read() -> io::Result<()> {
    let mut ends = EndSignals::install()?;
    let mut suspend = signal(SignalKind::from_raw(Signal::SIGTSTP as i32))?;
    let mut waited = Duration::ZERO;
    while STDERR.is_behind() && (waited < LAST_TIMEOUT || !HURRIED.load(Ordering::Relaxed)) {
        tokio::select! {
            () = tokio::time::sleep(LAST_CHECK) => waited += LAST_CHECK,
            _ = ends.next() => break,
            // Its handler has replaced what the kernel does by itself.
            _ = suspend.recv() => raise(Signal::SIGSTOP)?,
        }
    }
    Ok(())
}

/// Keeper of messages beside stderr.
type Keeper = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Keeper of messages, once there is one.
static KEEPER: OnceLock<Keeper> = OnceLock::new();

/// Gives lines of messages, with their colours, to `keeper` as well from now on. May be called once per process.
pub fn keep_by(keeper: impl Fn(&[u8]) + Send + Sync + 'static) {
    let set = KEEPER.set(Box::new(keeper));
    debug_assert!(set.is_ok(), "messages are kept in one place");
}

fn keep(lines: &[u8]) {
    if let Some(keeper) = KEEPER.get() {
        keeper(lines);
    }
}

fn write(line: Vec<u8>) {
    keep(&line);
    STDERR.write(line);
}

/// Prints lines that were kept, unless messages are suppressed.
pub fn replay(lines: Vec<u8>) {
    if !is_quiet() {
        STDERR.write(lines);
    }
}

/// Writes a line of a log.
struct LogLine;

impl Write for LogLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prints a line, unless messages are suppressed.
fn print_line(line: &str) {
    if !is_quiet() {
        write(format!("{line}\n").into_bytes());
    }
}

/// Prints text on stderr that the user has asked for, whatever `--quiet` says.
pub fn asked(text: &str) {
    write(text.as_bytes().to_vec());
}

/// Prints messages in their order.
pub fn print(messages: &[Message]) {
    for message in messages {
        match message {
            Message::Info(text) => info(text),
            Message::Labelled(text) => labelled(text),
            Message::Warning { finding, text } => warn_of(*finding, text),
            Message::Hint(text) => hint(text),
        }
    }
}

/// Returns a message's prefix, as in `error[mtu.path]`.
fn label(word: &str, finding: Option<&str>) -> String {
    finding.map_or_else(|| word.to_owned(), |id| format!("{word}[{id}]"))
}

/// Whether `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses all messages but errors from now on.
pub fn set_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Suppresses all messages but errors until the returned value is dropped.
pub fn quiet() -> QuietTime {
    QuietTime { was_quiet: QUIET.swap(true, Ordering::Relaxed) }
}

/// Time without messages.
#[derive(Debug)]
#[must_use = "messages are suppressed only while it lives"]
pub struct QuietTime {
    was_quiet: bool,
}

impl Drop for QuietTime {
    fn drop(&mut self) {
        QUIET.store(self.was_quiet, Ordering::Relaxed);
    }
}

/// Tells whether all messages but errors are suppressed.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints `message` with the prefix `warning:`.
pub fn warn(message: &str) {
    warn_of(None, message);
}

/// Prints `message` with the prefix `warning[ID]:`, where the id is that of the finding which it states. Adds a hint if
/// the limit of the size of files is the cause.
pub fn warn_of(finding: Option<&str>, message: &str) {
    let (label, shown) =
        (label("warning", finding), printable::message(&printable::without_codes(message)));
    print_line(&format!("{WARNING}{label}:{WARNING:#} {shown}"));
    if let Some(advice) = limits::file_size_hint(message) {
        hint(&advice);
    }
}

/// Prints `message` with the prefix `rlaunch:`.
pub fn info(message: &str) {
    print_line(&format!("rlaunch: {}", printable::message(message)));
}

/// Prints a line that begins with its subject, as in `placement: a 0 · b none — 1 of 2 hosts idle`.
fn labelled(line: &str) {
    let line = printable::message(line);
    let Some((subject, rest)) = line.split_once(": ") else { return print_line(&line) };
    let (rest, remark) = rest.split_once(" — ").unwrap_or((rest, ""));
    let subject = style::BOLD.paint(&format!("{subject}:"));
    let remark = if remark.is_empty() {
        String::new()
    } else {
        format!(" — {}", style::DOUBTFUL.paint(remark))
    };
    print_line(&format!("{subject} {rest}{remark}"));
}

/// Prints `line` without a prefix.
pub fn line(line: &str) {
    print_line(&printable::message(line));
}

/// Prints `message` dim, with the prefix `rlaunch:`.
pub fn dim(message: &str) {
    print_line(&format!("{DIM}rlaunch: {}{DIM:#}", printable::message(message)));
}

/// Prints options that rlaunch accepts for compatibility with other launchers but ignores.
pub fn ignored(words: &str) {
    print_line(&format!("{HINT}ignored:{HINT:#} {}", printable::message(words)));
}

/// Prints `message` with the prefix `hint:`.
pub fn hint(message: &str) {
    print_line(&format!("{HINT}hint:{HINT:#} {}", printable::text(message)));
}

/// Prints a hint on a command line that may be as it was meant.
pub fn dim_hint(message: &str) {
    print_line(&format!("{DIM}hint: {}{DIM:#}", printable::text(message)));
}

/// Starts logging to stderr by `-v`, `--log-level` and `--log-json`; may be called once per process. `verbose` is the
/// number of `-v` options: 0 logs warnings, 1 also info, 2 also debug. `level` overrides `verbose`. The environment
/// variable RLAUNCH_LOG, in the filter syntax of `tracing`, overrides both.
pub fn log_to_stderr(verbose: u8, level: Option<Level>, json: bool) {
    let level = match (level, verbose) {
        (Some(level), _) => format!("rlaunch={level}"),
        (None, 0) => "rlaunch=warn".to_owned(),
        (None, 1) => "rlaunch=info".to_owned(),
        (None, _) => "rlaunch=debug".to_owned(),
    };
    let filter = EnvFilter::try_from_env("RLAUNCH_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let plain = AutoStream::choice(&io::stderr()) == ColorChoice::Never;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogLine)
        .with_ansi(!plain)
        // A failed write to stderr would be reported on stderr, where it would fail as well.
        .log_internal_errors(false)
        .with_target(false);
    // `init` is not used, because it also installs a bridge for the `log` crate if any crate of the build
    // enables that feature.
    let set = if json {
        tracing::subscriber::set_global_default(log.json().finish())
    } else {
        tracing::subscriber::set_global_default(log.finish())
    };
    debug_assert!(set.is_ok(), "logging is started once");
}

#[cfg(test)]
mod tests {
    use super::*;
    use anstream::adapter::strip_str;

    #[test]
    fn messages_are_kept_beside_stderr() {
        let (sender, kept) = std::sync::mpsc::channel();
        // An error means that the test is over.
        keep_by(move |lines| drop(sender.send(lines.to_vec())));
        info("one");
        error(&Failed::new(rlaunch_text::exit::Exit::USAGE, "two"));
        replay(b"three\n".to_vec());
        let kept: Vec<u8> = kept.try_iter().flatten().collect();
        let kept = strip_str(&String::from_utf8_lossy(&kept)).to_string();
        assert!(kept.contains("rlaunch: one\nerror: two\n") && !kept.contains("three"), "{kept}");
    }

    #[test]
    fn what_comes_next_erases_a_transient_line() {
        let mut shown = Transient { line: String::new(), columns: 0 };
        let erased = |columns: usize| format!("\r{}\r", " ".repeat(columns));
        assert_eq!(shown.replace(b"a message\n", Some(80)), "");
        assert_eq!(shown.replace("\x1b[2mrlaunch: 3…\x1b[0m".as_bytes(), Some(80)), "");
        assert_eq!(shown.replace(b"rlaunch: 34", Some(80)), erased(11));
        assert_eq!(shown.replace(b"", Some(80)), erased(11));
        assert_eq!(shown.replace(b"a message\n", Some(80)), "");
        assert!(!shown.lengthen_by_key());
        shown.replace(b"rlaunch: 34", Some(80));
        assert!(shown.lengthen_by_key());
        assert_eq!(shown.replace(b"", None), erased(13));
    }

    #[test]
    fn a_transient_line_is_erased_at_a_terminal_that_became_narrower() {
        let mut shown = Transient { line: String::new(), columns: 0 };
        shown.replace(b"rlaunch: 34", Some(80));
        assert_eq!(shown.replace(b"rlaunch: 34", Some(11)), format!("\r{:11}\r", ""));
        assert_eq!(shown.replace(b"rlaunch:", Some(5)), "\r\x1b[2A\x1b[J");
        assert_eq!(shown.line, "rlaunch:");
    }

    #[test]
    fn a_line_that_was_erased_meanwhile_is_not_drawn_again() {
        let mut shown = Transient { line: String::new(), columns: 0 };
        shown.replace(b"rlaunch: 34", Some(80));
        assert_eq!(shown.cut_to(Some(7)), b"rlaunch");
        assert_eq!(shown.cut_to(None), b"rlaunch: 34");
        shown.replace(b"", Some(80));
        assert_eq!(shown.cut_to(Some(80)), b"");
    }
}
