//! `rlaunch trust`: trusts the `rlaunch.toml` of a working directory, lists trusted files, or ends trust.

use crate::cli::args::JobArgs;
use crate::cli::config::{ConfigError, FILE, Review, TrustState, TrustStore, TrustedFile};
use clap::{CommandFactory, Parser};
use rlaunch_console::process_env::ProcessEnv;
use rlaunch_console::stdout;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::shell::quoted;
use std::path::{Path, PathBuf};

/// Let the rlaunch.toml in a working directory take full effect.
///
/// Such a file may have come with a cloned repository, so without trust only harmless keys take effect, as np,
/// transport or map-by; a warning names the others. `rlaunch trust` prints the effects that need trust: hosts,
/// commands, programs, files, variables, networks, profiles. Then it records the path of the file and the SHA-256 of
/// its content below ~/.local/state/rlaunch ($XDG_STATE_HOME/rlaunch), and the same of files beside or below it that
/// it names (ssh-config, env-file, hostfile, agent, copy, template, stdin, words of rsh and container-exec). When
/// the content of one of them changes, the file is not trusted any more.
///
/// The file of --cluster and ~/.config/rlaunch/rlaunch.toml need no trust.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch trust                     trust ./rlaunch.toml
  rlaunch trust ~/src/train         trust the one of that directory
  rlaunch trust --list              list trusted files, and those that have changed
  rlaunch trust --revoke            end trust in ./rlaunch.toml")]
pub(crate) struct TrustArgs {
    /// The file, or its directory; by default ./rlaunch.toml
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// List files that were trusted: trusted still, changed or gone
    #[arg(long, conflicts_with_all = ["file", "revoke"])]
    pub(crate) list: bool,

    /// End trust in the file
    #[arg(long)]
    pub(crate) revoke: bool,
}

/// Trusts a file, ends trust or lists files, and prints the result.
pub(super) fn run(args: &TrustArgs) -> Result<Exit, Failed> {
    let env = ProcessEnv::current();
    let path = resolve(args.file.as_deref());
    let done = match args {
        TrustArgs { list: true, .. } => list(&env),
        TrustArgs { revoke: true, .. } => revoke(&path, &env),
        _ => review_and_trust(&path, &env),
    };
    let text = done.map_err(|error| Failed::from_error(Exit::USAGE, &error).hint(error.hint()))?;
    stdout::write(text.as_bytes());
    Ok(Exit::SUCCESS)
}

/// Returns the path of the file; a directory stands for the rlaunch.toml in it.
fn resolve(typed: Option<&Path>) -> PathBuf {
    match typed {
        None => FILE.into(),
        Some(path) if path.is_dir() => path.join(FILE),
        Some(path) => path.to_owned(),
    }
}

/// Prints the effects of a file, and then records that the user trusts it with this content.
fn review_and_trust(path: &Path, env: &ProcessEnv) -> Result<String, ConfigError> {
    let review = Review::read(path, JobArgs::command())?;
    let name = path.display();
    let shown: String = match &review.lines[..] {
        [] => format!("{name} does nothing that needs trust\n"),
        lines => lines.iter().map(|line| format!("{line}\n")).collect(),
    };
    // The effects are shown even if trust cannot be recorded.
    stdout::write(shown.as_bytes());
    review.trust(env)?;
    Ok(format!(
        "{name} is trusted until it, or a file listed above, changes; `rlaunch trust --revoke` ends \
         that\n"
    ))
}

fn list(env: &ProcessEnv) -> Result<String, ConfigError> {
    let line = |TrustedFile { path, state }: TrustedFile| {
        let (state, changed) = match &state {
            TrustState::Same => ("trusted", None),
            TrustState::Changed(changed) => {
                ("changed", Some(changed).filter(|changed| **changed != path))
            }
            TrustState::Gone => ("gone", None),
        };
        let named = changed.map(|named| format!(", which names {}", quoted(named.as_os_str())));
        format!("{state:<8} {}{}\n", quoted(path.as_os_str()), named.unwrap_or_default())
    };
    Ok(TrustStore::for_user(env)?.all()?.into_iter().map(line).collect())
}

fn revoke(path: &Path, env: &ProcessEnv) -> Result<String, ConfigError> {
    match TrustStore::for_user(env)?.revoke(path)? {
        true => Ok(format!("{} is not trusted any more\n", path.display())),
        false => Err(ConfigError::NotTrusted(path.to_owned())),
    }
}
