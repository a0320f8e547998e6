//! Words for whoever reads stdout and stderr, if anybody still does. `println!` and `eprintln!`
//! panic where nobody does, and an agent whose launcher is gone has its ranks left to end.

use std::fmt::Arguments;
use std::io::{self, Write};

pub(crate) fn write_stdout(words: Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{words}");
}

pub(crate) fn write_stderr(words: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{words}");
}

/// `println!` that survives a closed stdout.
macro_rules! outln {
    ($($words:tt)*) => { $crate::console::write_stdout(format_args!($($words)*)) };
}

/// `eprintln!` that survives a closed stderr.
macro_rules! errln {
    ($($words:tt)*) => { $crate::console::write_stderr(format_args!($($words)*)) };
}

pub(crate) use {errln, outln};
