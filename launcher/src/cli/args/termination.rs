//! When a job ends, and how.

use super::values;

/// When a job ends, and how.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EndArgs {
    /// How long ranks may take to end between TERM and KILL, in seconds
    #[arg(
        long, value_name = "SECONDS", default_value = "5", help_heading = "The end",
        value_parser = values::parse_seconds
    )]
    pub(crate) kill_after: std::time::Duration,

    /// Give up a host that is silent for so long, in seconds, as a host gives up an rlaunch and ends its
    /// ranks: more where machines are slow or stop for a while, as when they are migrated
    #[arg(
        long, value_name = "SECONDS", default_value = "6", help_heading = "The end",
        value_parser = values::parse_silence
    )]
    pub(crate) node_timeout: std::time::Duration,

    /// End the job after this many seconds, with exit code 124
    #[arg(
        long, value_name = "SECONDS", help_heading = "The end", value_parser = values::parse_timeout
    )]
    pub(crate) timeout: Option<std::time::Duration>,

    /// Begin again when a rank fails or a host is lost, at most so many times: all ranks, when all of
    /// the former attempt is gone, with a new MASTER_PORT, and how often that was in
    /// TORCHELASTIC_RESTART_COUNT. --timeout is for each attempt; what comes on stdin is for the
    /// first alone
    #[arg(long, value_name = "N", help_heading = "The end")]
    pub(crate) max_restarts: Option<u32>,

    /// Let the other ranks run when one fails; the exit code is still that of the first
    #[arg(long, help_heading = "The end")]
    pub(crate) continue_on_error: bool,

    /// The programs are services: when one of their ranks ends, the job does, with its exit code
    #[arg(long, conflicts_with = "continue_on_error", help_heading = "Several programs")]
    pub(crate) serve: bool,
}
