//! `rlaunch push` and `rlaunch fetch`: files to hosts, and from them.
//!
//! A copy is a job whose ranks, one on each host, are the program `rlaunch-copier`. One more of it runs on this machine: it
//! is the source of a push and the destination of a fetch. Bytes go from program to program and never through here; this
//! process starts them, tells them of each other, and shows what they report. A host that is lost ends the job, as any
//! job: the copy then goes on without that host, and what has arrived is not sent again.
//!
//! | file | subject |
//! |---|---|
//! | `push`, `fetch` | the verbs: options, and what they print at the end |
//! | `sync` | `--sync` of jobs: the working tree, before they start |
//! | `sources` | `SRC[:DEST]`: what goes where, and the list of a dry run |
//! | `image` | `image:NAME`: images of container engines |
//! | `images` | `rlaunch images`: which host has which |
//! | `kept` | `push --list` and `--prune`: what copies have put on hosts |
//! | `ask` | what hosts are asked by a job of the program that copies |
//! | `attempt`, `local` | a job, and the program on this machine, to their end |
//! | `reports` | what the programs report, and which host is to blame for a failure |
//! | `progress` | the line at a terminal |

mod ask;
mod attempt;
pub(crate) mod fetch;
pub(crate) mod image;
pub(crate) mod images;
mod kept;
mod local;
mod progress;
pub(crate) mod push;
mod reports;
mod sources;
pub(crate) mod sync;

use crate::cli::args::{ConnectArgs, values};
use crate::cli::config::LoadedConfig;
use attempt::{AttemptEnd, Origin};
use progress::Source;
use rlaunch_bootstrap::job::PortRange;
use rlaunch_console::messages;
use rlaunch_copy::control::{ImageCopy, Role, TreeLimit};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use rlaunch_text::typed::command_line;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Instant;

/// Options that a push and a fetch have in common.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CopyArgs {
    /// Hosts, as for a job
    #[arg(short = 'H', long = "host", visible_alias = "hosts", value_name = "HOST,...")]
    pub(crate) hosts: Vec<String>,

    #[command(flatten)]
    pub(crate) transfer: TransferArgs,

    /// Ports at which hosts wait for each other and for this machine
    #[arg(
        long, value_name = "FIRST-LAST", default_value = "21000-21511",
        value_parser = values::parse_port_range
    )]
    pub(crate) port_range: PortRange,

    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// How bytes travel.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TransferArgs {
    /// Do not encrypt the content of files on the way; it is checked by hashes all the same. For networks that nobody
    /// else can read
    #[arg(long)]
    pub(crate) plain: bool,

    /// Bytes per second that each host and this machine send at most, such as 100M; K, M and G are powers of 1024
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) limit: Option<u64>,

    /// Number of connections between two machines; more can fill a link for which one processor is too slow
    #[arg(
        long, value_name = "N", default_value = "4",
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub(crate) streams: u32,

    /// Read all files again at both ends when they have arrived, and compare
    #[arg(long)]
    pub(crate) verify: bool,
}

fn parse_rate(text: &str) -> Result<u64, String> {
    let rate = values::parse_bytes(text);
    rate.map_err(|_| format!("{text:?} is not a number of bytes per second, such as 100M or 1G"))
}

/// Copy of files, as a value.
#[derive(Clone, Debug)]
pub(crate) struct FileCopy {
    pub(crate) way: Way,
    pub(crate) args: CopyArgs,
}

/// Files of one host that have arrived.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HostCopy {
    pub(crate) host: String,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Bytes that came over the network, before the loss of another host too.
    pub(crate) received: u64,
    /// Directory that the files are in.
    pub(crate) root: String,
}

/// Host whose copy failed, while those of others went on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeftOut {
    pub(crate) host: String,
    pub(crate) why: String,
    pub(crate) hint: Option<String>,
    /// [`Exit::NODE_LOST`], or [`Exit::FILES`] if the host itself said why.
    pub(crate) exit: Exit,
}

/// Copy that has ended.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) hosts: Vec<HostCopy>,
    pub(crate) seconds: f64,
}

/// Copies files. Hosts that fail meanwhile are added to `left_out`, and those that are in it have no part. Fails if
/// nothing can be copied to or from any host.
pub(crate) async fn run(
    copy: &FileCopy,
    config: &LoadedConfig,
    left_out: &mut Vec<LeftOut>,
) -> Result<Copied, Failed> {
    let began = Instant::now();
    // What each host has received in the attempts so far.
    let mut received: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        let launch = Origin::of(&copy.args, config).launch_copy(&copy.way, left_out)?;
        let (end, arrived) = attempt::run(&copy.way, &copy.args.transfer, launch).await?;
        for (host, bytes) in arrived {
            *received.entry(host).or_default() += bytes;
        }
        match end {
            AttemptEnd::Complete { mut hosts, refused, .. } => {
                left_out.extend(refused);
                for host in &mut hosts {
                    host.received = received.get(&host.host).copied().unwrap_or(0);
                }
                return Ok(Copied { hosts, seconds: began.elapsed().as_secs_f64() });
            }
            AttemptEnd::Without { lost, rest } if rest.is_empty() => {
                left_out.push(lost);
                let is_image = matches!(copy.way, Way::Image { .. });
                return Err(failure_of(left_out, !is_image && received.values().any(|of| *of > 0)));
            }
            AttemptEnd::Without { lost, rest } => {
                messages::warn(&format!("{}; going on with {}", lost.why, text::list(&rest)));
                left_out.push(lost);
            }
        }
    }
}

/// Returns the exit code of a copy that has ended: an error that names the hosts whose files did not arrive, if any. What
/// has arrived there stays if `is_kept`.
fn conclude(left_out: &[LeftOut], is_kept: bool) -> Result<Exit, Failed> {
    if left_out.is_empty() { Ok(Exit::SUCCESS) } else { Err(failure_of(left_out, is_kept)) }
}

