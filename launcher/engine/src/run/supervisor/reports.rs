//! Reports of agents about which a line is printed, or by which the job ends: exits of ranks, links, waiting ranks,
//! broken edges of the tree, unserved MPI, and aborts, which are requests by ranks or agents to end the job.

use super::{Action, BrokenEdges, Supervisor, job_ending};
use crate::run::events::Event;
use crate::run::first_failure::RankExit;
use crate::run::links::LinkChange;
use crate::run::outcome::Reason;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::SingletonPolicy;
use rlaunch_bootstrap::protocol::control::{FromAgent, ToAgent, UnservedMpi};
use rlaunch_bootstrap::protocol::rank::JobEvent;
use rlaunch_bootstrap::rendezvous::message::MissingRanks;
use rlaunch_plan::checks;
use rlaunch_plan::findings::{self, id};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::{Duration, Instant};

/// Delay before a broken edge of the tree is printed. If one of its nodes is lost meanwhile, only that loss
/// is printed.
const EDGE_DELAY: Duration = Duration::from_secs(1);
/// Time for which successful exits are collected into one message, since most ranks exit at about the same
/// time.
const EXITS_DELAY: Duration = Duration::from_millis(100);

/// Number of lines that messages of a node may cause at once.
const MAX_LINES: u32 = 100;
/// Time after which they may cause another one.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Maximum length of such a line, in characters.
const LONGEST: usize = 2000;

/// Limit on the lines that messages of one node cause: a faulty agent may send any number of them, of any length.
pub(super) struct LineLimit {
    left: u32,
    /// Time from which on further lines are earned.
    since: Instant,
    /// Whether it was said that lines are left out.
    is_told: bool,
}

impl LineLimit {
    pub(super) fn new(now: Instant) -> LineLimit {
        LineLimit { left: MAX_LINES, since: now, is_told: false }
    }

    /// Takes a line. Returns `None` if it may not be printed, else whether a notice must follow that the next are left
    /// out.
    fn take(&mut self, now: Instant) -> Option<bool> {
        let earned = now.saturating_duration_since(self.since).as_secs() / LINE_EVERY.as_secs();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(earned).min(MAX_LINES);
        if self.left == MAX_LINES {
            self.since = now;
        } else {
            self.since += LINE_EVERY * earned;
        }
        self.left = self.left.checked_sub(1)?;
        let tells = self.left == 0 && !self.is_told;
        self.is_told |= tells;
        Some(tells)
    }
}

/// Shortens a line that may quote an agent.
fn shorten(line: &mut String) {
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push('…');
    }
}

