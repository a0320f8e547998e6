//! `rlaunch push`: files of this machine, or of one host, to hosts.

use super::image::{self, IMAGE, Wanted, take_engine};
use super::progress::amount;
use super::sources::{self, SourceGroup, shown};
use super::{Copied, CopyArgs, FileCopy, HostCopy, LeftOut, Way, conclude, kept};
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
  rlaunch push -H a,b image:vllm:0.11    a container image, into docker or podman
  rlaunch push -H a,b,c --from b /data/model   from b, which has it, to a and c
  rlaunch push -H a,b -n src             what would go, without hosts

rlaunch help copy explains more. The exit code is 206 if a host was lost, and 203 if one could not write the
files; the others have them then."
)]
pub(crate) struct PushArgs {
    /// File or directory, hf:ORG/MODEL or hf:ORG/MODEL@REVISION; behind a colon the directory that it goes into. Or
    /// image:NAME, for the container engines of hosts
    #[arg(value_name = "SRC[:DEST]", required_unless_present_any = ["list", "prune"], value_hint = clap::ValueHint::AnyPath)]
    pub(crate) sources: Vec<String>,

    /// Host that has the files, and sends them to the others
    #[arg(long, value_name = "HOST")]
    pub(crate) from: Option<String>,

    /// List the files, and copy none
    #[arg(short = 'n', long, conflicts_with = "from")]
    pub(crate) dry_run: bool,

    /// List what was copied to the hosts
    #[arg(long, conflicts_with_all = ["sources", "from", "dry_run"])]
    pub(crate) list: bool,

    /// Remove copies of working trees (--sync) of this machine that no job uses, but for what ranks have written there, and what copies
    /// have left unfinished
    #[arg(long, conflicts_with_all = ["sources", "from", "dry_run", "list"])]
    pub(crate) prune: bool,

