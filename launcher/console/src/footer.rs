//! Rows at the bottom of the terminal, such as progress bars, below everything that scrolls. Whoever prints there
//! erases them first.

use crate::terminal;
use rlaunch_bootstrap::job::TerminalSize;
use rlaunch_text::printable::escape_end;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::Duration;

/// Number of attempts to get the terminal for oneself, and the time between them. Another thread may be blocked
/// in a write, if the terminal is not read.
const ATTEMPTS: usize = 100;
const BETWEEN: Duration = Duration::from_millis(5);

static FOOTER: Mutex<Footer> = Mutex::new(Footer { rows: Vec::new(), drawn: Vec::new() });

struct Footer {
    /// Rows as they were given.
    rows: Vec<String>,
    /// Rows that are drawn, as the terminal had room for them.
    drawn: Vec<String>,
}

impl Footer {
    /// Returns what erases the rows. The cursor is at the end of the last one.
    fn erasure(&self, columns: u16) -> String {
        // A terminal that has become narrower has broken them.
        let broken = |row: &String| width(row).div_ceil(columns.into()).max(1);
        let lines: usize = self.drawn.iter().map(broken).sum();
        match lines {
            0 => String::new(),
            1 => "\r\x1b[J".to_owned(),
            lines => format!("\r\x1b[{}A\x1b[J", lines - 1),
        }
    }

    /// Fits the rows into the terminal, and returns what draws them. A character that is wider than was counted breaks none.
    fn drawing(&mut self, size: TerminalSize) -> String {
        let rows = self.rows.iter().take(size.rows.saturating_sub(1).into());
        self.drawn = rows.map(|row| cut(row, size.columns.into())).collect();
        if self.drawn.is_empty() {
            return String::new();
        }
        format!("\x1b[?7l{}\x1b[?7h", self.drawn.join("\r\n"))
    }
}

/// Tells whether the terminal obeys sequences that move its cursor.
pub fn is_possible() -> bool {
    std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Tells whether there are rows.
pub(crate) fn is_shown() -> bool {
    wait_for_footer().is_some_and(|footer| !footer.rows.is_empty())
}

/// Draws rows in place of those that are there; each is cut to the width of the terminal.
pub fn draw(rows: Vec<String>, write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let Some(mut footer) = wait_for_footer() else { return Ok(()) };
    let size = terminal::size_or_default();
    let mut bytes = footer.erasure(size.columns);
    footer.rows = rows;
    bytes.push_str(&footer.drawing(size));
    if bytes.is_empty() { Ok(()) } else { write(bytes.as_bytes()) }
}

/// Erases the rows because this process is going to be stopped. They come back when they change.
pub fn erase() {
    let Some(mut footer) = wait_for_footer() else { return };
    let bytes = footer.erasure(terminal::size_or_default().columns);
    *footer = Footer { rows: Vec::new(), drawn: Vec::new() };
    // An error means that the terminal is gone, and the rows with it.
    if io::stdout().is_terminal() {
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(bytes.as_bytes()).and_then(|()| stdout.flush());
    } else if io::stderr().is_terminal() {
        let _ = io::stderr().write_all(bytes.as_bytes());
    }
}

/// Writes lines to stderr above the rows.
pub(crate) fn write_above(
    lines: &[u8],
    write: impl FnOnce(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let footer = if io::stderr().is_terminal() { wait_for_footer() } else { None };
    match footer.filter(|footer| !footer.rows.is_empty()) {
        Some(mut footer) => {
            let size = terminal::size_or_default();
            let erasure = footer.erasure(size.columns);
            let drawing = footer.drawing(size);
            write(&[erasure.as_bytes(), lines, drawing.as_bytes()].concat())
        }
        None => write(lines),
    }
}

/// Waits for the footer. `None` if another thread holds it and is blocked in a write.
fn wait_for_footer() -> Option<MutexGuard<'static, Footer>> {
    for _ in 0..ATTEMPTS {
        match FOOTER.try_lock() {
            Ok(footer) => return Some(footer),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => thread::sleep(BETWEEN),
        }
    }
    None
}

/// Characters of a row, and whether each takes a column. Those of escape sequences take none.
fn columns(row: &str) -> impl Iterator<Item = (char, bool)> {
    let mut shown_from = 0;
    row.char_indices().map(move |(at, c)| {
        if c == '\x1b' && at >= shown_from {
            shown_from = escape_end(row.as_bytes(), at);
        }
        (c, at >= shown_from)
    })
}

/// Returns the number of columns that a row takes.
pub(crate) fn width(row: &str) -> usize {
    columns(row).filter(|(_, is_column)| *is_column).count()
}

/// Cuts a row to a number of columns, and makes control characters spaces. Colours end with it.
pub(crate) fn cut(row: &str, most: usize) -> String {
    let (mut left, mut is_coloured) = (most, false);
    let mut text = String::with_capacity(row.len());
    for (c, is_column) in columns(row) {
        is_coloured |= !is_column;
        if is_column && left == 0 {
            continue;
        }
        left -= usize::from(is_column);
        text.push(if is_column && c.is_control() { ' ' } else { c });
    }
    if is_coloured {
        text.push_str("\x1b[0m");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_cut_to_the_width_and_keeps_its_colours() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("a\tcd", 3), "a c");
        assert_eq!(cut("\x1b[31m5%|██|\x1b[0m x", 4), "\x1b[31m5%|█\x1b[0m\x1b[0m");
        assert_eq!(width("\x1b[31m5%|██|\x1b[0m x"), 8);
        assert_eq!(width("\x1b]8;;http://h/x\x1b\\link\x1b]8;;\x1b\\"), 4);
    }

    #[test]
    fn rows_are_erased_whatever_became_of_the_width() {
        let footer = |rows: &[&str]| Footer {
            rows: Vec::new(),
            drawn: rows.iter().map(|row| (*row).to_owned()).collect(),
        };
        assert_eq!(footer(&[]).erasure(80), "");
        assert_eq!(footer(&["x"]).erasure(80), "\r\x1b[J");
        assert_eq!(footer(&["12345678", ""]).erasure(8), "\r\x1b[1A\x1b[J");
        assert_eq!(footer(&["12345678", ""]).erasure(5), "\r\x1b[2A\x1b[J");
        // A wider one shows more of them.
        let mut footer = Footer { rows: vec!["abcd".into(), "b".into()], drawn: Vec::new() };
        let mut drawing = |columns| footer.drawing(TerminalSize { rows: 24, columns });
        assert_eq!(drawing(1), "\x1b[?7la\r\nb\x1b[?7h");
        assert_eq!(drawing(9), "\x1b[?7labcd\r\nb\x1b[?7h");
    }
}
