//! `rlaunch version`: this build, and the files that it sends to hosts.

use clap::Parser;
use rlaunch_bootstrap::protocol::control::PROTOCOL_VERSION;
use rlaunch_console::stdout;
use rlaunch_engine::connect::agent::bundle::Bundle;
use rlaunch_engine::connect::agent::host_file::HostFile;
use rlaunch_engine::connect::agent::library;
use rlaunch_engine::connect::agent::store::{self, AgentStore, AgentStoreError};
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
pub(in crate::commands) fn run(args: &VersionArgs) -> Result<Exit, Failed> {
    let mut text = format!("rlaunch {}\n", env!("CARGO_PKG_VERSION"));
    if args.verbose {
        // The searches below report files that cannot be read as missing.
        Bundle::own().map_err(|error| {
            let error = AgentStoreError::Bundle(error);
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
    let programs = [
        (store::AGENT, AgentStore::new(args.agent.clone()).for_arch(arch).ok().map(describe)),
        (store::PROVER, store::prover(agent, arch).ok().map(describe)),
        (store::STACK_READER, store::stack_reader(agent, arch).ok().map(describe)),
        (store::BENCH, store::bench(agent, arch).ok().map(describe)),
        (library::SHARED, library::place_of(agent, arch)),
    ];
    let mut text = format!("hosts of {arch}:\n");
    for (name, place) in programs {
        let place = place.unwrap_or_else(|| "none".to_owned());
        let _ = writeln!(text, "  {name:<15} {place}");
    }
    text
}

fn describe(file: impl AsRef<HostFile>) -> String {
    let file = file.as_ref();
    format!("{file} ({}, sha256 {})", text::mib(file.size), file.sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_are_said_to_be_missing() {
        let args = VersionArgs { verbose: true, agent: Some("/nonexistent".into()) };
        let said = files_for(&args, "x86_64");
        assert_eq!(said.lines().filter(|line| line.ends_with("none")).count(), 5, "{said}");
    }
}
