//! The programs of a job: their words, variables, working directory and files, and several programs with `:` between them.

use super::{CompatArgs, ImageArgs, values};
use clap::Parser;
use rlaunch_bootstrap::job::{MpiInterfaces, SingletonPolicy};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

/// Program and its arguments: the last words of a command line.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CommandArgs {
    /// Program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    #[arg(required = true)]
    pub(crate) argv: Vec<OsString>,
}

/// Options that relate a program to the other programs of the job.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ApplicationArgs {
    /// Name of this program, for --after and templates
    #[arg(long, value_name = "NAME", help_heading = "Several programs")]
    pub(crate) name: Option<String>,

    /// Start this program only when all conditions are met: NAME (the ranks of that program have been
    /// started), ready:tcp:HOST:PORT (HOST, one of the job's or any other, accepts connections at PORT)
    #[arg(long, value_name = "CONDITION,...", value_delimiter = ',')]
    #[arg(help_heading = "Several programs")]
    pub(crate) after: Vec<String>,

    /// Write DEST on the program's hosts: FILE with its placeholders, as {{host.oob_ip}}, replaced
    ///
    /// DEST is relative to the working directory. Only the user may read it, and it is removed when the job
    /// ends.
    #[arg(long, value_name = "FILE:DEST", help_heading = "Several programs")]
    pub(crate) template: Vec<String>,
}

/// How Python runs a program.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct PythonArgs {
    /// The program is a module of Python: `-m pkg.train` is `python3 -m pkg.train`
    ///
    /// A program whose name ends in .py is run by python3, unless it is executable and named by its path.
    #[arg(short, long, help_heading = "The program")]
    pub(crate) module: bool,

    /// Run a program whose name ends in .py without Python, as torchrun does
    #[arg(long, hide = true)]
    pub(crate) no_python: bool,
}

/// Options and program behind a `:`.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rlaunch ... :",
    max_term_width = 100,
    override_usage = "rlaunch [OPTIONS] PROGRAM [ARGUMENT]... : [OPTIONS] PROGRAM [ARGUMENT]..."
)]
pub(crate) struct ProgramArgs {
    /// Its hosts; by default those of the job, from the first free slot on
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST[:N],...")]
    pub(crate) hosts: Vec<String>,

    /// Number of its ranks; by default one for each slot
    #[arg(short = 'n', long = "np", value_name = "N", value_parser = values::parse_ranks)]
    pub(crate) ranks: Option<u32>,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,

    #[command(flatten)]
    pub(crate) python: PythonArgs,

    #[command(flatten)]
    pub(crate) application: ApplicationArgs,

    #[command(flatten)]
    pub(crate) image: ImageArgs,

    #[command(flatten)]
    pub(crate) compat: CompatArgs,

    #[command(flatten)]
    pub(crate) command: CommandArgs,
}

/// Splits a command line at every `:` into the words of each program. The command's name is the first word of
/// the first program. The word `\:` becomes `:`.
pub(crate) fn split_programs(typed: &[OsString]) -> Vec<Vec<OsString>> {
    let words = |part: &[OsString]| part.iter().map(unescape).collect();
    typed.split(|word| word == ":").map(words).collect()
}

/// Removes one backslash from a word that has only backslashes before a colon: `\:` becomes `:`, and `\\:`
/// becomes `\:`.
fn unescape(word: &OsString) -> OsString {
    let bytes = word.as_bytes();
    match bytes.strip_prefix(b"\\") {
        Some(rest) if rest.strip_suffix(b":").is_some_and(|r| r.iter().all(|&b| b == b'\\')) => {
            OsString::from_vec(rest.to_vec())
        }
        _ => word.clone(),
    }
}