fn failure_of(left_out: &[LeftOut], is_kept: bool) -> Failed {
    let lost = left_out.iter().find(|host| host.exit == Exit::NODE_LOST);
    let exit = lost.or(left_out.first()).map_or(Exit::BUG, |host| host.exit);
    let hosts: Vec<&str> = left_out.iter().map(|host| host.host.as_str()).collect();
    let mut failed = Failed::new(exit, format!("not complete: {}", text::list(&hosts)));
    failed.details = left_out.iter().map(|host| host.why.clone()).collect();
    let failed = left_out.iter().fold(failed, |failed, host| failed.hint(host.hint.clone()));
    failed.hint(is_kept.then(resume_hint))
}

/// Says how an incomplete copy goes on.
fn resume_hint() -> String {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    format!("what has arrived stays, and is not sent again by {}", command_line(&words))
}

/// Direction of a copy. Every path goes below its destination by its own name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From this machine to each host.
    Push { paths: Vec<String>, destination: String },
    /// A working tree, from this machine to each host. `last` is the file that keeps the list of what was copied last.
    Tree { path: String, destination: String, limit: TreeLimit, last: Option<String> },
    /// From one of the hosts to each other one.
    Between { from: String, paths: Vec<String>, destination: String },
    /// Container image, to the engines of `hosts`; from one of the hosts, or from this machine.
    Image { image: ImageCopy, hosts: Vec<String>, from: Option<String> },
    /// From each host to this machine, into a directory of the host's name below `destination`.
    Fetch { paths: Vec<String>, destination: String },
}

/// Words by which the programs know what to do.
struct Words {
    rank: &'static str,
    /// `None` where no program runs on this machine.
    local: Option<&'static str>,
}

impl Way {
    fn words(&self) -> Words {
        match self {
            _ if self.from().is_some() => Words { rank: "receive", local: None },
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Image { .. } => {
                Words { rank: "receive", local: Some("send") }
            }
            Way::Fetch { .. } => Words { rank: "serve", local: Some("fetch") },
        }
    }

    /// Returns the host from which files come, if they come from one of several.
    fn from(&self) -> Option<&str> {
        match self {
            Way::Between { from, .. } => Some(from),
            Way::Image { from, .. } => from.as_deref(),
            Way::Push { .. } | Way::Tree { .. } | Way::Fetch { .. } => None,
        }
    }

    /// Returns the roles of the ranks and of the program on this machine.
    fn roles(&self) -> [Role; 2] {
        let source = |paths: &Vec<String>| Role::Source { paths: paths.clone() };
        match self {
            Way::Push { paths, .. } => [Role::Relay, source(paths)],
            Way::Tree { path, .. } => [Role::Relay, Role::Source { paths: vec![path.clone()] }],
            // The files are those of the image, wherever they are made.
            Way::Image { from: None, .. } => [Role::Relay, source(&Vec::new())],
            Way::Image { .. } => [source(&Vec::new()), Role::Relay],
            Way::Between { paths, .. } | Way::Fetch { paths, .. } => [source(paths), Role::Relay],
        }
    }

    fn destination(&self) -> &str {
        match self {
            Way::Push { destination, .. }
            | Way::Tree { destination, .. }
            | Way::Between { destination, .. }
            | Way::Fetch { destination, .. } => destination,
            // The job's directory.
            Way::Image { .. } => "",
        }
    }

    /// Tells who reports how far the copy is.
    fn source_of_progress(&self) -> Source {
        match self {
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Image { .. } => {
                Source::Rank
            }
            Way::Fetch { .. } => Source::Local,
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Way::Push { .. } | Way::Between { .. } | Way::Image { .. } => "pushing",
            Way::Tree { .. } => "copying the working tree:",
            Way::Fetch { .. } => "fetching",
        }
    }

    fn tree(&self) -> Option<TreeLimit> {
        match self {
            Way::Tree { limit, .. } => Some(*limit),
            Way::Push { .. } | Way::Between { .. } | Way::Image { .. } | Way::Fetch { .. } => None,
        }
    }

    /// Returns the file here that keeps the list of a working tree.
    fn last(&self) -> Option<String> {
        match self {
            Way::Tree { last, .. } => last.clone(),
            Way::Push { .. } | Way::Between { .. } | Way::Image { .. } | Way::Fetch { .. } => None,
        }
    }

    /// Returns the image as ranks know it, which have other places for its files than this machine.
    fn image(&self) -> Option<&ImageCopy> {
        match self {
            Way::Image { image, .. } => Some(image),
            Way::Push { .. } | Way::Tree { .. } | Way::Between { .. } | Way::Fetch { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(host: &str, exit: Exit) -> LeftOut {
        let (host, why) = (host.to_owned(), format!("{host}: it was so"));
        LeftOut { host, why, hint: None, exit }
    }

    #[test]
    fn rates_are_positive_numbers_of_bytes() {
        assert_eq!(parse_rate("100M"), Ok(100 << 20));
        assert_eq!(parse_rate("5"), Ok(5));
        for bad in ["0", "", "fast", "-1", "1T"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lost_host_decides_the_exit_code() {
        assert_eq!(conclude(&[], true).unwrap(), Exit::SUCCESS);
        let full = left_out("a", Exit::FILES);
        assert_eq!(failure_of(std::slice::from_ref(&full), true).exit, Exit::FILES);
        let failed = failure_of(&[full, left_out("b", Exit::NODE_LOST)], true);
        assert_eq!((failed.exit, failed.message.as_str()), (Exit::NODE_LOST, "not complete: a, b"));
        assert_eq!(failed.details, ["a: it was so", "b: it was so"]);
    }
}
