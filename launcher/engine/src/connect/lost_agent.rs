//! Cleanup on a host after its agent was lost. The command `rlaunch-worker reap` ends the ranks, and also
//! the agent if the agent hangs. The launcher runs the command over a second channel of the connection to
//! the host.

use crate::connect::channel::{AgentChannel, CommandStatus, Incoming};
use crate::connect::connector::{AgentLocation, CONTAINER_GONE, HostConnection, RemoteCommand};
use rlaunch_bootstrap::id::JobId;
use rlaunch_bootstrap::protocol::housekeeping;
use rlaunch_console::deadline;
use std::time::Duration;
use tokio::process::Command;

/// Time limit of the cleanup, in addition to the grace of the ranks.
const REAP_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for the first output of the cleanup if the agent was lost because nothing was received from it.
/// Without output in this time, the host counts as unreachable.
const FIRST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time, in addition to the ranks' grace, in which an agent that hangs may still end its ranks itself.
const AGENT_SLACK: Duration = Duration::from_millis(300);

/// Outcome of the cleanup on a host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CleanupOutcome {
    /// Nothing of the job is left on the host; contains the host's report.
    Clean(String),
    /// Some processes of the job could not be ended; contains their names.
    Left(String),
    /// The last line of the cleanup's output, contained here, is not a report.
    Unclear(String),
    /// The host did not answer.
    Unreachable,
}

/// Lost agent, with the data that the cleanup on its host needs.
pub(crate) struct LostAgent<'a> {
    /// Connection to the host; `None` if the host is this machine.
    pub route: Option<&'a HostConnection>,
    /// Location of the agent's executable on the host.
    pub agent: &'a AgentLocation,
    pub job: JobId,
    /// Process ids of the agent and of its guardian. The guardian may be cleaning up already.
    pub processes: [u32; 2],
    /// Time between SIGTERM and SIGKILL for the ranks.
    pub(crate) grace: Duration,
    /// Whether the agent was lost because nothing was received from it, although its channel stayed open.
    pub(crate) nothing_received: bool,
}

impl LostAgent<'_> {
    /// Ends the processes of the job on the host. The processes have the grace between SIGTERM and SIGKILL.
    /// If `kill_now` resolves first, a second cleanup kills the remaining processes without grace.
    pub(crate) async fn clean_up(&self, kill_now: impl Future<Output = ()>) -> CleanupOutcome {
        if self.route.is_some_and(|route| !route.is_open()) {
            return CleanupOutcome::Unreachable;
        }
        let grace = self.grace + AGENT_SLACK;
        let [agent, guardian] = self.processes;
        let reap =
            |grace: Duration| format!("reap {} {agent} {guardian} {}", self.job, grace.as_millis());
        let mut output = String::new();
        let command = reap(grace);
        let graceful = deadline::within(REAP_TIMEOUT + grace, self.run(&command, &mut output));
        let must_kill = tokio::select! {
            _ = graceful => false,
            () = kill_now => true,
        };
        if must_kill {
            output.clear();
            let command = reap(Duration::ZERO);
            let _ = deadline::within(REAP_TIMEOUT, self.run(&command, &mut output)).await;
        }
        parse_outcome(&output)
    }

    /// Runs the cleanup command `reap` and appends its stdout to `output`. Returns `None` if the command
    /// could not be run, or printed nothing in time.
    async fn run(&self, reap: &str, output: &mut String) -> Option<()> {
        let first_output_timeout =
            if self.nothing_received { FIRST_OUTPUT_TIMEOUT } else { REAP_TIMEOUT };
        let mut channel = deadline::within(first_output_timeout, self.open(reap)).await??;
        // For containers, the cleanup prints nothing until the container is gone, so its first output has
        // no time limit.
        let prints_at_once = self.route.is_none_or(|route| !route.starts_containers());
        let mut next = if prints_at_once {
            deadline::within(first_output_timeout, next_output(&mut channel)).await?
        } else {
            next_output(&mut channel).await
        };
        while let Some(more) = next {
            output.push_str(&more);
            next = next_output(&mut channel).await;
        }
        Some(())
    }

    async fn open(&self, reap: &str) -> Option<AgentChannel> {
        match self.route {
            Some(route) => route.clean_up(&RemoteCommand::Exec(self.agent, reap)).await.ok(),
            None => {
                let AgentLocation::At(agent) = self.agent else { return None };
                let mut command = Command::new(agent);
                command.args(reap.split(' '));
                AgentChannel::over_child(command, Some(CommandStatus::default())).ok()
            }
        }
    }
}

async fn next_output(channel: &mut AgentChannel) -> Option<String> {
    loop {
        if let Incoming::Data(bytes) = channel.next().await? {
            return Some(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// Parses the last line of the cleanup's output; earlier lines may be login banners.
fn parse_outcome(output: &str) -> CleanupOutcome {
    let Some(last) = output.lines().last() else { return CleanupOutcome::Unreachable };
    match last.parse() {
        Ok(clean @ housekeeping::CleanupReport::Clean { .. }) => {
            CleanupOutcome::Clean(clean.to_string())
        }
        Ok(housekeeping::CleanupReport::Remaining(processes)) => CleanupOutcome::Left(processes),
        Err(_) if last == CONTAINER_GONE => CleanupOutcome::Clean(last.to_owned()),
        Err(_) => CleanupOutcome::Unclear(last.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_words_say_that_nothing_is_left() {
        let clean = CleanupOutcome::Clean("2 ended, 1 segments removed".to_owned());
        assert_eq!(parse_outcome("Welcome!\nlooking\n2 ended, 1 segments removed\n"), clean);
        assert_eq!(
            parse_outcome("left: 7 x (state D)\n"),
            CleanupOutcome::Left("7 x (state D)".to_owned())
        );
        assert_eq!(
            parse_outcome("its container is gone\n"),
            CleanupOutcome::Clean(CONTAINER_GONE.to_owned())
        );
        for unclear in ["looking", "sh: 1: rlaunch-worker: not found", "This account is closed."] {
            assert_eq!(parse_outcome(unclear), CleanupOutcome::Unclear(unclear.to_owned()));
        }
        assert_eq!(parse_outcome(""), CleanupOutcome::Unreachable);
    }
}