/// Variables, working directory and files of a job's ranks.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EnvironmentArgs {
    /// Set this variable for every rank
    ///
    /// NAME=VALUE; NAME to pass on its value here; or 'NAME*' for all variables whose names begin so. The rest
    /// of this shell's environment is passed on as well, except variables of one host or of another launch.
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", help_heading = "The program")]
    pub(crate) env: Vec<OsString>,

    /// Set the variables of this file, with a line NAME=VALUE for each, as docker and dotenv have them; -x
    /// overrides it
    #[arg(long, value_name = "FILE", value_parser = values::path(), help_heading = "The program")]
    pub(crate) env_file: Vec<PathBuf>,

    /// Pass on nothing of this shell's environment but what -x and --env-file name
    #[arg(long, help_heading = "The program")]
    pub(crate) no_env: bool,

    /// Take PATH and other variables from a login shell on each host; only variables that it does not set are
    /// passed on from this shell
    #[arg(long, help_heading = "The program")]
    pub(crate) login: bool,

    /// Run in this directory, which every host must have
    ///
    /// A relative one is below this shell's directory; '~/x' is in the home directory of the host. Without it
    /// ranks run in this shell's directory, or in the home directory on hosts that lack it.
    #[arg(long, value_name = "DIR", help_heading = "The program")]
    pub(crate) wdir: Option<PathBuf>,

    /// Copy this directory, or DIR, to every host before the start, and run in the copy
    ///
    /// What .gitignore names is not copied. Only what has changed since the last time travels. What ranks write in the
    /// copy stays there. `rlaunch help copy` explains more.
    #[arg(long, value_name = "DIR", value_parser = values::path(), help_heading = "The program")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = ".")]
    pub(crate) sync: Option<PathBuf>,

    /// Bytes that --sync copies without asking, such as 3G; by default 1G, and 50000 files
    #[arg(long, value_name = "SIZE", value_parser = values::parse_bytes, requires = "sync")]
    #[arg(help_heading = "The program")]
    pub(crate) sync_limit: Option<u64>,

    /// Copy this file to every host for the job
    ///
    /// Arguments that name it are replaced by the copy's path.
    #[arg(long = "copy", alias = "preload", value_name = "FILE", value_parser = values::path())]
    #[arg(help_heading = "The program")]
    pub(crate) preload: Vec<PathBuf>,

    /// How MPI programs find their ranks: `pmix` (Open MPI), `pmi1` (MPICH, Intel MPI) or `none`
    ///
    /// `auto` goes by the MPI library that a program is linked with, and offers both to other
    /// programs, such as scripts.
    #[arg(long, value_parser = values::one_of(MPI), value_name = "auto|pmix|pmi1|none")]
    #[arg(default_value = "auto", hide_possible_values = true, help_heading = "The program")]
    pub(crate) mpi: MpiInterfaces,

    /// Reaction to several ranks that each run MPI as rank 0 of 1, of a library that is not served
    #[arg(long, value_parser = values::one_of(SINGLETON), value_name = "error|warn|ignore")]
    #[arg(default_value = "error", hide_possible_values = true, help_heading = "The program")]
    pub(crate) singleton: SingletonPolicy,
}

/// Variables, working directory and files of one program of several, or of each job of a measurement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProcessArgs {
    /// Set this variable for its ranks: NAME=VALUE, or NAME to pass on its value here
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,

    /// Run in this directory, which its hosts must have
    #[arg(long, value_name = "DIR")]
    pub(crate) wdir: Option<PathBuf>,

    /// Copy this file to its hosts; arguments that name it are replaced by the copy's path
    #[arg(long = "copy", alias = "preload", value_name = "FILE", value_parser = values::path())]
    pub(crate) preload: Vec<PathBuf>,
}

/// Values of `--mpi`.
const MPI: &[(&str, MpiInterfaces)] = &[
    ("auto", MpiInterfaces::Auto),
    ("pmix", MpiInterfaces::Pmix),
    ("pmi1", MpiInterfaces::Pmi1),
    ("none", MpiInterfaces::None),
];

/// Values of `--singleton`.
const SINGLETON: &[(&str, SingletonPolicy)] = &[
    ("error", SingletonPolicy::Error),
    ("warn", SingletonPolicy::Warn),
    ("ignore", SingletonPolicy::Ignore),
];

