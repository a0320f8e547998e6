//! What the program finds: its environment, its directory, its files.

use clap::ArgAction;
use rlaunch_bootstrap::job::SingletonPolicy;
use std::ffi::OsString;
use std::path::PathBuf;

/// What the program is given.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProgramArgs {
    /// Give every rank this variable
    ///
    /// NAME=VALUE, NAME to take its value from here, or 'NAME*' for all whose names begin so. The rest of
    /// this shell's environment goes along, except what belongs to one host or another launch.
    #[arg(
        short = 'x', long = "env", value_name = "NAME[=VALUE]", action = ArgAction::Append,
        help_heading = "The program"
    )]
    pub(crate) env: Vec<OsString>,

    /// Give every rank the variables of this file, a line NAME=VALUE for each, as docker and dotenv
    /// have them; -x counts before it
    #[arg(long, value_name = "FILE", action = ArgAction::Append, help_heading = "The program")]
    pub(crate) env_file: Vec<PathBuf>,

    /// Leave this shell's environment here, but for what -x and --env-file name
    #[arg(long, help_heading = "The program")]
    pub(crate) no_env: bool,

    /// Ask the login shell on each host for PATH and the rest, as a login there has them; of this
    /// shell's environment goes along what a login does not set
    #[arg(long, help_heading = "The program")]
    pub(crate) login: bool,

    /// Run in this directory, which every host must have
    ///
    /// Without it ranks run in the directory of this shell where the host has it, else in the home directory.
    #[arg(long, value_name = "DIR", help_heading = "The program")]
    pub(crate) wdir: Option<PathBuf>,

    /// Copy this file to every host for the job
    ///
    /// Arguments that name it become the copy's path.
    #[arg(long, value_name = "FILE", action = ArgAction::Append, help_heading = "The program")]
    pub(crate) preload: Vec<PathBuf>,

    /// What to do when several ranks run MPI, which rlaunch does not serve: each would be rank 0
    /// of 1
    #[arg(
        long,
        value_name = "error|warn|ignore",
        default_value = "error",
        hide_possible_values = true,
        help_heading = "The program"
    )]
    pub(crate) singleton: SingletonArg,
}

/// What is started: the rest of the words.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CommandArgs {
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM",
        required = true
    )]
    pub(crate) argv: Vec<OsString>,
}

/// `--singleton`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum SingletonArg {
    Error,
    Warn,
    Ignore,
}

impl From<SingletonArg> for SingletonPolicy {
    fn from(typed: SingletonArg) -> SingletonPolicy {
        match typed {
            SingletonArg::Error => SingletonPolicy::Error,
            SingletonArg::Warn => SingletonPolicy::Warn,
            SingletonArg::Ignore => SingletonPolicy::Ignore,
        }
    }
}
