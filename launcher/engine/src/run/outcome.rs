//! Outcome of a job: the rank that failed first or another reason why the job ended, as a sentence and an exit code.

use crate::connect::lost_agent::CleanupOutcome;
use crate::run::first_failure::{FirstFailure, RankExit};
use crate::run::nodes::{self, Node};
use crate::run::output::Written;
use crate::run::signals::ended_by;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::protocol::control::{CleanupReceipt, WrittenFiles};
use rlaunch_console::{messages, terminal};
use rlaunch_plan::env::nccl;
use rlaunch_plan::job::TreeCopy;
use rlaunch_plan::job::name::JobName;
use rlaunch_plan::options::Options;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::{Failed, FailedHost};
use rlaunch_text::text;
use std::net::IpAddr;
use std::time::Duration;

/// Reason why the launcher ended a job before all its ranks had exited.
#[derive(Debug)]
pub(crate) enum Reason {
    /// A rank failed. [`FirstFailure`] has its exit.
    Rank,
    /// With `--serve`, a rank has exited; contains the line to print, which names the rank.
    Served(String),
    User(Signal),
    /// `--timeout`, with the state of the ranks if that is wanted.
    Timeout(Duration, Vec<String>),
    /// The job made no progress.
    Hang(Failed),
    /// Stdout or stderr cannot be written, mostly because their reader has gone.
    ReaderGone,
    /// A rank or an agent aborted the job.
    Aborted(Failed),
    /// A node was lost.
    Lost(Failed),
    /// A rank runs an MPI library that rlaunch does not serve.
    Singleton(Failed),
    /// An RDMA link went down, with `--abort-on-link-down`.
    Link(Failed),
}

impl Reason {
    /// Tells whether a reader of the output that does not read may not delay the end of the job.
    pub(crate) fn limits_readers(&self) -> bool {
        match self {
            Reason::User(_)
            | Reason::Timeout(..)
            | Reason::Hang(_)
            | Reason::ReaderGone
            | Reason::Lost(_) => true,
            Reason::Rank
            | Reason::Served(_)
            | Reason::Aborted(_)
            | Reason::Singleton(_)
            | Reason::Link(_) => false,
        }
    }
}

/// Final report of a node, or the result of cleaning it up after its loss.
#[derive(Debug)]
pub(crate) enum NodeEnd {
    /// Report of the agent: what it ended, and what it could not end.
    Done(CleanupReceipt),
    /// Result of the clean-up over a second channel, after the agent was lost.
    Lost(CleanupOutcome),
}

/// Facts from which the exit code and the message of a job follow.
pub(crate) struct Outcome {
    pub nodes: Vec<Node>,
    pub(crate) first_failure: FirstFailure,
    /// Reason why the launcher ended the job; `None` if every rank exited by itself.
    pub reason: Option<Reason>,
    /// Final reports, by node; `None` if nothing was reported in time.
    pub ends: Vec<Option<NodeEnd>>,
}

impl Outcome {
    /// Returns the line to print before the outcome of a job that was ended because, with `--serve`, a rank
    /// exited.
    pub(crate) fn closing_line(&self) -> Option<&str> {
        match &self.reason {
            Some(Reason::Served(line)) => Some(line),
            _ => None,
        }
    }

    /// Says what ranks have written in the copy of a working tree, and how to get it.
    pub(crate) fn written_line(&self, tree: &TreeCopy) -> Option<String> {
        let hosts: Vec<String> = self.nodes.iter().map(|node| node.host.to_string()).collect();
        written_line(hosts.iter().map(String::as_str).zip(&self.ends), tree)
    }

