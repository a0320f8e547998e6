//! `rlaunch-copier`: copies files along a chain of hosts, for `rlaunch push` and `rlaunch fetch`.
//!
//! | command | where | what it does |
//! |---|---|---|
//! | `receive [FIRST-LAST]` | each rank of a push | receives from the host before it, sends to the one after it |
//! | `serve [FIRST-LAST]` | each rank of a fetch | sends its files to the launcher's machine |
//! | `send [VIA…]` | launcher's machine | sends to rank 0 |
//! | `fetch [VIA…]` | launcher's machine | receives from every rank, into a folder for each host |
//! | `answer` | anywhere | answers a question about this host |
//! | `pipe PORT` | a rank's host | carries bytes between stdin, stdout and this port of the host |
//!
//! `answer` reads a [`Question`](rlaunch_copy::control::Question) from stdin, and writes
//! [`Answer`](rlaunch_copy::control::Answer)s to stdout, a line of JSON each.
//!
//! All others but `pipe` read a [`Request`](rlaunch_copy::control::Request) from stdin, one line of JSON,
//! and write [`Report`](rlaunch_copy::control::Report)s to stdout, a line each. `send` and `fetch` then read the
//! [`Listening`](rlaunch_copy::control::Report::Listening) of ranks as lines too, in any order, until
//! they have what they need: rank 0's, or everyone's. A `send` of a working tree first reads that the job has
//! [`Reached`](rlaunch_copy::control::Report::Reached) its hosts, and reports what it has read. Their own reports have the rank
//! [`LOCAL`](rlaunch_copier::role::LOCAL), but for those that `fetch` makes for a rank.
//!
//! With [`Role::Source`](rlaunch_copy::control::Role::Source) `receive` takes the files from rank 0's
//! host instead (`rlaunch push --from`); no `send` runs then.
//!
//! `FIRST-LAST` are the ports to listen at, rlaunch's usual ones by default. `VIA…` is a command that
//! is run where a rank cannot be reached by TCP: it is given the rank's port as its last word, and
//! `{rank}` in it is replaced by the rank's number. It ends in a `pipe` on that rank's host:
//! `rlaunch exec JOB {rank} -- rlaunch-copier pipe`.
//!
//! A program that fails reports why ([`Report::Failed`](rlaunch_copy::control::Report::Failed)), tells
//! its neighbours, and exits with code 1. Half a file stays, under another name, for the next attempt.

use rlaunch_bootstrap::job::PortRange;
use rlaunch_copier::role::{self, RoleError};
use std::process::ExitCode;

const USAGE: &str = "usage: rlaunch-copier receive [FIRST-LAST] | serve [FIRST-LAST] | send [VIA…] | \
                     fetch [VIA…] | answer | pipe PORT";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Some(Ok(())) => ExitCode::SUCCESS,
        // The launcher prints what was reported.
        Some(Err(_)) => ExitCode::FAILURE,
        None => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}

/// Carries out a command line, or returns `None` if it is none.
fn run(words: &[String]) -> Option<Result<(), RoleError>> {
    let (what, rest) = words.split_first()?;
    match (what.as_str(), rest) {
        ("receive", ports) => Some(role::receive(read_ports(ports)?)),
        ("serve", ports) => Some(role::serve(read_ports(ports)?)),
        ("send", via) => Some(role::send(via)),
        ("fetch", via) => Some(role::fetch(via)),
        ("answer", []) => Some(role::answer()),
        ("pipe", [port]) => Some(role::pipe(port.parse().ok()?)),
        _ => None,
    }
}

/// Reads `FIRST-LAST`, which may be left out.
fn read_ports(words: &[String]) -> Option<PortRange> {
    let [range] = words else { return words.is_empty().then_some(PortRange::DEFAULT) };
    let (first, last) = range.split_once('-')?;
    let range = PortRange { first: first.parse().ok()?, last: last.parse().ok()? };
    (range.first <= range.last).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(words: &[&str]) -> Option<(u16, u16)> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        read_ports(&words).map(|range| (range.first, range.last))
    }

    #[test]
    fn ports_are_a_range_or_the_usual_ones() {
        assert_eq!(ports(&[]), Some((21_000, 21_511)));
        assert_eq!(ports(&["4000-4001"]), Some((4000, 4001)));
        for bad in ["4000", "4001-4000", "a-b", "1-70000"] {
            assert_eq!(ports(&[bad]), None, "{bad}");
        }
        assert_eq!(ports(&["1-2", "3-4"]), None);
    }

    #[test]
    fn unknown_commands_do_nothing() {
        for bad in ["", "relay", "pipe", "pipe x", "pipe 1 2", "receive x"] {
            let words: Vec<String> = bad.split_whitespace().map(str::to_owned).collect();
            assert!(run(&words).is_none(), "{bad}");
        }
    }
}
