//! `rlaunch fetch`: files of hosts to this machine.

use super::progress::amount;
use super::push::{GroupReport, count, how_fast, json, names};
use super::sources::shown;
use super::{Copied, CopyArgs, FileCopy, Way, conclude};
use crate::cli::args::values;
use crate::cli::command_line::CommandLine;
use clap::Parser;
use rlaunch_console::stdout;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::path::{Path, PathBuf};

/// Bring files and directories from hosts.
///
/// PATH of each host comes into a directory of the host's name below DIR, which is this directory without DIR. A relative
/// PATH begins in the home directory. What is here already is not sent again, and what is only here stays.
#[derive(Debug, Parser)]
#[command(
    override_usage = "rlaunch fetch -H HOST,... [OPTIONS] PATH [DIR]",
    after_help = "\
Examples:
  rlaunch fetch -H a,b /var/log/app      a/app and b/app
  rlaunch fetch -H a,b runs/7 results    results/a/7 and results/b/7

rlaunch help copy explains more."
)]
pub(crate) struct FetchArgs {
    /// File or directory of the hosts
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// Directory of this machine that gets a directory for each host
    #[arg(
        value_name = "DIR", default_value = ".", value_parser = values::path(),
        value_hint = clap::ValueHint::DirPath
    )]
    pub(crate) directory: PathBuf,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

/// Copies, and prints a line.
pub(crate) async fn run_fetch(args: FetchArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let destination = destination(&args.directory)?;
    let paths = vec![args.path.clone()];
    let copy = FileCopy {
        way: Way::Fetch { paths: paths.clone(), destination: destination.clone() },
        args: args.copy,
    };
    let mut left_out = Vec::new();
    let explained = |failed: Failed| failed.hint(place_hint(&args.path));
    let copied = super::run(&copy, &line.config, &mut left_out).await.map_err(explained)?;
    if copy.args.json {
        let seconds = copied.seconds;
        let report = GroupReport { paths, destination, hosts: copied.hosts };
        stdout::print(&json(&[report], seconds, &left_out)?);
    } else {
        stdout::print(&format!("{}\n", fetched(&copied, &args.directory)));
    }
    conclude(&left_out, true).map_err(explained)
}

/// Says which path of hosts a relative one is, since ranks that are started here run in another directory.
fn place_hint(path: &str) -> Option<String> {
    let is_relative = !path.starts_with(['/', '~']);
    let here = std::env::current_dir().ok().filter(|_| is_relative)?.join(path);
    let here = shown(here.as_os_str());
    Some(format!("{path} begins in the home directory of hosts; that of this directory is {here}"))
}

/// Returns the directory as an absolute path: a relative one would begin in the home directory.
fn destination(directory: &Path) -> Result<String, Failed> {
    let absolute = std::path::absolute(directory).map_err(|error| {
        Failed::new(Exit::FILES, format!("where is {}? {error}", directory.display()))
    })?;
    let text = absolute.to_str().map(str::to_owned);
    text.ok_or_else(|| Failed::new(Exit::USAGE, format!("{} is not UTF-8", absolute.display())))
}

/// Formats the line at the end: `fetched 4 files, 12 MB from a, b into results in 0.8 s (15 MB/s)`.
fn fetched(copied: &Copied, directory: &Path) -> String {
    let sum = |number: fn(&super::HostCopy) -> u64| copied.hosts.iter().map(number).sum::<u64>();
    let (files, bytes) = (sum(|host| host.files), sum(|host| host.bytes));
    let how = how_fast(bytes, sum(|host| host.received).min(bytes), copied.seconds);
    let (count, size, hosts) = (count(files), amount(bytes), names(copied));
    let (into, seconds) = (shown(directory.as_os_str()), copied.seconds);
    format!("fetched {count}, {size} from {hosts} into {into} in {seconds:.1} s{how}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::copy::HostCopy;

    #[test]
    fn the_last_line_counts_all_hosts() {
        let host = |name: &str| HostCopy {
            host: name.into(),
            files: 2,
            bytes: 6_000_000,
            received: 6_000_000,
            root: String::new(),
        };
        let copied = Copied { hosts: vec![host("a"), host("b")], seconds: 0.8 };
        let line = "fetched 4 files, 12 MB from a, b into results in 0.8 s (15 MB/s)";
        assert_eq!(fetched(&copied, Path::new("results")), line);
        let into = fetched(&copied, Path::new("x\n\x1b[2J"));
        assert!(into.contains(r"into $'x\n\x1b[2J' in"), "{into:?}");
    }

    #[test]
    fn a_directory_is_that_of_this_shell() {
        let args = FetchArgs::try_parse_from(["fetch", "-H", "a", "x"]).unwrap();
        let here = std::env::current_dir().unwrap();
        assert_eq!(destination(&args.directory).unwrap(), here.to_str().unwrap());
        assert!(FetchArgs::try_parse_from(["fetch", "-H", "a"]).is_err());
    }
}