    /// Returns a hint with the command that ends what may be left on hosts that have not said what is.
    pub(crate) fn reap_hint(&self, job: &JobName) -> Option<String> {
        let is_unsure = |end: &Option<NodeEnd>| match end {
            None
            | Some(NodeEnd::Lost(CleanupOutcome::Unclear(_) | CleanupOutcome::Unreachable)) => true,
            Some(NodeEnd::Lost(_) | NodeEnd::Done(_)) => false,
        };
        let hosts = self.nodes.iter().zip(&self.ends).filter(|(_, end)| is_unsure(end));
        let hosts: Vec<String> = hosts.map(|(node, _)| node.host.to_string()).collect();
        let line = format!("rlaunch reap {job} -H {}", hosts.join(","));
        (!hosts.is_empty()).then(|| format!("`{line}` ends what may be left there"))
    }

    /// Decides the exit code and the message. `written` is the result of writing the ranks' output.
    pub(crate) fn decide(
        self,
        options: &Options,
        written: Written,
        master_port: u16,
    ) -> Result<Exit, Failed> {
        let blamed = self.first_failure_error(&written, master_port);
        let ranks = self.ranks();
        let is_clean_everywhere = self.ends.iter().all(|end| is_clean(end.as_ref()));
        let unverified = written.nccl.and_then(|log| {
            let (told, failed) = nccl::verify(&log, &ranks, options);
            messages::print(&told);
            failed
        });
        let failed = match self.reason {
            // A failed rank matters more than a setting without effect, and that more than output that is not whole.
            None | Some(Reason::Served(_)) => {
                blamed.or(unverified).or(written.unwritten).or(written.incomplete)
            }
            Some(Reason::Rank) => Some(blamed.unwrap_or_else(|| {
                Failed::new(Exit::BUG, "the job was ended and no rank has failed")
            })),
            Some(Reason::User(Signal::SIGINT)) if is_clean_everywhere => {
                Some(interrupted(&text::count(ranks.len(), "rank")))
            }
            Some(Reason::User(signal)) => Some(ended_by(signal, "")),
            Some(Reason::Timeout(after, details)) => Some(timed_out(after, details)),
            Some(Reason::ReaderGone) => {
                Some(written.unwritten.unwrap_or_else(|| Failed::new(Exit::READER_GONE, "")))
            }
            Some(Reason::Aborted(failed) | Reason::Link(failed)) => {
                Some(Failed { may_restart: true, ..failed })
            }
            Some(Reason::Lost(failed) | Reason::Singleton(failed) | Reason::Hang(failed)) => {
                Some(failed)
            }
        };
        let Some(mut failed) = failed else { return Ok(Exit::SUCCESS) };
        if failed.by_rank {
            failed.details.extend(nodes::homes(&self.nodes, "ran"));
        }
        let hosts: Vec<String> = self.nodes.iter().map(|node| node.host.to_string()).collect();
        let hosts = || hosts.iter().map(String::as_str).zip(&self.ends);
        // A rank often fails because another host is gone, before that is noticed here.
        let gone = hosts().find(|(_, end)| !matches!(end, Some(NodeEnd::Done(_))));
        if let Some((host, _)) = gone.filter(|_| failed.by_rank) {
            failed.host = Some(Box::new(FailedHost { name: host.to_owned(), is_lost: true }));
        }
        failed.details.extend(receipts(hosts().filter(|(_, end)| !is_clean(end.as_ref()))));
        // The message of an interrupted job says that its ranks have ended.
        let is_told = |end: Option<&NodeEnd>| failed.is_asked && describe(end) == ALL_ENDED;
        let is_aside = |end: Option<&NodeEnd>| is_clean(end) && !is_told(end);
        let asides = receipts(hosts().filter(|(_, end)| is_aside(end.as_ref())));
        failed.asides.extend(asides);
        Err(failed)
    }

