//! The end of a job: everything is closed, what is left is written, and why it ended is turned
//! into a sentence and a code.

use crate::connect::rescue::Reaped;
use crate::plan::nccl;
use crate::run::crew::Crew;
use crate::run::first_failure::{Failure, FirstFailure};
use crate::run::job_run::JobRun;
use crate::run::output::{self, Written};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::protocol::control::CleanupReceipt;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::{self, Failed};
use rlaunch_console::text;
use std::time::Duration;

/// How long the last output may take to be written once the user has had enough.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// Why a job was ended before its ranks ended by themselves.
pub(crate) enum Reason {
    /// [`FirstFailure`] knows which.
    Rank,
    /// With `--serve`: a rank has ended well, and this is to be said.
    Served(String),
    User(Signal),
    Timeout(Duration),
    ReaderGone,
    /// A rank asked for it.
    Aborted(Failed),
    Lost(Failed),
    Singleton(Failed),
    /// A link went down, with `--abort-on-link-down`.
    Link(Failed),
}

/// What is known of a node at the end.
pub(crate) enum NodeEnd {
    /// Its agent looked and left.
    Done(CleanupReceipt),
    /// Its agent was lost.
    Lost(Reaped),
}

/// Everything the end of a job is judged by.
pub(crate) struct Conclusion<'a> {
    pub(crate) job: &'a JobRun,
    pub(crate) crew: Crew,
    pub(crate) writer: output::Writer,
    pub(crate) master_port: u16,
    pub(crate) first_failure: FirstFailure,
    pub(crate) reason: Option<Reason>,
    /// By node; `None` where no word came in time.
    pub(crate) ends: Vec<Option<NodeEnd>>,
}

impl Conclusion<'_> {
    /// Closes, writes, judges.
    pub(crate) async fn reach(self) -> Result<Exit, Failed> {
        let Conclusion { job, crew, writer, master_port, first_failure, reason, ends } = self;
        let hosts: Vec<String> = crew.nodes.iter().map(|node| node.host.to_string()).collect();
        let culprit = first_failure.verdict().map(|(failure, others)| {
            let rank_of = |node: &&crate::run::crew::Node| node.ranks.contains(&failure.rank);
            let host = crew.nodes.iter().find(rank_of).map(|node| node.host.to_string());
            (failure, others, host.unwrap_or_default())
        });
        let mut ranks: Vec<(Rank, String)> = crew
            .nodes
            .iter()
            .flat_map(|node| node.ranks.iter().map(|rank| (*rank, node.host.to_string())))
            .collect();
        ranks.sort_unstable();
        crew.dismiss().await;
        let impatient = matches!(reason, Some(Reason::User(_) | Reason::ReaderGone));
        let mut written = match impatient {
            true => tokio::time::timeout(LAST_WRITE, writer.finish()).await.unwrap_or_default(),
            false => writer.finish().await,
        };
        if let (Some(recorder), Some(kept)) = (&job.recorder, written.kept.take()) {
            recorder.printed(kept);
        }
        let blamed = culprit.map(|(failure, others, host)| {
            let hint = taken_port(failure.rank, &written, master_port, &host);
            blame(failure, others, &host, &written).hint(hint)
        });
        let unverified = written.nccl.and_then(|log| nccl::verify(&log, &ranks, &job.options));
        let failed = match reason {
            None => blamed.or(unverified).or(written.incomplete),
            Some(Reason::Served(line)) => {
                messages::info(&line);
                blamed.or(unverified).or(written.incomplete)
            }
            Some(Reason::Rank) => Some(blamed.unwrap_or_else(|| {
                Failed::new(Exit::BUG, "the job was ended and no rank has failed")
            })),
            Some(Reason::User(signal)) => {
                Some(Failed::new(Exit::signal(signal as i32), format!("ended by {signal}")))
            }
            Some(Reason::Timeout(after)) => {
                let message = format!("not done within {} s (--timeout)", after.as_secs_f64());
                Some(Failed::new(Exit::TIMEOUT, message))
            }
            Some(Reason::ReaderGone) => Some(Failed::new(Exit::READER_GONE, "")),
            Some(Reason::Aborted(failed) | Reason::Lost(failed) | Reason::Link(failed)) => {
                Some(Failed { may_restart: true, ..failed })
            }
            Some(Reason::Singleton(failed)) => Some(failed),
        };
        let Some(mut failed) = failed else { return Ok(Exit::SUCCESS) };
        failed.details.extend(receipts(&hosts, &ends));
        tracing::debug!(job = %job.id, exit = failed.exit.0, "concluded");
        Err(failed)
    }
}

