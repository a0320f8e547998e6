//! `rlaunch trust`, as typed.

use clap::Parser;
use std::path::PathBuf;

/// Let the rlaunch.toml in a working directory count.
///
/// Such a file may be a stranger's, so before that only a part of it counts.
/// It prints what the file does that needs trust: hosts, commands, programs, files, variables,
/// networks, profiles. Then it records the file's path and the SHA-256 of its content, below
/// ~/.local/state/rlaunch ($XDG_STATE_HOME/rlaunch), and of files beside or below it that it names
/// (ssh-config, env-file, hostfile, agent, preload, template, stdin, words of rsh and container-exec).
/// Once one of them changes, the file is not trusted any more.
///
/// Without trust, harmless keys count, as np, transport or map-by, and a line names the others. What --cluster names, and ~/.config/rlaunch/rlaunch.toml, needs no trust.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch trust",
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch trust                     ./rlaunch.toml
  rlaunch trust ~/src/train         the one of that directory
  rlaunch trust --list              what was trusted, and what has changed since
  rlaunch trust --revoke            not any more"
)]
pub(crate) struct TrustArgs {
    /// The file, or its directory; ./rlaunch.toml without it
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Print what was trusted: whether it still is, has changed or is gone
    #[arg(long, conflicts_with_all = ["file", "revoke"])]
    pub(crate) list: bool,

    /// Trust the file no more
    #[arg(long)]
    pub(crate) revoke: bool,
}
