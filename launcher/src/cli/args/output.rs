//! Options for standard input and output of ranks, logs, events, records and dry runs.

use crate::cli::args::values;
use clap::ArgAction;
use rlaunch_plan::job::name::JobName;
use rlaunch_plan::job::options::{DryRun, Folding, Show};
use rlaunch_plan::job::stdin::StdinArg;
use rlaunch_plan::job::tag_pattern::TagPattern;
use std::path::PathBuf;

/// Input of ranks, output of ranks and of rlaunch.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Standard input: the rank that reads this command's, all ranks, none; or a file for rank 0
    ///
    /// By default rank 0 reads it if it is a pipe or a file, and no rank reads a terminal. Ranks that read
    /// nothing have /dev/null.
    #[arg(long, value_name = "RANK|all|none|FILE", help_heading = "The program")]
    pub(crate) stdin: Option<StdinArg>,

    /// Start every line with `[rank,host]`, or with a pattern
    ///
    /// In a pattern %r is the rank, %h the host, %l the local rank, %p the process id, %t the time at which the
    /// line was written, by the host's clock, and %% a plain %.
    #[arg(long, value_name = "PATTERN", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "[%r,%h] ", help_heading = "Output")]
    pub(crate) tag_output: Option<TagPattern>,

    /// At a terminal, start no line with its host or rank
    ///
    /// Without this option lines have such a tag at a terminal once a second rank prints. --tag-output is stronger.
    #[arg(long, help_heading = "Output")]
    pub(crate) no_tag: bool,

    /// Show equal lines of several ranks once at a terminal, as `[0-7] epoch 3`; with =numbers also those that differ
    /// in numbers alone, as `[0-7] loss 0.17..0.19`
    ///
    /// If all that ranks print within 0.3 s is equal it is shown once anyway; =none prevents that. Output in pipes
    /// and files is never folded.
    #[arg(long, value_parser = values::named::<Folding>(), value_name = "lines|numbers|none")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "lines")]
    #[arg(hide_possible_values = true, help_heading = "Output")]
    pub(crate) fold: Option<Folding>,

    /// Write the output of each rank to DIR/rank.N/stdout and DIR/rank.N/stderr as well, replacing these files;
    /// the job then goes on if the reader of its output goes away
    #[arg(long, value_name = "DIR", value_parser = values::path())]
    #[arg(help_heading = "Output")]
    pub(crate) output_dir: Option<PathBuf>,

    /// Send ranks' stderr to stdout, in the order in which they write
    #[arg(long, help_heading = "Output")]
    pub(crate) merge_stderr: bool,

    /// Let each rank's stdout be a terminal, so that C and Perl print line by line
    ///
    /// With --merge-stderr its stderr is that terminal too. By default, if this command's stdout is a terminal, so is
    /// that of a single rank and of programs that are linked with MPI.
    #[arg(long, conflicts_with = "no_pty", help_heading = "Output")]
    pub(crate) pty: bool,

    /// Let no rank's stdout be a terminal
    #[arg(long, help_heading = "Output")]
    pub(crate) no_pty: bool,

    /// Print only errors from rlaunch itself
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Output")]
    pub(crate) quiet: bool,

    /// Log what happens; -vv logs it in detail
    #[arg(short, long, action = ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,

    /// Log from this level up: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", help_heading = "Output")]
    pub(crate) log_level: Option<tracing::Level>,

    /// Log as JSON, one object per line
    #[arg(long, help_heading = "Output")]
    pub(crate) log_json: bool,

    /// Write the job's events as JSON, one object per line, to a file or to file descriptor N
    #[arg(long, value_name = "FILE|fd:N", help_heading = "Output")]
    pub(crate) events: Option<String>,

    /// Return once all ranks have started, and let the job outlive this terminal; `rlaunch logs -f NAME` shows it
    ///
    /// Its name is printed, and its output is kept in a file below ~/.local/state/rlaunch. Rank 0 reads stdin only if that is
    /// a file, or with --stdin. If the job cannot start, the exit code says why, as without -d.
    #[arg(short, long, conflicts_with_all = ["dry_run", "no_record"], help_heading = "Output")]
    pub(crate) detach: bool,

    /// Name the job: letters, digits, - and _; by default two words, as amber-fox
    ///
    /// Verbs that ask about a job take its name, its id, or the beginning of either; `last` is the newest job.
    #[arg(long, value_name = "NAME", value_parser = JobName::parse_given, help_heading = "Output")]
    pub(crate) job_name: Option<JobName>,

    /// Keep no record of the job for `rlaunch report`. A record has the output of ranks, and is below
    /// ~/.local/state/rlaunch ($XDG_STATE_HOME/rlaunch)
    #[arg(long, help_heading = "Output")]
    pub(crate) no_record: bool,

    /// Start no ranks, and print the hosts and ranks that the job would have
    ///
    /// Agents on the hosts check everything that the job needs, so placement and variables are known as well.
    /// With =offline rlaunch connects to no host.
    #[arg(long, value_parser = values::named::<DryRun>(), value_name = "agents|offline")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "agents")]
    #[arg(hide_possible_values = true, help_heading = "Output")]
    pub(crate) dry_run: Option<DryRun>,

    /// Explain the start: placement[=svg], env, mesh[=json], rank-table[=json], container or timing; repeats
    /// add up
    ///
    /// placement: the host and CPUs of each rank, and why; env: the variables that rlaunch sets, and why;
    /// container: the command that has started each container; mesh: the ports by which ranks of different hosts reach each other; rank-table: all of it, for programs. These
    /// come before ranks start; timing, which says where the time of the start went, when they have, on stderr.
    ///
    /// placement=svg is a picture of the hosts with the CPUs, the GPU and the ports of each rank, on stdout. With
    /// --dry-run nothing else is there: rlaunch --dry-run --show placement=svg -H a,b python3 train.py > job.svg
    #[arg(long, value_name = "WHAT[=FORMAT]", help_heading = "Output")]
    pub(crate) show: Vec<Show>,
}