/// The report of the first failure.
fn blame(failure: Failure, others: u32, host: &str, written: &Written) -> Failed {
    let Failure { rank, pid, status, out_of_memory, .. } = failure;
    let how = match status {
        ExitStatus::Code(code) => format!("exited with code {code}"),
        ExitStatus::Signal(number) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            format!("was killed by signal {number} ({name})")
        }
    };
    let message = format!("rank {rank} on {host} (pid {pid}) {how}");
    let mut failed = Failed::new(Exit::from_rank(status), message);
    (failed.by_rank, failed.may_restart) = (true, true);
    if out_of_memory {
        let at_work = format!("the kernel's out-of-memory killer was at work on {host} then");
        failed.details.push(at_work);
        failed = failed.hint(Some("fewer ranks per host, or less memory for each"));
    }
    let tail = written.tails.lines(rank);
    if !tail.is_empty() {
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

/// Hint where rank 0 found MASTER_PORT taken: its agent held the port until the ranks started,
/// and whatever process came first has had it since.
fn taken_port(rank: Rank, written: &Written, port: u16, host: &str) -> Option<String> {
    let is_taken = |line: &String| line.contains("ddress already in use");
    let has_failed = rank == Rank(0) && written.tails.lines(rank).iter().any(is_taken);
    has_failed.then(|| {
        format!(
            "MASTER_PORT {port} was free on {host} until rank 0 started; another process may have \
             taken it then: run the job again, or choose a port with --master-port"
        )
    })
}

/// What was verified on each node, equal findings folded: `a, b: nothing left`.
fn receipts(hosts: &[String], ends: &[Option<NodeEnd>]) -> Vec<String> {
    let mut findings: Vec<(String, Vec<&String>)> = Vec::new();
    for (host, end) in hosts.iter().zip(ends) {
        let finding = describe(end.as_ref());
        match findings.iter_mut().find(|(known, _)| *known == finding) {
            Some((_, hosts)) => hosts.push(host),
            None => findings.push((finding, vec![host])),
        }
    }
    findings
        .into_iter()
        .map(|(finding, hosts)| format!("{}: {finding}", text::list(&hosts)))
        .collect()
}

fn describe(end: Option<&NodeEnd>) -> String {
    match end {
        None => "no word of the end; `rlaunch reap` ends what may be left".to_owned(),
        Some(NodeEnd::Lost(Reaped::Clean(words))) => {
            format!("agent lost, nothing more found ({words})")
        }
        Some(NodeEnd::Lost(Reaped::Left(processes))) => {
            format!("agent lost, could not end {processes}")
        }
        Some(NodeEnd::Lost(Reaped::Unclear(words))) => format!(
            "agent lost, and what is left was not learnt ({words:?}); `rlaunch reap` ends it"
        ),
        Some(NodeEnd::Lost(Reaped::Unreachable)) => {
            "lost; its ranks end there by themselves, which was not verified".to_owned()
        }
        Some(NodeEnd::Done(receipt)) => describe_receipt(receipt),
    }
}

fn describe_receipt(receipt: &CleanupReceipt) -> String {
    let mut text = if receipt.left.is_empty() {
        "nothing left".to_owned()
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

    #[test]
    fn a_lost_node_is_clean_only_if_it_says_so() {
        let said = |reaped| describe(Some(&NodeEnd::Lost(reaped)));
        let clean = said(Reaped::Clean("2 ended, 0 segments removed".to_owned()));
        assert_eq!(clean, "agent lost, nothing more found (2 ended, 0 segments removed)");
        let left = said(Reaped::Left("7 python3 (state D)".to_owned()));
        assert_eq!(left, "agent lost, could not end 7 python3 (state D)");
        for unsure in [Reaped::Unclear("Bye\x1b[2J".to_owned()), Reaped::Unreachable] {
            let said = said(unsure);
            assert!(!said.contains("nothing") && !said.contains('\x1b'), "{said}");
        }
    }

    #[test]
    fn equal_receipts_are_folded() {
        let hosts = ["a", "b", "c", "d"].map(str::to_owned);
        let helper = CleanupReceipt { leftovers_ended: 1, ..CleanupReceipt::default() };
        let ends = [
            Some(NodeEnd::Done(CleanupReceipt::default())),
            Some(NodeEnd::Done(CleanupReceipt::default())),
            Some(NodeEnd::Done(helper)),
            None,
        ];
        assert_eq!(
            receipts(&hosts, &ends),
            [
                "a, b: nothing left",
                "c: nothing left (1 helper process ended)",
                "d: no word of the end; `rlaunch reap` ends what may be left",
            ]
        );
    }
}
