//! `rlaunch reap`: ends processes that a job left behind on its hosts.

use super::agent_session;
use crate::cli::args::{ConnectArgs, HostListArgs, values};
use crate::cli::command_line::CommandLine;
use clap::Parser;
use rlaunch_bootstrap::protocol::housekeeping::CleanupReport;
use rlaunch_console::stdout;
use rlaunch_engine::connect::agent::store::AGENT;
use rlaunch_engine::connect::connector::Container;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;

/// End processes that a job left behind on its hosts, if its agents could not.
///
/// `rlaunch reap JOB -H a,b` ends those of one job there, `rlaunch reap --all -H a,b` those of all your jobs.
/// Processes of a job have the job's id in their environment; no others are ended. It can be repeated without harm.
#[derive(Debug, Parser)]
#[command(version, display_name = "rlaunch reap")]
pub(crate) struct ReapArgs {
    /// Id of the job, as in RLAUNCH_JOB_ID and in events
    #[arg(value_name = "JOB", required_unless_present = "all", value_parser = values::parse_job_id)]
    pub(crate) job: Option<String>,

    /// All your jobs on these hosts, also those that are running
    #[arg(long, conflicts_with = "job")]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) hosts: HostListArgs,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Runs the agent's `reap` on all hosts at once, and prints a line for each host.
pub(super) async fn run(args: ReapArgs, line: &CommandLine) -> Result<Exit, Failed> {
    if args.connect.container.as_ref().is_some_and(Container::is_image) {
        let message = "a container that is started from an image ends with its job";
        let hint = "without --container it ends processes on the hosts, also those in containers";
        return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    }
    let words = format!("reap {}", args.job.as_deref().unwrap_or("all"));
    let answers =
        agent_session::query_hosts(&args.hosts, args.connect, &line.config, &words).await?;
    let mut failures = Vec::new();
    for (host, answer) in answers {
        match answer.and_then(|answer| parse_report(&answer, &host.to_string())) {
            Ok(words) => stdout::print(&format!("{host}: {words}\n")),
            Err(failed) => failures.push(failed),
        }
    }
    agent_session::conclude(failures)
}

/// Returns the agent's report, which is the last line of its output. Fails if there is none, or if processes
/// are left.
fn parse_report(answer: &[u8], host: &str) -> Result<String, Failed> {
    let text = String::from_utf8_lossy(answer);
    let failed = |cause: String| Failed::new(Exit::HOST, format!("{host}: {cause}"));
    let last = text.lines().last().ok_or_else(|| failed(format!("no output of {AGENT}")))?;
    match last.parse() {
        Ok(clean @ CleanupReport::Clean { .. }) => Ok(clean.to_string()),
        Ok(CleanupReport::Remaining(processes)) => {
            Err(failed(format!("could not end {processes}")))
        }
        Err(_) => Err(failed(format!("no report of {AGENT}, but {last:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_another_program_is_no_success() {
        let words = parse_report(b"Welcome!\n2 ended, 0 segments removed\n", "a").unwrap();
        assert_eq!(words, "2 ended, 0 segments removed");
        for (line, cause) in [
            ("left: 7 x (state D)", "a: could not end 7 x (state D)"),
            ("logout", "a: no report of rlaunch-worker, but \"logout\""),
        ] {
            assert_eq!(parse_report(line.as_bytes(), "a").unwrap_err().message, cause);
        }
    }
}
