//! `rlaunch trust`: lets the `rlaunch.toml` of a working directory count, lists what does, or takes
//! it back.

use crate::cli::args::{Args, TrustArgs};
use crate::cli::config::{ConfigError, FILE, Review, State, TrustStore, Trusted};
use clap::CommandFactory;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_console::shell::quoted;
use rlaunch_console::stdout;
use std::path::{Path, PathBuf};

/// Does what was asked, and prints what came of it.
pub(crate) fn trust(args: &TrustArgs) -> Result<Exit, Failed> {
    let around = ProcessEnv::current();
    let path = file_of(args.file.as_deref());
    let done = match args {
        TrustArgs { list: true, .. } => list(&around),
        TrustArgs { revoke: true, .. } => revoke(&path, &around),
        _ => review_and_trust(&path, &around),
    };
    let text = done.map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))?;
    stdout::write(text.as_bytes());
    Ok(Exit::SUCCESS)
}

/// Finds the file that was meant; a directory stands for the one in it.
fn file_of(typed: Option<&Path>) -> PathBuf {
    match typed {
        None => FILE.into(),
        Some(path) if path.is_dir() => path.join(FILE),
        Some(path) => path.to_owned(),
    }
}

/// Shows what a file does, and then records that this content of it is trusted.
fn review_and_trust(path: &Path, around: &ProcessEnv) -> Result<String, ConfigError> {
    let review = Review::of(path, Args::command())?;
    let name = path.display();
    let shown: String = match &review.lines[..] {
        [] => format!("{name} does nothing that needs trust\n"),
        lines => lines.iter().map(|line| format!("{line}\n")).collect(),
    };
    // Printed first: what cannot be recorded has been shown all the same.
    stdout::write(shown.as_bytes());
    review.trust(around)?;
    Ok(format!(
        "{name} is trusted until it, or a file listed above, changes; `rlaunch trust --revoke` ends \
         that\n"
    ))
}

fn list(around: &ProcessEnv) -> Result<String, ConfigError> {
    let line = |Trusted { path, state }: Trusted| {
        let (state, what) = match &state {
            State::Same => ("trusted", None),
            State::Changed(what) => ("changed", Some(what).filter(|what| **what != path)),
            State::Gone => ("gone", None),
        };
        let what = what.map(|what| format!(", which names {}", quoted(what.as_os_str())));
        format!("{state:<8} {}{}\n", quoted(path.as_os_str()), what.unwrap_or_default())
    };
    Ok(TrustStore::of(around)?.all()?.into_iter().map(line).collect())
}

fn revoke(path: &Path, around: &ProcessEnv) -> Result<String, ConfigError> {
    match TrustStore::of(around)?.revoke(path)? {
        true => Ok(format!("{} is not trusted any more\n", path.display())),
        false => Err(ConfigError::NotTrusted(path.to_owned())),
    }
}
