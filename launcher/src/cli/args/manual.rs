//! `rlaunch completions`, `rlaunch man` and `rlaunch help`, as typed.

use clap::{Parser, ValueEnum};

/// Print a script that completes rlaunch's options and verbs in a shell.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch completions",
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch completions bash > ~/.local/share/bash-completion/completions/rlaunch
  rlaunch completions zsh > ~/.zfunc/_rlaunch       where fpath has ~/.zfunc
  rlaunch completions fish > ~/.config/fish/completions/rlaunch.fish"
)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_name = "bash|zsh|fish", hide_possible_values = true)]
    pub(crate) shell: Shell,
}

/// A shell that can be taught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Print the manual page of rlaunch, of one of its verbs, or of a topic.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch man",
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch man | man -l -                            read it
  rlaunch man topo | man -l -                       that of a verb
  rlaunch man env | man -l -                        that of a topic of rlaunch help
  rlaunch man > ~/.local/share/man/man1/rlaunch.1   keep it"
)]
pub(crate) struct ManArgs {
    /// The verb or topic, as topo or env; for bench train both words
    #[arg(value_name = "VERB|TOPIC", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
}

/// Explain a topic, as env or ssh, or a verb; without a word, list both.
#[derive(Debug, Parser)]
#[command(
    name = "rlaunch help",
    max_term_width = 100,
    after_help = "\
Examples:
  rlaunch help               topics and verbs
  rlaunch help env           the variables that a rank finds
  rlaunch help topo          the same as rlaunch topo --help"
)]
pub(crate) struct HelpArgs {
    /// A topic or a verb; for bench train both words
    #[arg(value_name = "TOPIC|VERB", num_args = 0..=2)]
    pub(crate) words: Vec<String>,
}
