//! `rlaunch push`: files of this machine, or of one host, to hosts.

use super::progress::amount;
use super::sources::{self, SourceGroup};
use super::{Copied, FileCopy, HostCopy, LeftOut, TransferArgs, Way, conclude};
use crate::cli::args::ConnectArgs;
use crate::cli::command_line::CommandLine;
use crate::commands::output;
use clap::Parser;
use rlaunch_console::stdout;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use serde::Serialize;

/// Version of the output of `--json`.
const VERSION: u32 = 1;

/// Copy files and directories to hosts.
///
/// SRC goes into the directory DEST of each host, by its own name. Without DEST it goes to the same directory as here,
/// below the home directory if it is below that. A relative DEST begins in the home directory. Hosts pass on to each other
/// what they receive, so that this machine sends everything once. What a host has already is not sent: files are
/// compared in parts of 1 MiB, and a changed one is replaced when it is whole. Files that are only on hosts stay.
#[derive(Debug, Parser)]
#[command(
    override_usage = "rlaunch push -H HOST,... [OPTIONS] SRC[:DEST]...",
    after_help = "\
Examples:
  rlaunch push -H a,b,c model            to the same place as here
  rlaunch push -H a,b,c model:/data      becomes /data/model
  rlaunch push -H a,b hf:org/model       a model of the Hugging Face cache, into theirs
  rlaunch push -H a,b,c --from b /data/model   from b, which has it, to a and c
  rlaunch push -H a,b -n src             what would go, without hosts

rlaunch help copy explains more. The exit code is 206 if a host was lost, and 203 if one could not write the
files; the others have them then."
)]
pub(crate) struct PushArgs {
    /// File or directory, hf:ORG/MODEL or hf:ORG/MODEL@REVISION; behind a colon the directory that it goes into
    #[arg(value_name = "SRC[:DEST]", required = true, value_hint = clap::ValueHint::AnyPath)]
    pub(crate) sources: Vec<String>,

    /// Hosts, as for a job
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    pub(crate) hosts: Vec<String>,

    /// Host that has the files, and sends them to the others
    #[arg(long, value_name = "HOST")]
    pub(crate) from: Option<String>,

    /// List the files, and copy none
    #[arg(short = 'n', long, conflicts_with = "from")]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,

    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// Output of `--json`.
#[derive(Serialize)]
pub(super) struct CopyReport<'a> {
    v: u32,
    seconds: f64,
    copies: &'a [GroupReport],
    /// Hosts whose files did not arrive.
    failed: Vec<FailedHost<'a>>,
}

/// What went to one directory.
#[derive(Serialize)]
pub(super) struct GroupReport {
    pub(super) paths: Vec<String>,
    pub(super) destination: String,
    pub(super) hosts: Vec<HostCopy>,
}

#[derive(Serialize)]
struct FailedHost<'a> {
    host: &'a str,
    why: &'a str,
}

/// Copies, and prints a line for each directory that files went to.
pub(crate) async fn run_push(args: &PushArgs, line: &CommandLine) -> Result<Exit, Failed> {
    let groups = sources::groups(&args.sources, args.from.as_deref())?;
    if args.dry_run {
        let hosts = args.hosts.join(",").replace(',', ", ");
        stdout::print(&sources::list(
            &groups,
            if hosts.is_empty() { "the hosts" } else { &hosts },
        )?);
        return Ok(Exit::SUCCESS);
    }
    let mut left_out = Vec::new();
    let (mut reports, mut seconds) = (Vec::new(), 0.0);
    let mut stopped = None;
    for SourceGroup { destination, paths } in groups {
        let copy = FileCopy {
            way: args.way(paths.clone(), destination.clone()),
            hosts: args.hosts.clone(),
            connect: args.connect.clone(),
            transfer: args.transfer.clone(),
        };
        match super::run(&copy, &line.config, &mut left_out).await {
            Ok(copied) => {
                if !args.json {
                    stdout::print(&format!("{}\n", pushed(&copied)));
                }
                seconds += copied.seconds;
                reports.push(GroupReport { paths, destination, hosts: copied.hosts });
            }
            Err(failed) => {
                stopped = Some(failed);
                break;
            }
        }
    }
    if args.json {
        stdout::print(&json(&reports, seconds, &left_out)?);
    }
    stopped.map_or_else(|| conclude(&left_out), Err)
}

impl PushArgs {
    fn way(&self, paths: Vec<String>, destination: String) -> Way {
        match &self.from {
            Some(from) => Way::Between { from: from.clone(), paths, destination },
            None => Way::Push { paths, destination },
        }
    }
}