    /// Makes the error for the first failure, with a hint if the rank's last lines tell the cause.
    fn first_failure_error(&self, written: &Written, master_port: u16) -> Option<Failed> {
        let (exit, others) = self.first_failure.first()?;
        let is_host = |node: &&Node| node.ranks.contains(&exit.rank);
        let host = self.nodes.iter().find(is_host).map(|node| node.host.to_string());
        let host = host.unwrap_or_default();
        let lines = written.tails.lines(exit.rank);
        let hint = taken_port(exit.rank, &lines, master_port, &host)
            .or_else(|| unusable_shared_memory(exit.status, &lines, &host))
            .or_else(|| self.name_of_itself(&lines));
        let mut failed = rank_error(exit, others, &host, written).hint(hint);
        if let Some(error) = self.first_failure.error_of(exit.rank) {
            failed.message = format!("{}: {error}", failed.message);
        }
        Some(failed)
    }

    /// Returns a hint if a rank failed at the address that installers of Debian and Ubuntu give a host's own name: programs
    /// that look for their own address by it, such as the gloo in JAX, tell it to others, which then look at themselves.
    fn name_of_itself(&self, lines: &[String]) -> Option<String> {
        lines.iter().find(|line| line.contains("127.0.1.1"))?;
        let hosts: Vec<String> = self.nodes.iter().map(|node| node.host.to_string()).collect();
        let hosts = hosts.join(",");
        Some(format!(
            "by its own name a host found 127.0.1.1, itself: rlaunch doctor -H {hosts} --fix net.name"
        ))
    }

    /// Lists the ranks with their hosts, by rank.
    fn ranks(&self) -> Vec<(Rank, String)> {
        let node_ranks = |node: &Node| {
            let ranks = node.ranks.iter().map(|rank| (*rank, node.host.to_string()));
            ranks.collect::<Vec<_>>()
        };
        let mut ranks: Vec<(Rank, String)> = self.nodes.iter().flat_map(node_ranks).collect();
        ranks.sort_unstable();
        ranks
    }
}

/// Makes the end of a job by Ctrl-C whose `ranks` have ended.
fn interrupted(ranks: &str) -> Failed {
    let message = format!("interrupted: {ranks} ended");
    Failed { is_asked: true, ..Failed::new(Exit::signal(Signal::SIGINT as i32), message) }
}

/// Makes the error of a job that was not done within `after`, the time of `--timeout`.
pub(crate) fn timed_out(after: Duration, details: Vec<String>) -> Failed {
    let message = format!("not done within {} s (--timeout)", after.as_secs_f64());
    Failed { details, ..Failed::new(Exit::TIMEOUT, message) }
}

/// Makes the error for a rank that failed first, before `others`, with the last lines that it wrote, unless they are
/// still on the screen.
fn rank_error(exit: RankExit, others: u32, host: &str, written: &Written) -> Failed {
    let RankExit { rank, pid, status, out_of_memory, unfinalized, .. } = exit;
    let left_mpi = unfinalized && status.success();
    let how = match status {
        ExitStatus::Code(_) if left_mpi => "exited without MPI_Finalize".to_owned(),
        ExitStatus::Code(code) => format!("exited with code {code}"),
        ExitStatus::Signal(number) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            format!("was killed by signal {number} ({name})")
        }
    };
    let message = match pid {
        // The agent has printed the reason in place of the rank.
        0 => format!("rank {rank} on {host} could not be started"),
        _ => format!("rank {rank} on {host} (pid {pid}) {how}"),
    };
    let exit = if left_mpi { Exit::ABORTED } else { Exit::from_rank(status) };
    let mut failed = Failed::new(exit, message);
    (failed.by_rank, failed.may_restart) = (true, true);
    failed.host = Some(Box::new(FailedHost { name: host.to_owned(), is_lost: false }));
    if out_of_memory {
        let active = format!("the kernel's out-of-memory killer was active on {host} at that time");
        failed.details.push(active);
        failed = failed.hint(Some("fewer ranks per host, or less memory for each"));
    }
    let tail = written.tails.lines(rank);
    let is_seen = !written.is_elsewhere && !written.tails.is_out_of_sight(rank, terminal::rows());
    if !tail.is_empty() && !is_seen {
        let stream = if written.merged { "" } else { " on stderr" };
        failed.details.push(format!("its last lines{stream}:"));
        failed.details.extend(tail.into_iter().map(|line| format!("  {line}")));
    }
    if others > 0 {
        failed
            .details
            .push(format!("{others} more {} failed", text::plural(others as usize, "rank")));
    }
    failed
}

