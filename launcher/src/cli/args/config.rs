//! Which file defaults are taken from.

use crate::cli::config::Found;
use std::path::PathBuf;

/// What stands beside the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Read defaults and hosts from this file; otherwise from rlaunch.toml here, of which only
    /// harmless keys count before `rlaunch trust`, or from ~/.config/rlaunch/rlaunch.toml
    /// ($XDG_CONFIG_HOME/rlaunch); none reads no file. Keys are the long names of options. What is typed counts before RLAUNCH_NAME variables, and these before
    /// the file
    #[arg(long, value_name = "FILE|none", help_heading = "Configuration")]
    pub(crate) cluster: Option<PathBuf>,

    /// Take [profile.NAME] of that file as well, before its [defaults]
    #[arg(long, value_name = "NAME", help_heading = "Configuration")]
    pub(crate) profile: Option<String>,

    /// What of that counts.
    #[arg(skip)]
    pub(crate) found: Found,
}
