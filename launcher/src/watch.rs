//! From the start of the ranks to the end of the job: the first failure ends the others, the user
//! may end them all, and everybody is waited for.

use crate::crew::Crew;
use crate::exit::Exit;
use crate::first_failure::{Failure, FirstFailure};
use crate::output::{self, Written};
use crate::report::{self, Failed};
use crate::session::{Event, What};
use crate::signals::{Asked, Signals};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::wire::{FromAgent, Receipt, ToAgent};
use std::time::{Duration, Instant};

/// What nodes may take beyond the grace to end their ranks and say so.
const END_SLACK: Duration = Duration::from_secs(4);
/// How long the last output may take to be written once the user has had enough.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// Why the job is being ended before its ranks ended by themselves.
enum Reason {
    /// [`FirstFailure`] knows which.
    Rank,
    User(Signal),
    ReaderGone,
    Lost(Failed),
}

/// The job while it runs.
pub(crate) struct Watch<'a> {
    crew: Crew,
    kill_after: Duration,
    signals: &'a mut Signals,
    writer: output::Writer,
    first_failure: FirstFailure,
    reason: Option<Reason>,
    /// By node: heard the last of it.
    over: Vec<bool>,
    receipts: Vec<(NodeId, Receipt)>,
    /// When to stop waiting for nodes that were told to end.
    deadline: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        crew: Crew,
        kill_after: Duration,
        signals: &'a mut Signals,
        writer: output::Writer,
    ) -> Watch<'a> {
        let over = vec![false; crew.nodes.len()];
        Watch {
            crew,
            kill_after,
            signals,
            writer,
            first_failure: FirstFailure::default(),
            reason: None,
            over,
            receipts: Vec::new(),
            deadline: None,
        }
    }

    /// Waits for every node, then says how the job went.
    pub(crate) async fn see_out(mut self) -> Result<Exit, Failed> {
        while self.over.contains(&false) {
            let deadline = self.deadline;
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.crew.events.recv() => match event {
                    Some(event) => self.on_event(event),
                    None => break,
                },
                asked = self.signals.next() => self.on_signal(asked),
                _ = &mut self.writer.reader_gone, if !self.is_ending() => {
                    self.end(Reason::ReaderGone);
                }
                () = timer => break,
            }
        }
        self.conclude().await
    }

    fn is_ending(&self) -> bool {
        self.reason.is_some()
    }

    fn on_event(&mut self, Event { node, what }: Event) {
        match what {
            What::Said(FromAgent::Exited { rank, pid, status, at_us }) => {
                let hello_at = self.crew.nodes[node.index()].hello_at;
                let at = hello_at + Duration::from_micros(at_us);
                tracing::info!(%rank, host = %self.crew.host(node), pid, ?status, "exited");
                self.first_failure.observe(Failure { rank, pid, status, at });
                if !status.success() && !self.is_ending() {
                    self.end(Reason::Rank);
                }
            }
            What::Said(FromAgent::Started { rank, pid }) => {
                tracing::info!(%rank, host = %self.crew.host(node), pid, "started");
            }
            What::Said(FromAgent::Done(receipt)) => {
                self.over[node.index()] = true;
                self.receipts.push((node, receipt));
            }
            What::Said(FromAgent::Failed { operation, cause }) => {
                self.lose(node, &format!("cannot {operation}: {cause}"));
            }
            What::Said(_) => {}
            What::Lost(how) => self.lose(node, &how),
        }
    }

    fn lose(&mut self, node: NodeId, how: &str) {
        self.over[node.index()] = true;
        let lost = self.crew.lost(node, how);
        if self.is_ending() {
            report::warn(&lost.message);
        } else {
            self.end(Reason::Lost(lost));
        }
    }

    fn on_signal(&mut self, asked: Asked) {
        match asked {
            Asked::Forward(signal) => self.crew.tell_all(&ToAgent::Signal(signal as i32)),
            Asked::End(signal) if !self.is_ending() => self.end(Reason::User(signal)),
            // The second time: now.
            Asked::End(_) => {
                self.crew.tell_all(&ToAgent::End { now: true });
                self.deadline = Some(Instant::now() + END_SLACK);
            }
        }
    }

    fn end(&mut self, reason: Reason) {
        let now = Instant::now();
        self.first_failure.ending(now);
        self.crew.tell_all(&ToAgent::End { now: false });
        self.deadline = Some(now + self.kill_after + END_SLACK);
        self.reason = Some(reason);
    }

    /// Closes everything, writes what is left, and turns the reason into words and a code.
    async fn conclude(self) -> Result<Exit, Failed> {
        let Watch { crew, writer, first_failure, reason, over, receipts, .. } = self;
        for (node, receipt) in &receipts {
            if !receipt.left.is_empty() {
                let left = receipt.left.join(", ");
                report::warn(&format!("{} could not end: {left}", crew.host(*node)));
            }
        }
        let unheard: Vec<String> = crew
            .nodes
            .iter()
            .filter(|node| !over[node.id.index()])
            .map(|node| node.host.to_string())
            .collect();
        if !unheard.is_empty() {
            report::warn(&format!("no word on the end of: {}", report::list(&unheard)));
        }
        let culprit = first_failure.verdict().map(|(failure, others)| {
            let rank_of = |n: &&crate::crew::Node| n.ranks.contains(&failure.rank);
            let host = crew.nodes.iter().find(rank_of).map(|n| n.host.to_string());
            (failure, others, host.unwrap_or_default())
        });
        crew.dismiss().await;
        let impatient = matches!(reason, Some(Reason::User(_) | Reason::ReaderGone));
        let written = match impatient {
            true => tokio::time::timeout(LAST_WRITE, writer.finish()).await.unwrap_or_default(),
            false => writer.finish().await,
        };
        match reason {
            None => Ok(Exit::SUCCESS),
            Some(Reason::User(signal)) => {
                Err(Failed::new(Exit::signal(signal as i32), format!("ended by {signal}")))
            }
            Some(Reason::ReaderGone) => Err(Failed::new(Exit::READER_GONE, "")),
            Some(Reason::Lost(failed)) => Err(failed),
            Some(Reason::Rank) => Err(match culprit {
                Some((failure, others, host)) => blame(failure, others, &host, &written),
                None => Failed::new(Exit::BUG, "the job was ended and no rank has failed"),
            }),
        }
    }
}

/// The report of the first failure.
fn blame(failure: Failure, others: u32, host: &str, written: &Written) -> Failed {
    let Failure { rank, pid, status, .. } = failure;
    let how = match status {
        ExitStatus::Code(code) => format!("exited with code {code}"),
        ExitStatus::Signal(number) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            format!("was killed by signal {number} ({name})")
        }
    };
    let message = format!("rank {rank} on {host} (pid {pid}) {how}");
    let mut failed = Failed::new(Exit::of_rank(status), message);
    let tail = written.tails.lines(rank);
    if !tail.is_empty() {
        failed.details.push("its last lines on stderr:".to_owned());
        failed.details.extend(tail.into_iter().map(|line| format!("  {line}")));
    }
    if others > 0 {
        let ranks = if others == 1 { "rank" } else { "ranks" };
        failed.details.push(format!("{others} more {ranks} failed"));
    }
    failed
}
