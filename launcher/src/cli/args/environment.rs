//! Options for the variables, the working directory and the files of ranks.

use clap::ArgAction;
use rlaunch_bootstrap::job::{MpiInterfaces, SingletonPolicy};
use std::ffi::OsString;
use std::path::PathBuf;

/// Variables, working directory and files of a job's ranks.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EnvironmentArgs {
    /// Set this variable for every rank
    ///
    /// NAME=VALUE; NAME to pass on its value here; or 'NAME*' for all variables whose names begin so. The rest
    /// of this shell's environment is passed on as well, except variables of one host or of another launch.
    #[arg(
        short = 'x', long = "env", value_name = "NAME[=VALUE]", action = ArgAction::Append,
        help_heading = "The program"
    )]
    pub(crate) env: Vec<OsString>,

    /// Set the variables of this file, with a line NAME=VALUE for each, as docker and dotenv have them; -x
    /// overrides it
    #[arg(long, value_name = "FILE", action = ArgAction::Append, help_heading = "The program")]
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
    /// Without it ranks run in this shell's directory, or in the home directory on hosts that lack it.
    #[arg(long, value_name = "DIR", help_heading = "The program")]
    pub(crate) wdir: Option<PathBuf>,

    /// Copy this file to every host for the job
    ///
    /// Arguments that name it are replaced by the copy's path.
    #[arg(long, value_name = "FILE", action = ArgAction::Append, help_heading = "The program")]
    pub(crate) preload: Vec<PathBuf>,

    /// How MPI programs find their ranks: `pmix` (Open MPI), `pmi1` (MPICH, Intel MPI) or `none`
    ///
    /// `auto` goes by the MPI library that a program is linked with, and offers both to other
    /// programs, such as scripts.
    #[arg(
        long,
        value_name = "auto|pmix|pmi1|none",
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "The program"
    )]
    pub(crate) mpi: MpiArg,

    /// Reaction to several ranks that each run MPI as rank 0 of 1, of a library that is not served
    #[arg(
        long,
        value_name = "error|warn|ignore",
        default_value = "error",
        hide_possible_values = true,
        help_heading = "The program"
    )]
    pub(crate) singleton: SingletonArg,
}

/// Variables, working directory and files of one program of several, or of each job of a measurement.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ProcessArgs {
    /// Set this variable for its ranks: NAME=VALUE, or NAME to pass on its value here
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", action = ArgAction::Append)]
    pub(crate) env: Vec<OsString>,

    /// Run in this directory, which its hosts must have
    #[arg(long, value_name = "DIR")]
    pub(crate) wdir: Option<PathBuf>,

    /// Copy this file to its hosts; arguments that name it are replaced by the copy's path
    #[arg(long, value_name = "FILE", action = ArgAction::Append)]
    pub(crate) preload: Vec<PathBuf>,
}

/// Value of `--mpi`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum MpiArg {
    Auto,
    Pmix,
    Pmi1,
    None,
}

impl From<MpiArg> for MpiInterfaces {
    fn from(value: MpiArg) -> MpiInterfaces {
        match value {
            MpiArg::Auto => MpiInterfaces::Auto,
            MpiArg::Pmix => MpiInterfaces::Pmix,
            MpiArg::Pmi1 => MpiInterfaces::Pmi1,
            MpiArg::None => MpiInterfaces::None,
        }
    }
}

/// Value of `--singleton`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum SingletonArg {
    Error,
    Warn,
    Ignore,
}

impl From<SingletonArg> for SingletonPolicy {
    fn from(value: SingletonArg) -> SingletonPolicy {
        match value {
            SingletonArg::Error => SingletonPolicy::Error,
            SingletonArg::Warn => SingletonPolicy::Warn,
            SingletonArg::Ignore => SingletonPolicy::Ignore,
        }
    }
}