/// Formats the output of `--json`.
pub(super) fn json(
    copies: &[GroupReport],
    seconds: f64,
    left_out: &[LeftOut],
) -> Result<String, Failed> {
    let failed = left_out.iter().map(|LeftOut { host, why, .. }| FailedHost { host, why });
    output::json(&CopyReport { v: VERSION, seconds, copies, failed: failed.collect() })
}

/// Formats the line at the end: `pushed 12 files, 2.1 GB to a, b, c in 9.8 s (184 MB/s; 300 MB were there)`.
fn pushed(copied: &Copied) -> String {
    let files = copied.hosts.iter().map(|host| host.files).max().unwrap_or(0);
    let bytes = copied.hosts.iter().map(|host| host.bytes).max().unwrap_or(0);
    // The host that received most tells how much had to travel.
    let sent = copied.hosts.iter().map(|host| host.received).max().unwrap_or(0).min(bytes);
    let hosts: Vec<&str> = copied.hosts.iter().map(|host| host.host.as_str()).collect();
    let (count, size) = (count(files), amount(bytes));
    let how = how_fast(bytes, sent, copied.seconds);
    format!("pushed {count}, {size} to {} in {:.1} s{how}", text::list(&hosts), copied.seconds)
}

pub(super) fn count(files: u64) -> String {
    text::count(usize::try_from(files).unwrap_or(usize::MAX), "file")
}

/// Bytes below which their rate is that of the start.
const TOO_FEW: u64 = 1_000_000;

/// Formats rate and what was there, in parentheses; nothing where there are no bytes, and no rate where they are few.
pub(super) fn how_fast(bytes: u64, sent: u64, seconds: f64) -> String {
    let there = bytes - sent;
    match (sent, there) {
        (0, 0) => String::new(),
        (0, _) => " (all were there)".to_owned(),
        (..TOO_FEW, 0) => String::new(),
        (..TOO_FEW, _) => format!(" ({} were there)", amount(there)),
        _ => {
            let rate = amount((sent as f64 / seconds.max(1e-3)) as u64);
            match there {
                0 => format!(" ({rate}/s)"),
                _ => format!(" ({rate}/s; {} were there)", amount(there)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, received: u64) -> HostCopy {
        let root = "/data".to_owned();
        HostCopy { host: name.into(), files: 12, bytes: 2_100_000_000, received, root }
    }

    fn line(received: &[u64]) -> String {
        let names = ["a", "b", "c"];
        let hosts = names.iter().zip(received).map(|(name, received)| host(name, *received));
        pushed(&Copied { hosts: hosts.collect(), seconds: 9.84 })
    }

    #[test]
    fn the_last_line_says_what_was_sent_and_what_was_there() {
        let all = 2_100_000_000;
        assert_eq!(line(&[9]), "pushed 12 files, 2.1 GB to a in 9.8 s (2.1 GB were there)");
        assert_eq!(line(&[all, all]), "pushed 12 files, 2.1 GB to a, b in 9.8 s (213 MB/s)");
        assert_eq!(
            line(&[1_800_000_000, 0, 5]),
            "pushed 12 files, 2.1 GB to a, b, c in 9.8 s (183 MB/s; 300 MB were there)"
        );
        assert_eq!(line(&[0]), "pushed 12 files, 2.1 GB to a in 9.8 s (all were there)");
    }

    #[test]
    fn json_names_hosts_that_failed() {
        let group = GroupReport {
            paths: vec!["/x".into()],
            destination: "/data".into(),
            hosts: vec![host("a", 7)],
        };
        let left_out =
            LeftOut { host: "b".into(), why: "b: full".into(), hint: None, exit: Exit::FILES };
        let text = json(&[group], 1.5, &[left_out]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["v"], &value["copies"][0]["hosts"][0]["received"]),
            (&1.into(), &7.into())
        );
        assert_eq!(value["failed"][0]["why"], "b: full");
    }

    fn parse(words: &str) -> Result<PushArgs, clap::Error> {
        PushArgs::try_parse_from(["push"].into_iter().chain(words.split(' ')))
    }

    #[test]
    fn options_are_read() {
        let args = parse("-H a,b x y:/data --limit 100M --streams 2 --plain").unwrap();
        assert_eq!((args.sources.len(), args.transfer.streams), (2, 2));
        assert_eq!(args.transfer.limit, Some(100 << 20));
        assert!(matches!(args.way(Vec::new(), String::new()), Way::Push { .. }));
        let between = parse("-H a,b --from a /x").unwrap();
        assert!(matches!(between.way(Vec::new(), String::new()), Way::Between { .. }));
        for bad in ["-H a", "-H a x --streams 0", "-H a x --limit 0", "-H a x -n --from a"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
