//! Printing to a stdout or stderr that may be closed. In that case `println!` and `eprintln!`
//! panic, but an agent that has lost its launcher still has to end its ranks.
//!
//! Messages to the launcher on stdout, by verbs that have one answer.

use rlaunch_bootstrap::protocol::control::{HELLO_MAGIC, encode};
use serde::Serialize;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::process::ExitCode;

pub(crate) fn write_stdout(words: Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{words}");
}

pub(crate) fn write_stderr(words: Arguments<'_>) {
    // In one piece: stderr has no buffer, and whoever reads a part may take it for the whole.
    let _ = io::stderr().write_all(format!("{words}\n").as_bytes());
}

/// Prints a line to stdout and ignores errors.
macro_rules! outln {
    ($($words:tt)*) => { $crate::console::write_stdout(format_args!($($words)*)) };
}

/// Prints a line to stderr and ignores errors.
macro_rules! errln {
    ($($words:tt)*) => { $crate::console::write_stderr(format_args!($($words)*)) };
}

pub(crate) use {errln, outln};

/// Writes a message as [`HELLO_MAGIC`] and a frame. The marker ends what a login shell may have
/// printed before.
pub(crate) fn write_message<T: Serialize>(message: &T) -> ExitCode {
    write_message_behind(HELLO_MAGIC, message)
}

/// Writes `mark` and a message as a frame.
pub(crate) fn write_message_behind<T: Serialize>(mark: &[u8], message: &T) -> ExitCode {
    let written = encode(message).map_err(|error| error.to_string()).and_then(|frame| {
        let bytes = [mark, &frame].concat();
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(&bytes).and_then(|()| stdout.flush());
        written.map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("rlaunch-worker: cannot write to stdout: {error}");
            ExitCode::FAILURE
        }
    }
}
