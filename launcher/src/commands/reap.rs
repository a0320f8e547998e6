//! `rlaunch reap`: ends processes that a job left behind on its hosts.

use super::{agent_session, found};
use crate::cli::args::{ConnectArgs, HostListArgs, values};
use crate::cli::command_line::CommandLine;
use clap::Parser;
use rlaunch_bootstrap::protocol::housekeeping::{CleanupReport, HostJobs};
use rlaunch_console::stdout;
use rlaunch_engine::connect::agent::store::AGENT;
use rlaunch_engine::connect::connector::Container;
use rlaunch_engine::run::record;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;

/// Length of a whole id.
const ID_DIGITS: usize = 32;

/// End processes that a job left behind on its hosts, if its agents could not.
///
/// `rlaunch reap JOB -H a,b` ends those of one job there, `rlaunch reap --all -H a,b` those of all your jobs.
/// Processes of a job have the job's id in their environment; no others are ended. It can be repeated without harm.
#[derive(Debug, Parser)]
#[command(version, display_name = "rlaunch reap")]
pub(crate) struct ReapArgs {
    /// Name or id of the job, or the beginning of either; hosts know ids alone (`rlaunch jobs -H a,b`)
    #[arg(value_name = "JOB", required_unless_present = "all", value_parser = values::parse_job_word)]
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
        let hint = "without --image and --container it ends processes on the hosts, also those in containers";
        return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
    }
    let words = match &args.job {
        Some(job) => format!("reap {}", full_id(job, &args, line).await?),
        None => "reap all".to_owned(),
    };
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

/// Returns the whole id of the job that is meant. Jobs that were started on this machine are known here; others are those
/// that have processes on the hosts.
async fn full_id(job: &str, args: &ReapArgs, line: &CommandLine) -> Result<String, Failed> {
    if is_whole(job) {
        return Ok(job.to_owned());
    }
    if let Some(id) = found::find_id(job).await? {
        return Ok(id);
    }
    let connect = args.connect.clone();
    let answers = agent_session::query_hosts(&args.hosts, connect, &line.config, "jobs").await?;
    let (mut ids, mut failures) = (Vec::new(), Vec::new());
    for (host, answer) in answers {
        let host = host.to_string();
        match answer.and_then(|answer| agent_session::decode::<HostJobs>(&answer, &host)) {
            Ok(jobs) => ids.extend(jobs.0.into_iter().map(|job| job.job)),
            Err(failed) => failures.push(failed),
        }
    }
    if let Some(id) = only_one(job, ids)? {
        return Ok(id);
    }
    agent_session::conclude(failures)?;
    let message = format!("no job {job} is known here, or has processes there");
    let hint = "`rlaunch reap` with the whole id, 32 digits, also removes files of a job without processes";
    Err(Failed::new(Exit::USAGE, message).hint(Some(hint)))
}

/// Tells whether a text is a whole id.
fn is_whole(id: &str) -> bool {
    id.len() == ID_DIGITS && record::begins_id(id)
}

/// Returns the only id that begins with `job`; `None` if there is none.
fn only_one(job: &str, mut ids: Vec<String>) -> Result<Option<String>, Failed> {
    let begin = job.to_ascii_lowercase();
    // Hosts may answer anything, and the id goes to their agents.
    ids.retain(|id| id.starts_with(&begin) && is_whole(id));
    ids.sort_unstable();
    ids.dedup();
    match ids.as_slice() {
        [] => Ok(None),
        [id] => Ok(Some(id.clone())),
        several => {
            let message =
                format!("{job} begins the ids of {}: {}", several.len(), text::list(several));
            Err(Failed::new(Exit::USAGE, message).hint(Some("give more of the id")))
        }
    }
}

/// Returns the agent's report, which is the last line of its output. Fails if there is none, or if processes
/// are left.
fn parse_report(answer: &[u8], host: &str) -> Result<String, Failed> {
    let text = String::from_utf8_lossy(answer);
    let failed = |cause: String| Failed::new(Exit::HOST, format!("{host}: {cause}"));
    let last = text.lines().last().ok_or_else(|| failed(format!("no output of {AGENT}")))?;
    match last.parse() {
        Ok(CleanupReport::Clean { unasked, .. }) if !unasked.is_empty() => {
            let failed = failed(last.to_owned());
            Err(failed.hint(Some("containers of the job may be left: the same command removes them once the engine answers")))
        }
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
    fn the_beginning_of_an_id_means_one_job() {
        let id = |begin: &str| format!("{begin:0<32}");
        let ids = || vec![id("0199f3a2"), id("0199f3b7"), id("0199f3a2"), "0199f3c".to_owned()];
        assert_eq!(only_one("0199F3A", ids()).unwrap(), Some(id("0199f3a2")));
        assert_eq!(only_one("0199f4", ids()).unwrap(), None);
        assert_eq!(only_one("0199f3c", ids()).unwrap(), None);
        let failed = only_one("0199f3", ids()).unwrap_err();
        assert!(failed.message.starts_with("0199f3 begins the ids of 2: "), "{failed:?}");
    }

    #[test]
    fn a_line_of_another_program_is_no_success() {
        let words = parse_report(b"Welcome!\n2 ended, 0 segments removed\n", "a").unwrap();
        assert_eq!(words, "2 ended, 0 segments removed");
        for (line, cause) in [
            ("left: 7 x (state D)", "a: could not end 7 x (state D)"),
            (
                "0 ended, 0 segments removed; docker: may have some left: it is silent",
                "a: 0 ended, 0 segments removed; docker: may have some left: it is silent",
            ),
            ("logout", "a: no report of rlaunch-worker, but \"logout\""),
        ] {
            assert_eq!(parse_report(line.as_bytes(), "a").unwrap_err().message, cause);
        }
    }
}