/// Returns a hint if a rank failed because a port was taken: one that its last lines name, else MASTER_PORT, if it is
/// rank 0. The agent reserves that port only until the ranks start, so another process can bind it just before rank 0
/// does.
fn taken_port(rank: Rank, lines: &[String], master: u16, host: &str) -> Option<String> {
    let about: Vec<&String> =
        lines.iter().filter(|line| line.contains("ddress already in use")).collect();
    let named = about.iter().rev().find_map(|line| named_port(line, host));
    match named.filter(|port| *port != master) {
        Some(port) => Some(format!(
            "port {port} of {host} is taken; it is not MASTER_PORT, which is {master}: `ss -tlnp sport = \
             :{port}` there shows the process that has it, and the program has to be given another"
        )),
        None if about.is_empty() || rank != Rank(0) => None,
        None => Some(format!(
            "MASTER_PORT {master} was free on {host} until rank 0 started; another process may have \
             taken it then: run the job again, or choose a port with --master-port"
        )),
    }
}

/// Returns a hint if a rank probably failed because `/dev/shm` is full or takes no files: its last lines say so, or it
/// touched memory there that the kernel could not provide, which is a SIGBUS.
fn unusable_shared_memory(status: ExitStatus, lines: &[String], host: &str) -> Option<String> {
    const FULL: &[&str] = &["no space left", "bus error", "out of shared memory", "insufficient"];
    const SHARED: &[&str] = &["/dev/shm", "shared memory", "</torch_", "posix_fallocate"];
    let says = |line: &str, words: &[&str]| words.iter().any(|word| line.contains(word));
    let lines: Vec<String> = lines.iter().map(|line| line.to_ascii_lowercase()).collect();
    let is_said = |words: &[&str]| lines.iter().any(|line| says(line, words) && says(line, SHARED));
    if is_said(&["read-only file system"]) {
        return Some(format!(
            "/dev/shm of {host} is mounted read-only: `sudo mount -o remount,rw /dev/shm` there"
        ));
    }
    if is_said(&["permission denied"]) {
        return Some(format!(
            "`ls -ld /dev/shm` on {host} should begin with drwxrwxrwt, else `sudo chmod 1777 /dev/shm`; if it does, \
             the file is another user's"
        ));
    }
    let cause = if is_said(FULL) {
        format!("/dev/shm of {host} is full or small")
    } else if Exit::from_rank(status) == Exit::signal(Signal::SIGBUS as i32) {
        format!("SIGBUS often means that /dev/shm, here of {host}, is full or small")
    } else {
        return None;
    };
    Some(format!(
        "{cause}: `df -h /dev/shm` there shows it, or `df -i /dev/shm` for inodes; a container is started with \
         --shm-size=1g or --ipc=host, on a host `sudo mount -o remount,size=50% /dev/shm` makes it larger"
    ))
}

/// Returns the last port in a line, such as `[::]:6006`, `('0.0.0.0', 6006)` or `port: 6006`. Other numbers are there as
/// well: of the error, of a process, of a line of code, and the time.
fn named_port(line: &str, host: &str) -> Option<u16> {
    let mut port = None;
    let mut before = "";
    let is_between = |letter: char| letter.is_whitespace() || "(),;'\"".contains(letter);
    for word in line.split(is_between).filter(|word| !word.is_empty()) {
        let word = word.trim_end_matches([':', '.', '=']);
        let (place, number, is_joined) = match word.rsplit_once([':', '=']) {
            Some((place, number)) => (place, number, true),
            None => (before, word, false),
        };
        let place = place.rsplit('/').next().unwrap_or_default();
        let is_address = place.parse::<IpAddr>().is_ok()
            || is_joined && (place.is_empty() || place.ends_with([']', '*', ':']))
            || ["localhost", host].contains(&place);
        let name = place.to_ascii_lowercase();
        if is_address || name == "port" || name.ends_with("_port") || name.ends_with("-port") {
            port = number.parse().ok().or(port);
        }
        before = word;
    }
    port
}

