//! Conversion of the command line to a job: options, configuration files, other launchers' options,
//! schedulers.
//!
//! | files | subject |
//! |---|---|
//! | `command_line` | the steps from typed words to words that clap parses; parsing of a job |
//! | `args` | options, grouped for the verbs that share them |
//! | `compat` | translation of other launchers' options |
//! | `config` | settings from `rlaunch.toml` and from variables; trust in files |
//! | `host_selection`, `allocation` | the hosts of a job: from options, or allocated by a batch system or an MPIJob |
//! | `lower` | from parsed options to [`rlaunch_engine::run::job_run::Launch`], the job and the way to its hosts |

pub(crate) mod allocation;
pub(crate) mod args;
pub(crate) mod command_line;
pub(crate) mod compat;
pub(crate) mod config;
pub(crate) mod host_selection;
pub(crate) mod lower;
