//! `cargo lab`: hosts for tests on this machine, and all checks, tests and measurements of rlaunch.
//!
//! The program only reads its command line, in `cli/`; the work is done by the library
//! [`rlaunch_lab`], which lists its folders. `tests/README.md` explains what the lab can do.

mod cli;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

use cli::Args;
use rlaunch_lab::LabError;

fn main() -> ExitCode {
    match cli::run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints an error, its causes and its hint.
fn report(error: &LabError) {
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        eprintln!("  caused by: {source}");
        cause = source.source();
    }
    if let Some(hint) = error.hint() {
        eprintln!("\nhint: {hint}");
    }
}