/// Final report of a node that needed nothing but the end of its processes.
const ALL_ENDED: &str = "all processes ended";

/// Writes the final reports of nodes, one line for all nodes with equal reports: `all processes ended on a, b`.
fn receipts<'a>(ends: impl Iterator<Item = (&'a str, &'a Option<NodeEnd>)>) -> Vec<String> {
    let findings = text::grouped(ends.map(|(host, end)| (describe(end.as_ref()), host)));
    let line = |(finding, hosts): (String, Vec<&str>)| {
        let hosts = text::list(&hosts);
        match finding.strip_prefix(ALL_ENDED) {
            Some(rest) => format!("{ALL_ENDED} on {hosts}{rest}"),
            None => format!("{hosts}: {finding}"),
        }
    };
    findings.into_iter().map(line).collect()
}

fn written_line<'a>(
    ends: impl Iterator<Item = (&'a str, &'a Option<NodeEnd>)>,
    tree: &TreeCopy,
) -> Option<String> {
    let written = ends.filter_map(|(host, end)| match end {
        Some(NodeEnd::Done(receipt)) if receipt.written.files > 0 => Some((host, &receipt.written)),
        _ => None,
    });
    // Of hosts with one home directory, each has seen the files of all; one that has seen most of them counts.
    let mut of_copies: Vec<(&str, &WrittenFiles)> = Vec::new();
    for (host, found) in written {
        let holder = tree.holder(host);
        match of_copies.iter_mut().find(|(other, _)| *other == holder) {
            Some((_, most)) if most.files >= found.files => {}
            Some((_, most)) => *most = found,
            None => of_copies.push((holder, found)),
        }
    }
    let (hosts, written): (Vec<&str>, Vec<&WrittenFiles>) = of_copies.into_iter().unzip();
    let first = written.iter().flat_map(|of| &of.names).min()?;
    let sum = |number: fn(&WrittenFiles) -> u64| written.iter().map(|of| number(of)).sum::<u64>();
    let files = text::count(usize::try_from(sum(|of| of.files)).unwrap_or(usize::MAX), "file");
    let least = if written.iter().any(|of| of.is_part) { "at least " } else { "" };
    let (size, hosts) = (text::size(sum(|of| of.bytes)), hosts.join(","));
    let path = tree.for_fetch();
    Some(format!(
        "ranks wrote {least}{files}, {size}, such as {first}: rlaunch fetch -H {hosts} {path}"
    ))
}

/// Tells whether a node has reported that nothing of the job is left on it.
fn is_clean(end: Option<&NodeEnd>) -> bool {
    match end {
        Some(NodeEnd::Done(receipt)) => receipt.left.is_empty(),
        Some(NodeEnd::Lost(_)) | None => false,
    }
}

fn describe(end: Option<&NodeEnd>) -> String {
    match end {
        None => "its end was not reported".to_owned(),
        Some(NodeEnd::Lost(CleanupOutcome::Clean(words))) => {
            format!("agent lost, nothing more found ({words})")
        }
        Some(NodeEnd::Lost(CleanupOutcome::Left(processes))) => {
            format!("agent lost, could not end {processes}")
        }
        Some(NodeEnd::Lost(CleanupOutcome::Unclear(words))) => {
            format!("agent lost, and its host did not say what is left ({words:?})")
        }
        Some(NodeEnd::Lost(CleanupOutcome::Unreachable)) => {
            "lost; its ranks end there by themselves, which was not verified".to_owned()
        }
        Some(NodeEnd::Done(receipt)) => describe_receipt(receipt),
    }
}