impl Supervisor<'_> {
    /// Shortens the lines among the actions from `from` on, which a message of a node has caused, and drops those that are
    /// too many.
    pub(super) fn limit_lines(&mut self, now: Instant, node: NodeId, from: usize) {
        let is_line = |action: &Action| matches!(action, Action::Info(_) | Action::Warn(_));
        if !self.actions.range(from..).any(is_line) {
            return;
        }
        for mut action in self.actions.split_off(from) {
            let (Action::Info(line) | Action::Warn(line)) = &mut action else {
                self.actions.push_back(action);
                continue;
            };
            shorten(line);
            let Some(tells) = self.line_limits[node.index()].take(now) else { continue };
            self.actions.push_back(action);
            if tells {
                let host = self.host(node);
                self.warn(format!(
                    "{host}: its agent sends too many reports, the next are left out"
                ));
            }
        }
    }

    /// Handles the report of a rank's exit, a [`FromAgent::Exited`].
    pub(super) fn on_exit_report(
        &mut self,
        now: Instant,
        node: NodeId,
        host: &str,
        report: &FromAgent,
    ) {
        let &FromAgent::Exited { rank, pid, status, out_of_memory, unfinalized, by_itself, at_us } =
            report
        else {
            return;
        };
        tracing::info!(%rank, %host, pid, ?status, "exited");
        self.emit(Event::rank_exited(rank, host.to_owned(), pid, status));
        let at = self.nodes[node.index()].hello_at + Duration::from_micros(at_us);
        // The agent counts from the sending of its hello, which was before `hello_at`, so the sum is somewhat
        // late. An exit cannot be later than its report.
        let at = at.min(now);
        let exit = RankExit { rank, pid, status, out_of_memory, unfinalized, by_itself, at };
        self.on_exit(now, host, exit);
    }

    fn on_exit(&mut self, now: Instant, host: &str, exit: RankExit) {
        let (rank, status) = (exit.rank, exit.status);
        self.first_failure.observe(exit);
        self.explain_abort(exit);
        if exit.has_failed() && !self.is_ending() {
            let ends = !self.job.continue_on_error;
            let event = JobEvent::RankFailed { rank, status, ends };
            if ends {
                self.end(now, Reason::Rank, event);
            } else {
                self.send_all(ToAgent::JobEvent(event));
            }
        }
        if status.success() {
            self.exited.ranks.insert(rank);
            self.exited.due.get_or_insert(now + EXITS_DELAY);
        }
        if self.job.serve && !self.is_ending() {
            let line = format!("rank {rank} on {host} has ended, so the others are ended too");
            self.end(now, Reason::Served(line.clone()), job_ending(line));
        }
        let due = self.order.on_rank_started(rank);
        self.start(due);
    }

    pub(super) fn on_link(&mut self, now: Instant, change: Option<LinkChange>) {
        // Ranks that are being ended no longer use links.
        if self.is_ending() {
            return;
        }
        match change {
            Some(LinkChange::Down(line)) => {
                self.emit(Event::LinkDown { text: line.clone() });
                if self.job.options.mesh.abort_on_link_down {
                    let why = job_ending(line.clone());
                    self.end(now, Reason::Link(Failed::new(Exit::MESH, line)), why);
                } else {
                    self.warn(line);
                }
            }
            Some(LinkChange::Dead(what, nodes)) => {
                // Ranks of these nodes would wait for ever for data that was sent over the link.
                let event = JobEvent::LinkDown { nodes, what };
                let send = |node| Action::Send(node, ToAgent::JobEvent(event.clone()));
                self.actions.extend(nodes.into_iter().map(send));
            }
            Some(LinkChange::Up(line)) => {
                self.emit(Event::LinkUp { text: line.clone() });
                self.info(line);
            }
            None => {}
        }
    }

    /// Handles an edge of the tree that broke and is relayed from now on. The line about the edge is printed
    /// after [`EDGE_DELAY`], unless the job is being ended by then: the edge may have broken because one of
    /// its nodes was lost.
    pub(super) fn on_broken_edge(&mut self, now: Instant, node: NodeId, peer: NodeId, how: &str) {
        tracing::info!(%node, %peer, how, "edge broke");
        let Some((parent, child)) = self.relay.broke(node, peer) else { return };
        let (parent, child) = (self.host(parent), self.host(child));
        // Both hosts are reached from here, so silence between them is not the hosts'. The words are those of ETIMEDOUT,
        // and of an agent whose neighbour is silent.
        let is_silent = how.contains("timed out") || how.starts_with("nothing received");
        let advice = if is_silent {
            format!(
                "; `rlaunch doctor -H {parent},{child}` tells whether large packets are lost (MTU)"
            )
        } else {
            String::new()
        };
        let mut line = format!(
            "the connection between {child} and {parent} broke ({how}): their messages go \
             through this machine{advice}"
        );
        shorten(&mut line);
        self.emit(Event::EdgeRelayed { parent, child });
        let due = now + EDGE_DELAY;
        let edges = self.broken_edges.get_or_insert(BrokenEdges { due, lines: Vec::new() });
        edges.lines.push(line);
    }

    pub(super) fn print_broken_edges(&mut self) {
        let lines = self.broken_edges.take().map(|edges| edges.lines).unwrap_or_default();
        if !self.is_ending() {
            self.actions.extend(lines.into_iter().map(Action::Info));
        }
    }

    /// Reports ranks that others wait for: `barrier "x": waiting 10 s for rank 2 on c (pid 4711, running, has
    /// not arrived)`.
    pub(super) fn on_waiting(&mut self, what: String, waited_ms: u64, missing: &MissingRanks) {
        let described = missing.states.iter();
        let mut named: Vec<String> = described
            .map(|(rank, seen)| format!("rank {rank} on {} ({seen})", self.host_of(*rank)))
            .collect();
        let more = (missing.ranks.len() as usize).saturating_sub(named.len());
        if more > 0 {
            named.push(format!("and {more} more"));
        }
        let missing = named.join(", ");
        let seconds = waited_ms as f64 / 1e3;
        let line = format!("{what}: waiting {seconds:.0} s for {missing}");
        self.emit(Event::Waiting { what, seconds, missing });
        self.info(line);
    }

    pub(super) fn on_unserved(&mut self, now: Instant, host: &str, pid: u32, what: &UnservedMpi) {
        if self.is_ending() {
            return;
        }
        let process = format!("process {pid} on {host}");
        let (sentence, hint) = checks::unserved_mpi(&process, &what.library, &what.needs);
        if what.linked && self.job.singleton == SingletonPolicy::Error {
            let why = job_ending(sentence.clone());
            let failed = Failed::new(Exit::SINGLETON, sentence).hint(Some(hint));
            let failed = findings::with_finding(failed, Some(id::MPI_SINGLETON));
            self.end(now, Reason::Singleton(failed), why);
        } else if !std::mem::replace(&mut self.warned_of_mpi, true) {
            self.warn(sentence);
        }
    }
}

