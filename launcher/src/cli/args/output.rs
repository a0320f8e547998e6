//! What ranks read, what is printed, how, and what is kept of it.

use crate::job::options::DryRun;
use crate::job::options::Show;
use crate::job::stdin::StdinArg;
use crate::job::tag_pattern::Pattern;
use clap::ArgAction;
use std::path::PathBuf;

/// What ranks read, what is printed, and what is kept.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Who reads this command's standard input: a rank, `all` ranks or `none`; or a file that rank 0
    /// reads instead. Otherwise rank 0 reads it where it is a pipe or a file, and nobody reads a
    /// terminal. Ranks that read nothing have /dev/null
    #[arg(long, value_name = "RANK|all|none|FILE", help_heading = "The program")]
    pub(crate) stdin: Option<StdinArg>,

    /// Start every line with `[rank,host]`, or with a pattern
    ///
    /// In a pattern %r is the rank, %h the host, %l the local rank, %p the process id, %t the time at which
    /// the line was written, by the host's clock, and %% a plain %.
    #[arg(
        long, value_name = "PATTERN", num_args = 0..=1, require_equals = true,
        default_missing_value = "[%r,%h] ", help_heading = "Output"
    )]
    pub(crate) tag_output: Option<Pattern>,

    /// Write what each rank prints to DIR/rank.N/stdout and DIR/rank.N/stderr as well, in place of
    /// what is there. With it the job goes on when nobody reads its output any more
    #[arg(long, value_name = "DIR", alias = "output-filename", help_heading = "Output")]
    pub(crate) output_dir: Option<PathBuf>,

    /// What ranks write to stderr goes to stdout, in the order in which they wrote
    #[arg(long, alias = "merge-stderr-to-stdout", help_heading = "Output")]
    pub(crate) merge_stderr: bool,

    /// Of rlaunch's own words print errors only
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Output")]
    pub(crate) quiet: bool,

    /// Say what happens; -vv says it in detail
    #[arg(short, long, action = ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,

    /// Log from this level up: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", help_heading = "Output")]
    pub(crate) log_level: Option<tracing::Level>,

    /// Log as JSON, one object per line
    #[arg(long, help_heading = "Output")]
    pub(crate) log_json: bool,

    /// Write what happens as JSON, one object per line, to a file or to descriptor N
    #[arg(long, value_name = "FILE|fd:N", help_heading = "Output")]
    pub(crate) events: Option<String>,

    /// Leave no record. Otherwise a job leaves one for `rlaunch report`, with what its ranks printed,
    /// below ~/.local/state/rlaunch ($XDG_STATE_HOME/rlaunch)
    #[arg(long, help_heading = "Output")]
    pub(crate) no_record: bool,

    /// Start no rank, and print which hosts and ranks there would be
    ///
    /// The agents on the hosts look for all that the job needs, which gives placement and variables as
    /// well. With =offline rlaunch connects to no host.
    #[arg(
        long, value_name = "agents|offline", num_args = 0..=1, require_equals = true,
        default_missing_value = "agents", hide_possible_values = true, help_heading = "Output"
    )]
    pub(crate) dry_run: Option<DryRun>,

    /// Explain before the ranks start: placement (who runs where, and why), env (variables that
    /// rlaunch sets, and why), mesh (by what ranks of different hosts reach each other), rank-table;
    /// the last two also =json. Repeats add up
    #[arg(
        long, value_name = "WHAT[=json]", action = ArgAction::Append, help_heading = "Output"
    )]
    pub(crate) show: Vec<Show>,
}
