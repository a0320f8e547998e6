//! Printing to a stdout or stderr that may be closed. In that case `println!` and `eprintln!`
//! panic, but an agent that has lost its launcher still has to end its ranks.

use std::fmt::Arguments;
use std::io::{self, Write};

pub(crate) fn write_stdout(words: Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{words}");
}

pub(crate) fn write_stderr(words: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{words}");
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
