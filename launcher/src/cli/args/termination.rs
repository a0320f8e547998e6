//! Options that decide when and how a job ends.

use super::values;
use std::time::Duration;

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