    /// Remove it without a question
    #[arg(short = 'y', long, requires = "prune", conflicts_with = "sources")]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
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
    if args.list {
        return kept::list(&args.copy, &line.config).await;
    }
    if args.prune {
        return kept::prune(&args.copy, &line.config, args.yes).await;
    }
    let (images, files): (Vec<String>, Vec<String>) =
        args.sources.iter().cloned().partition(|word| word.starts_with(IMAGE));
    let groups = sources::groups(&files, args.from.as_deref())?;
    if args.dry_run {
        if let Some(image) = images.first() {
            let message = format!("it is known only when it is copied what of {image} hosts lack");
            let hint = "rlaunch images -H HOSTS shows which host has which";
            return Err(Failed::new(Exit::USAGE, message).hint(Some(hint)));
        }
        let hosts = args.copy.hosts.join(",").replace(',', ", ");
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
        let way = args.way(paths.clone(), destination.clone());
        let copy = FileCopy { way, args: args.copy.clone() };
        match super::run(&copy, &line.config, &mut left_out).await {
            Ok(copied) => {
                if !args.copy.json {
                    let files = copied.hosts.iter().map(|host| host.files).max().unwrap_or(0);
                    let line = pushed(&count(files), Some(&destination), &copied);
                    stdout::print(&format!("{line}\n"));
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
    for word in images {
        if stopped.is_some() {
            break;
        }
        match push_image(args, &word, line, &mut left_out).await {
            Ok((seconds_of_image, report)) => {
                seconds += seconds_of_image;
                reports.push(report);
            }
            Err(failed) => stopped = Some(failed),
        }
    }
    if args.copy.json {
        stdout::print(&json(&reports, seconds, &left_out)?);
    }
    stopped.map_or_else(|| conclude(&left_out, !files.is_empty()), Err)
}

/// Copies an image, and prints what came of it. Returns the seconds and the part of the output of `--json`.
async fn push_image(
    args: &PushArgs,
    word: &str,
    line: &CommandLine,
    left_out: &mut Vec<LeftOut>,
) -> Result<(f64, GroupReport), Failed> {
    let name = word.strip_prefix(IMAGE).unwrap_or(word);
    let mut copy = args.copy.clone();
    let engine = take_engine(&mut copy.connect);
    let wanted = Wanted { name, from: args.from.as_deref(), engine, hosts: None };
    let (copied, there) = image::push(wanted, &copy, &line.config, left_out).await?;
    if !args.copy.json {
        if !there.is_empty() {
            let hosts: Vec<&str> = there.iter().map(|host| host.host.as_str()).collect();
            let (word, hosts) = (shown(word.as_ref()), shown(text::list(&hosts).as_ref()));
            stdout::print(&format!("{word} was on {hosts}\n"));
        }
        if !copied.hosts.is_empty() {
            stdout::print(&format!("{}\n", pushed(&shown(word.as_ref()), None, &copied)));
        }
    }
    let Copied { mut hosts, seconds } = copied;
    hosts.extend(there);
    Ok((seconds, GroupReport { paths: vec![word.to_owned()], destination: "images".into(), hosts }))
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

/// Formats the line at the end: `pushed 12 files, 2.1 GB to ~/models on a, b, c in 9.8 s (184 MB/s; 300 MB were there)`.
fn pushed(what: &str, place: Option<&str>, copied: &Copied) -> String {
    let bytes = copied.hosts.iter().map(|host| host.bytes).max().unwrap_or(0);
    // The host that received most tells how much had to travel.
    let sent = copied.hosts.iter().map(|host| host.received).max().unwrap_or(0).min(bytes);
    let (size, hosts) = (amount(bytes), names(copied));
    let place = place.map_or(String::new(), |place| format!("{} on ", shown(place.as_ref())));
    let how = how_fast(bytes, sent, copied.seconds);
    format!("pushed {what}, {size} to {place}{hosts} in {:.1} s{how}", copied.seconds)
}

/// Lists the hosts of a copy, so that no name changes the terminal.
pub(super) fn names(copied: &Copied) -> String {
    let hosts: Vec<&str> = copied.hosts.iter().map(|host| host.host.as_str()).collect();
    shown(text::list(&hosts).as_ref())
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
        pushed("12 files", Some("/data"), &Copied { hosts: hosts.collect(), seconds: 9.84 })
    }

    #[test]
    fn the_last_line_says_what_was_sent_and_what_was_there() {
        let all = 2_100_000_000;
        assert_eq!(
            line(&[9]),
            "pushed 12 files, 2.1 GB to /data on a in 9.8 s (2.1 GB were there)"
        );
        assert_eq!(
            line(&[all, all]),
            "pushed 12 files, 2.1 GB to /data on a, b in 9.8 s (213 MB/s)"
        );
        assert_eq!(
            line(&[1_800_000_000, 0, 5]),
            "pushed 12 files, 2.1 GB to /data on a, b, c in 9.8 s (183 MB/s; 300 MB were there)"
        );
        let named = |name: &str| {
            let hosts = vec![HostCopy { host: name.into(), ..host("a", 0) }];
            pushed("12 files", None, &Copied { hosts, seconds: 1.0 })
        };
        let unsafe_name = named("a\x1b[2J\nb");
        assert!(!unsafe_name.contains(char::is_control), "{unsafe_name:?}");
        assert_eq!(line(&[0]), "pushed 12 files, 2.1 GB to /data on a in 9.8 s (all were there)");
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
        assert_eq!((args.sources.len(), args.copy.transfer.streams), (2, 2));
        assert_eq!(args.copy.transfer.limit, Some(100 << 20));
        assert!(matches!(args.way(Vec::new(), String::new()), Way::Push { .. }));
        let between = parse("-H a,b --from a /x").unwrap();
        assert!(matches!(between.way(Vec::new(), String::new()), Way::Between { .. }));
        assert!(parse("-H a --prune -y").unwrap().yes && parse("-H a --list").unwrap().list);
        for bad in ["-H a --list x", "-H a --list --prune", "-H a x -y"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for bad in ["-H a", "-H a x --streams 0", "-H a x --limit 0", "-H a x -n --from a"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
