//! Options that choose a configuration file and a profile in it.

use std::path::PathBuf;

/// Sources of settings that are not on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Read defaults and hosts from this file, or from no file
    ///
    /// Without this option rlaunch reads ./rlaunch.toml (only its harmless keys before `rlaunch trust`), or
    /// else ~/.config/rlaunch/rlaunch.toml ($XDG_CONFIG_HOME/rlaunch). Keys are the long names of options. An
    /// option on the command line overrides its variable RLAUNCH_NAME, which overrides the file.
    #[arg(long, value_name = "FILE|none", help_heading = "Configuration")]
    pub(crate) cluster: Option<PathBuf>,

    /// Take [profile.NAME] of that file as well; it overrides [defaults]
    #[arg(long, value_name = "NAME", help_heading = "Configuration")]
    pub(crate) profile: Option<String>,
}
