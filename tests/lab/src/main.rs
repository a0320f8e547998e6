//! `cargo lab`: hosts for tests on this machine, and all checks, tests and measurements of rlaunch.
//!
//! The program only reads its command line, in `cli/`; the work is done by the library
//! [`rlaunch_lab`], which lists its folders. `tests/README.md` explains what the lab can do.

mod cli;

use std::process::ExitCode;

use clap::Parser;

use cli::Args;

fn main() -> ExitCode {
    match cli::run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", error.describe());
            if let Some(hint) = error.hint() {
                eprintln!("\nhint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}
