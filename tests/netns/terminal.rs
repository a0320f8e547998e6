//! A terminal at which a program runs, with a keyboard that types and a screen that remembers.

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::{OpenptyResult, openpty};
use rlaunch_lab::command::wait_until;
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Returns the lines that a terminal of any height shows at the end of this output.
pub(crate) fn screen(shown: &str) -> Vec<String> {
    let (mut lines, mut line, mut column) = (vec![Vec::<char>::new()], 0_usize, 0_usize);
    let mut rest = shown.chars();
    while let Some(c) = rest.next() {
        match c {
            '\r' => column = 0,
            '\n' => {
                line += 1;
                lines.resize(lines.len().max(line + 1), Vec::new());
            }
            '\u{1b}' => {
                let sequence: String =
                    rest.by_ref().take_while(|c| !c.is_ascii_alphabetic()).collect();
                // The letter at its end is taken too, and not returned: it is the one before the rest.
                let end = shown.len() - rest.as_str().len();
                match (sequence.as_str(), &shown[end - 1..end]) {
                    ("[", "J") => {
                        lines.truncate(line + 1);
                        lines[line].truncate(column);
                    }
                    (number, "A") => line -= number[1..].parse::<usize>().unwrap(),
                    ("[", "K") => lines[line].truncate(column),
                    // Colours, and whether long lines are broken.
                    (_, "m" | "h" | "l") => {}
                    other => panic!("{other:?} in {shown:?}"),
                }
            }
            c => {
                let length = lines[line].len().max(column + 1);
                lines[line].resize(length, ' ');
                lines[line][column] = c;
                column += 1;
            }
        }
    }
    let text = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
    let mut lines: Vec<String> = lines.iter().map(text).collect();
    lines.truncate(lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1));
    lines
}

/// Pseudoterminal, with everything that was shown on it.
pub(crate) struct Terminal {
    keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

/// Opens both ends of a pseudo-terminal, which programs inherit only as their standard streams: an end that stays open in
/// one would keep the other from noticing that it is gone.
pub(crate) fn open_pair() -> OpenptyResult {
    let pair = openpty(None, None).unwrap();
    for end in [&pair.master, &pair.slave] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
    }
    pair
}

impl Terminal {
    /// Opens a terminal, and returns the program's end of it too.
    pub(crate) fn open() -> (Terminal, OwnedFd) {
        let OpenptyResult { master, slave } = open_pair();
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().unwrap();
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let sink = shown.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4 << 10];
            // When the other end is closed, reading fails.
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                sink.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        (Terminal { keyboard, shown, reader }, slave)
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Sets the number of rows and columns. The kernel tells the programs at the terminal.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        // In one call: stty makes one for the rows and one for the columns, and a program may look in between.
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// Returns everything that was shown so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until `condition` holds for everything that was shown.
    pub(crate) fn wait_until(&self, bound: Duration, what: &str, condition: impl Fn(&str) -> bool) {
        let waited = wait_until(bound, what, || Ok(condition(&self.text())));
        assert!(waited.is_ok(), "{:?} and not {what:?}", self.text());
    }

    /// Returns everything that was shown, once all programs have closed the terminal.
    pub(crate) fn finish(self) -> String {
        self.reader.join().unwrap();
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }
}