/// Timeouts, restarts and what a failed rank means for the others.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TerminationArgs {
    /// Time that ranks have between TERM and KILL, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "5", help_heading = "The end")]
    #[arg(value_parser = values::parse_seconds)]
    pub(crate) kill_after: Duration,

    /// Give up a host that has been silent for this time, in seconds (6)
    ///
    /// A host gives up a silent rlaunch after the same time, and ends its ranks. Without this option it waits 30 s if the
    /// machine of rlaunch still answers: rlaunch is stopped, or gets no CPU. Set it higher for machines that are
    /// slow or suspended for a while, for example while they are migrated.
    #[arg(long, value_name = "SECONDS", help_heading = "The end")]
    #[arg(value_parser = values::parse_node_timeout)]
    pub(crate) node_timeout: Option<Duration>,

    /// End the job after this time, in seconds, with exit code 124
    #[arg(long, value_name = "SECONDS", help_heading = "The end")]
    #[arg(value_parser = values::parse_timeout)]
    pub(crate) timeout: Option<Duration>,

    /// End the job, with exit code 124, if it makes no progress for this time, in seconds
    ///
    /// No progress means that no rank prints anything, and that each rank uses no CPU or spins in a wait. The report
    /// names the ranks that the others wait for and where each is. See `rlaunch help running`.
    #[arg(long, value_name = "SECONDS", help_heading = "The end")]
    #[arg(value_parser = values::parse_hang_timeout)]
    pub(crate) hang_timeout: Option<Duration>,

    /// Report where all ranks are: after --hang-timeout in place of ending the job, at --timeout before it ends
    #[arg(long, help_heading = "The end")]
    pub(crate) hang_report: bool,

    /// Name ranks that were slower than the others over this time, in seconds
    ///
    /// They are compared by the time that they wait in rlaunch's communicator, or by the speed that each prints, such as
    /// `812 images/s`. See `rlaunch help running`.
    #[arg(long, value_name = "SECONDS", help_heading = "The end")]
    #[arg(value_parser = values::parse_hang_timeout)]
    pub(crate) straggler_report: Option<Duration>,

    /// Run this line in a shell here when the job is over, for at most 10 s
    ///
    /// It has RLAUNCH_JOB (the id), RLAUNCH_EXIT_CODE, RLAUNCH_DURATION (whole seconds) and RLAUNCH_MESSAGE (the error; empty
    /// after a success) in its environment.
    #[arg(long, value_name = "CMD", help_heading = "The end")]
    pub(crate) notify: Option<String>,

    /// mpirun's option for the stacks of all ranks at --timeout
    #[arg(long, requires = "timeout", hide = true)]
    pub(crate) get_stack_traces: bool,

    /// mpirun's option for the state of all ranks at --timeout
    #[arg(long, requires = "timeout", hide = true)]
    pub(crate) report_state_on_timeout: bool,

    /// Restart all ranks, N times at most, when a rank fails or a host is lost
    ///
    /// The next attempt begins once all processes of the last one have ended. It has a new MASTER_PORT, and its number
    /// in TORCHELASTIC_RESTART_COUNT. --timeout is for each attempt; only the first one reads stdin.
    #[arg(long, value_name = "N", help_heading = "The end")]
    pub(crate) max_restarts: Option<u32>,

    /// Let the other ranks run on when one fails; the exit code is still that of the first to fail
    #[arg(long, help_heading = "The end")]
    pub(crate) continue_on_error: bool,

    /// End the job, with the rank's exit code, as soon as any rank exits: the programs are services
    #[arg(long, conflicts_with = "continue_on_error", help_heading = "Several programs")]
    pub(crate) serve: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use proptest::prelude::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        ProgramArgs::command().debug_assert();
    }

    #[test]
    fn a_colon_of_its_own_begins_another_program() {
        let parts = split_programs(&words("rlaunch -H a -np 1 x a:b : -np 2 y \\: : z"));
        assert_eq!(parts, [words("rlaunch -H a -np 1 x a:b"), words("-np 2 y :"), words("z")]);
        assert_eq!(split_programs(&words("x \\\\: \\ a\\: \\a:")), [words("x \\: \\ a\\: \\a:")]);
    }

    proptest! {
        #[test]
        fn any_words_can_be_typed(programs in prop::collection::vec(
            prop::collection::vec("[\\\\:a-]{0,4}", 1..4), 1..4,
        )) {
            let escape = |word: &String| match word.trim_start_matches('\\') {
                ":" => OsString::from(format!("\\{word}")),
                _ => OsString::from(word),
            };
            let typed: Vec<Vec<OsString>> =
                programs.iter().map(|words| words.iter().map(escape).collect()).collect();
            let parts = split_programs(&typed.join(&OsString::from(":")));
            prop_assert_eq!(parts, programs.into_iter().map(|words| {
                words.into_iter().map(OsString::from).collect::<Vec<_>>()
            }).collect::<Vec<_>>());
        }
    }
}