fn describe_receipt(receipt: &CleanupReceipt) -> String {
    let mut text = if receipt.left.is_empty() {
        ALL_ENDED.to_owned()
    } else {
        format!("could not end {}", receipt.left.join(", "))
    };
    let mut also = Vec::new();
    if receipt.leftovers_ended > 0 {
        let ended = text::count(receipt.leftovers_ended as usize, "helper process");
        also.push(format!("{ended} ended"));
    }
    if receipt.segments_removed > 0 {
        let removed = text::count(receipt.segments_removed as usize, "shared-memory file");
        also.push(format!("{removed} removed"));
    }
    if !receipt.segments_unclaimed.is_empty() {
        let names = receipt.segments_unclaimed.join(", ");
        also.push(format!("in /dev/shm, perhaps of this job: {names}"));
    }
    if !also.is_empty() {
        text = format!("{text} ({})", also.join("; "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_port_that_is_taken_is_the_one_that_is_named() {
        let torch = "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - \
                     Address already in use).";
        let newer = "[rank0]: The server socket has failed to listen on any local network address. port: 29500, \
                     useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use";
        let python = "[Errno 98] error while attempting to bind on address ('0.0.0.0', 8265): address already in use";
        for (line, port) in [
            (torch, Some(29500)),
            (newer, Some(29500)),
            (python, Some(8265)),
            ("OSError: [Errno 98] Address already in use", None),
            ("12:00:05 server.py:120 pid=4711: Address already in use", None),
            ("listen tcp :8080: bind: address already in use", Some(8080)),
            ("Error: listen EADDRINUSE: address already in use :::3000", Some(3000)),
            ("bind to tcp://n1:6006 failed: Address already in use", Some(6006)),
            ("--port=70000: Address already in use", None),
        ] {
            assert_eq!(named_port(line, "n1"), port, "{line}");
        }
        let hint = |rank: u32, line: &str| taken_port(Rank(rank), &[line.into()], 29500, "n1");
        let other = hint(0, python).unwrap();
        assert!(other.starts_with("port 8265 of n1 is taken; it is not MASTER_PORT"), "{other}");
        assert_eq!(hint(3, python), Some(other));
        for line in [torch, newer, "OSError: [Errno 98] Address already in use"] {
            assert!(hint(0, line).unwrap().starts_with("MASTER_PORT 29500 was free"), "{line}");
            assert_eq!(hint(3, line), None, "{line}");
        }
        assert_eq!(hint(0, "connected to 10.0.0.1:8265"), None);
    }

    #[test]
    fn shared_memory_that_is_full_is_named() {
        let hint = |status, line: &str| unusable_shared_memory(status, &[line.into()], "n1");
        for line in [
            "NCCL WARN Call to posix_fallocate failed : No space left on device",
            "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space \
             left on device (28)",
            "RuntimeError: unable to write to file </torch_7_1_0>: No space left on device (28)",
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory \
             (shm).",
        ] {
            let hint = hint(ExitStatus::Code(1), line).unwrap();
            assert!(hint.starts_with("/dev/shm of n1 is full or small: `df "), "{line}: {hint}");
        }
        for status in [ExitStatus::Signal(Signal::SIGBUS as i32), ExitStatus::Code(135)] {
            assert!(hint(status, "epoch 1").unwrap().starts_with("SIGBUS often means"));
        }
        let failed = |line| hint(ExitStatus::Code(1), line);
        let read_only = failed("cannot create /dev/shm/rlaunch-1: Read-only file system").unwrap();
        assert!(read_only.contains("remount,rw /dev/shm"), "{read_only}");
        let denied = failed("cannot create /dev/shm/rlaunch-1: Permission denied").unwrap();
        assert!(denied.contains("chmod 1777 /dev/shm"), "{denied}");
        assert_eq!(failed("/data/x: Read-only file system"), None);
        assert_eq!(failed("/data/ckpt: No space left on device"), None);
        assert_eq!(hint(ExitStatus::Signal(Signal::SIGSEGV as i32), "epoch 1"), None);
    }

    #[test]
    fn a_lost_node_is_clean_only_if_it_says_so() {
        let text = |reaped| describe(Some(&NodeEnd::Lost(reaped)));
        let clean = text(CleanupOutcome::Clean("2 ended, 0 segments removed".to_owned()));
        assert_eq!(clean, "agent lost, nothing more found (2 ended, 0 segments removed)");
        let left = text(CleanupOutcome::Left("7 python3 (state D)".to_owned()));
        assert_eq!(left, "agent lost, could not end 7 python3 (state D)");
        for unsure in
            [CleanupOutcome::Unclear("Bye\x1b[2J".to_owned()), CleanupOutcome::Unreachable]
        {
            let text = text(unsure);
            assert!(!text.contains("nothing") && !text.contains('\x1b'), "{text}");
        }
    }

    #[test]
    fn what_ranks_wrote_is_brought_from_the_hosts_that_have_it() {
        let end = |names: &[&str], is_part| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let written =
                WrittenFiles { files: names.len() as u64, bytes: 3 << 20, names, is_part };
            Some(NodeEnd::Done(CleanupReceipt { written, ..CleanupReceipt::default() }))
        };
        let tree = TreeCopy {
            of_ranks: "/home/u/x y".into(),
            of_hosts: "~/.cache/rlaunch/sync/ab/x y".into(),
            shared: vec![("e".into(), "d".into()), ("f".into(), "d".into())].into(),
        };
        let none = [end(&[], false), None];
        assert_eq!(written_line(["a", "b"].into_iter().zip(&none), &tree), None);
        let ends = [end(&["runs/7", "log"], false), end(&[], false), end(&["runs/8"], true)];
        let line = written_line(["a", "b", "c"].into_iter().zip(&ends), &tree).unwrap();
        let expected = "ranks wrote at least 3 files, 6.0 MiB, such as log: rlaunch fetch -H a,c \
                        '.cache/rlaunch/sync/ab/x y'";
        assert_eq!(line, expected);
        // The clocks of hosts differ, and so does what they take for new.
        let ends = [end(&["log"], false), end(&["log", "model"], false), end(&["log"], false)];
        let line = written_line(["d", "e", "f"].into_iter().zip(&ends), &tree).unwrap();
        assert!(
            line.starts_with("ranks wrote 2 files, 3.0 MiB, such as log: rlaunch fetch -H d "),
            "{line}"
        );
    }

    #[test]
    fn equal_receipts_are_folded() {
        let hosts = ["a", "b", "c", "d"];
        let helper = CleanupReceipt { leftovers_ended: 1, ..CleanupReceipt::default() };
        let ends = [
            Some(NodeEnd::Done(CleanupReceipt::default())),
            Some(NodeEnd::Done(CleanupReceipt::default())),
            Some(NodeEnd::Done(helper)),
            None,
        ];
        assert_eq!(
            receipts(hosts.into_iter().zip(&ends)),
            [
                "all processes ended on a, b",
                "all processes ended on c (1 helper process ended)",
                "d: its end was not reported",
            ]
        );
    }

    #[test]
    fn a_rank_without_a_process_could_not_be_started() {
        let of = |pid| {
            let exit = RankExit {
                rank: Rank(2),
                pid,
                status: ExitStatus::Code(126),
                out_of_memory: false,
                unfinalized: false,
                by_itself: true,
                at: Instant::now(),
            };
            rank_error(exit, 0, "b", &Written::default())
        };
        assert_eq!(of(0).message, "rank 2 on b could not be started");
        assert_eq!(of(7).message, "rank 2 on b (pid 7) exited with code 126");
        assert_eq!(of(0).exit, Exit::NOT_EXECUTABLE);
        assert_eq!(of(7).host, Some(Box::new(FailedHost { name: "b".into(), is_lost: false })));
    }
}
