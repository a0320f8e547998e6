//! Verbs about the files that rlaunch sends to hosts: `rlaunch version` (this build, and these files), `pack` (a launcher that
//! carries them) and `cache` (what hosts keep of them between jobs).

use super::agent_session;
use crate::cli::args::{ConnectArgs, HostListArgs};
use crate::cli::command_line::CommandLine;
use clap::Parser;
use rlaunch_bootstrap::protocol::control::PROTOCOL_VERSION;
use rlaunch_bootstrap::protocol::housekeeping::{
    CacheReport, CachedDirectory, CachedKind, CachedState,
};
use rlaunch_console::{messages, stdout};
use rlaunch_engine::connect::agent::bundle::Bundle;
use rlaunch_engine::connect::agent::host_file::HostFile;
use rlaunch_engine::connect::agent::library;
use rlaunch_engine::connect::agent::pack::pack;
use rlaunch_engine::connect::agent::store::{self, AgentStore, AgentStoreError};
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Architectures of hosts, as in `uname -m`.
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

/// Print the version, with -v the files for hosts
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch version        the version
  rlaunch version -v     which agent, prover and library hosts get, by architecture, with their SHA-256")]
pub(crate) struct VersionArgs {
    /// Print the files that are sent to hosts: where each is, its size and its SHA-256
    #[arg(short, long)]
    pub(crate) verbose: bool,

    /// The agent's executable, as for a job
    #[arg(long, value_name = "PATH")]
    pub(crate) agent: Option<PathBuf>,
}

/// Prints the version and, if asked, the files.
pub(super) fn run_version(args: &VersionArgs) -> Result<Exit, Failed> {
    let mut text = format!("rlaunch {}\n", env!("CARGO_PKG_VERSION"));
    if args.verbose {
        // The searches below report files that cannot be read as missing.
        Bundle::own().map_err(|error| {
            let error = AgentStoreError::of_bundle(error);
            Failed::from_error(Exit::FILES, &error).hint(error.hint())
        })?;
        let arch = std::env::consts::ARCH;
        let _ = writeln!(text, "for {arch}, protocol {PROTOCOL_VERSION}");
        ARCHITECTURES.iter().for_each(|arch| text += &files_for(args, arch));
    }
    stdout::print(&text);
    Ok(Exit::SUCCESS)
}

/// Describes the files for hosts of an architecture, a line each.
fn files_for(args: &VersionArgs, arch: &str) -> String {
    let agent = args.agent.as_deref();
    let beside = |name| (name, store::beside_agent(name, agent, arch).ok().map(describe_file));
    let programs = [
        (store::AGENT, AgentStore::new(args.agent.clone()).for_arch(arch).ok().map(describe_file)),
        beside(store::PROVER),
        beside(store::STACK_READER),
        beside(store::COPIER),
        beside(store::BENCH),
        (library::SHARED, library::place_of(agent, arch)),
    ];
    let mut text = format!("hosts of {arch}:\n");
    for (name, place) in programs {
        let place = place.unwrap_or_else(|| "none".to_owned());
        let _ = writeln!(text, "  {name:<15} {place}");
    }
    text
}

fn describe_file(file: impl AsRef<HostFile>) -> String {
    let file = file.as_ref();
    format!("{file} ({}, sha256 {})", text::mib(file.size), file.sha256)
}

/// Write a copy of rlaunch that carries the files for hosts
///
/// Agents, provers, the programs of `rlaunch bench` and `rlaunch push` and the libraries for ranks are appended to the executable as a zip
/// archive, so that nothing needs to lie beside it. Files beside rlaunch and those of --agent are still used first.
#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rlaunch pack -o ~/bin/rlaunch       what lies in lib/rlaunch beside this rlaunch
  unzip -l ~/bin/rlaunch              list what it carries; rlaunch version -v, with digests")]
pub(crate) struct PackArgs {
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Directory that has lib/rlaunch/TRIPLE; by default that of this rlaunch
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) files: Option<PathBuf>,

    /// Launcher to copy, perhaps for another architecture; by default this one
    #[arg(long, value_name = "FILE")]
    pub(crate) launcher: Option<PathBuf>,
}

/// Writes the launcher, and prints what it carries.
pub(super) fn run_pack(args: PackArgs) -> Result<Exit, Failed> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| Failed::new(Exit::BUG, format!("where is rlaunch? {error}")))?;
    let launcher = args.launcher.unwrap_or_else(|| own.clone());
    let files = args.files.or_else(|| own.parent().map(PathBuf::from)).unwrap_or_default();
    let packed = pack(&launcher, &files, &args.output);
    let index =
        packed.map_err(|error| Failed::from_error(Exit::FILES, &error).hint(error.hint()))?;
    let size = std::fs::metadata(&args.output).map_or(0, |found| found.len());
    let programs = text::count(index.programs.len(), "program");
    let libraries: Vec<&String> = index.libraries.keys().collect();
    let libraries = match libraries[..] {
        [] => "no library for ranks".to_owned(),
        _ => format!("the library for ranks on {}", text::list(&libraries)),
    };
    let output = args.output.display();
    messages::info(&format!("{output} ({}) carries {programs}, {libraries}", text::mib(size)));
    Ok(Exit::SUCCESS)
}

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
  rlaunch cache --clean           on the hosts of rlaunch.toml, or this machine")]
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
pub(super) async fn run_cache(args: CacheArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let CacheArgs { hosts, clean, connect } = args;
    let reports: Vec<(Host, Result<CacheReport, Failed>)> = if clean {
        agent_session::query_hosts_together(&hosts, connect, &line.config, "cache clean").await?
    } else {
        let answers = agent_session::query_hosts(&hosts, connect, &line.config, "cache").await?;
        let decode = |(host, answer): (Host, agent_session::Answer)| {
            let name = host.to_string();
            (host, answer.and_then(|answer| agent_session::decode::<CacheReport>(&answer, &name)))
        };
        answers.into_iter().map(decode).collect()
    };
    let mut failures = Vec::new();
    for (host, report) in reports {
        let host = host.to_string();
        match report {
            Ok(report) => {
                stdout::print(&describe_cache(&host, &report));
                failures.extend(report.0.iter().filter_map(|found| failure(&host, found)));
            }
            Err(failed) => failures.push(failed),
        }
    }
    agent_session::conclude(failures)
}

/// Formats the directories of a host.
fn describe_cache(host: &str, report: &CacheReport) -> String {
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
            CachedState::Idle => format!("not used for {}", text::age(found.idle)),
            CachedState::InUse => "in use".to_owned(),
            CachedState::Removed => "removed".to_owned(),
            CachedState::Failed(_) => "not removed".to_owned(),
        };
        let (size, path) = (text::mib(found.size), found.path.display());
        let _ = writeln!(lines, "{host}: {kind:<7} {size:>9}  {state}  {path}");
    }
    lines
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
    fn missing_files_are_said_to_be_missing() {
        let args = VersionArgs { verbose: true, agent: Some("/nonexistent".into()) };
        let said = files_for(&args, "x86_64");
        assert_eq!(said.lines().filter(|line| line.ends_with("none")).count(), 6, "{said}");
    }

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
        assert_eq!(describe_cache("a", &report), expected);
        let failed = failure("a", &report.0[1]).unwrap();
        assert_eq!(failed.message, "a: cannot remove /root/.cache/rlaunch/ab: busy");
        assert_eq!(describe_cache("b", &CacheReport::default()), "b: nothing\n");
    }
}
