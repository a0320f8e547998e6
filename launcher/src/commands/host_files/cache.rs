//! `rlaunch cache`: what hosts keep of rlaunch between jobs.

use crate::cli::args::{ConnectArgs, HostListArgs};
use crate::cli::command_line::CommandLine;
use crate::commands::agent_query;
use clap::Parser;
use rlaunch_bootstrap::protocol::housekeeping::{
    CacheReport, CachedDirectory, CachedKind, CachedState,
};
use rlaunch_console::stdout;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::fmt::Write as _;

/// List what hosts keep of rlaunch between jobs, or remove it.
///
/// Agents and libraries for ranks stay in ~/.cache/rlaunch, or in /tmp where the home directory takes no programs, so
/// that the next job starts at once. Each build has a directory of its own, named by its hash; those that were not used
/// for a week are removed when a new one arrives. An agent that was not there before is sent for this verb too.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch cache -H a,b            what a and b keep
  rlaunch cache -H a,b --clean    remove it, but for what a job is using
  rlaunch cache --clean           on this machine")]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    pub(crate) hosts: HostListArgs,

    /// Remove what no job is using
    #[arg(long)]
    pub(crate) clean: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Asks all hosts at once and prints a line for each directory. Fails if a host does not answer, or something could not
/// be removed.
pub(in crate::commands) async fn run(args: CacheArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let words = if args.clean { "cache clean" } else { "cache" };
    let answers = agent_query::query_hosts(&args.hosts, args.connect, &line.config, words).await?;
    let mut failures = Vec::new();
    for (host, answer) in answers {
        let host = host.to_string();
        match answer.and_then(|answer| agent_query::decode::<CacheReport>(&answer, &host)) {
            Ok(report) => {
                stdout::print(&describe(&host, &report));
                failures.extend(report.0.iter().filter_map(|found| failure(&host, found)));
            }
            Err(failed) => failures.push(failed),
        }
    }
    agent_query::conclude(failures)
}

/// Formats the directories of a host.
fn describe(host: &str, report: &CacheReport) -> String {
    if report.0.is_empty() {
        return format!("{host}: nothing\n");
    }
    let mut lines = String::new();
    for found in &report.0 {
        let kind = match found.kind {
            CachedKind::Agent => "agent",
            CachedKind::Library => "library",
        };
        let state = match &found.state {
            CachedState::Idle => format!("not used for {}", age(found.idle)),
            CachedState::InUse => "in use".to_owned(),
            CachedState::Removed => "removed".to_owned(),
            CachedState::Failed(_) => "not removed".to_owned(),
        };
        let (size, path) = (text::mib(found.size), found.path.display());
        let _ = writeln!(lines, "{host}: {kind:<7} {size:>9}  {state}  {path}");
    }
    lines
}

/// Formats a time in seconds, by its largest unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => "a minute".to_owned(),
        60..3600 => text::count((seconds / 60) as usize, "minute"),
        3600..86_400 => text::count((seconds / 3600) as usize, "hour"),
        _ => text::count((seconds / 86_400) as usize, "day"),
    }
}

fn failure(host: &str, found: &CachedDirectory) -> Option<Failed> {
    let CachedState::Failed(cause) = &found.state else { return None };
    let message = format!("{host}: cannot remove {}: {cause}", found.path.display());
    Some(Failed::new(Exit::FILES, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_became_of_a_directory() {
        let directory = |kind, idle, state| CachedDirectory {
            path: "/root/.cache/rlaunch/ab".into(),
            kind,
            size: 3 << 20,
            idle,
            state,
        };
        let report = CacheReport(vec![
            directory(CachedKind::Agent, 7200, CachedState::Idle),
            directory(CachedKind::Library, 90_000, CachedState::Failed("busy".into())),
        ]);
        let expected = "\
a: agent     3.0 MiB  not used for 2 hours  /root/.cache/rlaunch/ab
a: library   3.0 MiB  not removed  /root/.cache/rlaunch/ab
";
        assert_eq!(describe("a", &report), expected);
        let failed = failure("a", &report.0[1]).unwrap();
        assert_eq!(failed.message, "a: cannot remove /root/.cache/rlaunch/ab: busy");
        assert_eq!(describe("b", &CacheReport::default()), "b: nothing\n");
    }
}