pub(super) fn waiting_for_key(key: &str, waited_ms: u64) -> String {
    format!("ranks have waited {} s for key {key}: no rank has put it", waited_ms / 1000)
}

/// Beginning of the text with which MPICH reports an `MPI_Abort` of the program.
const BY_PROGRAM: &str = "application called MPI_Abort";

/// Request to end the job.
pub(super) struct Abort {
    /// Rank that made the request; `None` if an agent did.
    pub(super) by: Option<Rank>,
    /// Reason that was given; may be empty if `code` is set.
    pub(super) text: String,
    /// Argument of `MPI_Abort`; `None` if the request did not come from that function.
    pub(super) code: Option<i32>,
}

impl Abort {
    /// Makes the error of the aborted job. `host` is the host of the rank or agent that made the request.
    pub(super) fn failed(&self, host: &str) -> Failed {
        match (self.by, self.code) {
            (Some(rank), Some(code)) => {
                let message = format!("rank {rank} on {host} called MPI_Abort({code})");
                let mut failed = Failed::new(mpi_exit(code), message);
                failed.details.extend(self.reason().map(|line| format!("  {line}")));
                failed
            }
            (Some(rank), None) => {
                let message = format!("rank {rank} on {host} aborted the job: {}", self.text);
                Failed::new(Exit::ABORTED, message)
            }
            (None, _) => {
                Failed::new(Exit::ABORTED, format!("{host} aborted the job: {}", self.text))
            }
        }
    }

    /// Tells whether the program called `MPI_Abort`, as MPICH says, and not the library after an error. Open MPI does
    /// not tell.
    fn is_by_program(&self) -> bool {
        self.text.trim_start().starts_with(BY_PROGRAM)
    }

    /// Returns the lines of the reason, without those that only repeat that `MPI_Abort` was called: Open MPI
    /// gives `N/A` as the reason, and MPICH a sentence.
    fn reason(&self) -> impl Iterator<Item = &str> {
        let says_more =
            |line: &&str| !line.is_empty() && *line != "N/A" && !line.starts_with(BY_PROGRAM);
        self.text.lines().map(str::trim_end).filter(says_more)
    }
}

impl Supervisor<'_> {
    /// Handles an abort. If the job is being ended because the aborting rank has exited, the abort replaces
    /// that exit as the reason.
    pub(super) fn on_abort(&mut self, now: Instant, host: &str, abort: &Abort) {
        let failed = abort.failed(host);
        // A rank that aborts because another one has is not the cause, whenever its exit is reported.
        self.aborting_ranks.extend(abort.code.and(abort.by));
        if self.is_ending() {
            let first = self.first_failure.first().map(|(exit, _)| exit.rank);
            if matches!(self.reason, Some(Reason::Rank)) && abort.by.is_some() && first == abort.by
            {
                self.reason = Some(Reason::Aborted(failed));
            }
            return;
        }
        let by_library = abort.code.and(abort.by).filter(|_| !abort.is_by_program());
        self.mpi_aborted = by_library.map(|rank| (rank, now));
        let why = job_ending(failed.message.clone());
        self.end(now, Reason::Aborted(failed), why);
    }

    /// Replaces an `MPI_Abort` as the reason for the end of the job by the exit of another rank that was the
    /// cause. MPI libraries call it when the connection to a rank has broken, which often happens before the
    /// exit of that rank is reported.
    pub(super) fn explain_abort(&mut self, exit: RankExit) {
        let Some((rank, at)) = self.mpi_aborted else { return };
        if matches!(self.reason, Some(Reason::Aborted(_)))
            && exit.rank != rank
            && !self.aborting_ranks.contains(&exit.rank)
            && exit.may_cause_abort(at)
        {
            self.first_failure.blame(exit);
            self.reason = Some(Reason::Rank);
        }
    }
}

/// Returns the exit code for `MPI_Abort(code)`: the lowest 8 bits of `code`, as for any process, or 1 if they
/// are 0.
fn mpi_exit(code: i32) -> Exit {
    match code.to_le_bytes()[0] {
        0 => Exit::ABORTED,
        code => Exit(code),
    }
}
