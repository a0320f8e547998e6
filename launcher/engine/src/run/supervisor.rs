//! Supervision of a running job: a state machine without I/O and without a clock.
//!
//! [`Supervisor`] takes [`Input`]s, each with the time at which it happened, and answers with
//! [`Action`]s, in order. [`crate::run::driver`] owns the channels, the terminal and the clock: it
//! hands inputs to [`Supervisor::handle`], calls [`Supervisor::handle_timeout`] at
//! [`Supervisor::poll_timeout`], and performs every action of [`Supervisor::poll_action`] before
//! the next input.
//!
//! ```text
//! running ── the first failed rank, lost node, abort, unserved MPI, link down, --timeout,
//!    │       signal of the user, output without a reader: the first of them is the Reason
//!    ▼
//! ending ─── ranks get the reason, then TERM; KILL follows after --kill-after
//!    │       a second signal of the user: KILL at once
//!    ▼
//! over ───── every node has reported its end, or the deadline for that has passed
//! ```
//!
//! A job whose ranks all exit goes from running to over. Ctrl-Z suspends a job that is running or ending:
//! until the nodes have stopped their ranks, only events of nodes and the clock are handled.
//!
//! | file | subject |
//! |---|---|
//! | `supervisor` | inputs and actions; which handler gets an input; lost nodes, signals of the user, the end of the job |
//! | `reports` | exits of ranks, by which most jobs end; links, waiting ranks, broken edges, unserved MPI, aborts |
//! | `queries` | questions to the agents: of other rlaunch processes, of watches, and at the end of `--timeout` |
//! | `suspension` | Ctrl-Z |

mod queries;
mod reports;
mod suspension;
#[cfg(test)]
mod tests;

use crate::connect::outbox::Reserved;
use crate::run::events::Event;
use crate::run::first_failure::FirstFailure;
use crate::run::hang::OutsideWaits;
use crate::run::links::LinkMonitor;
use crate::run::live::messages::Reply;
use crate::run::live::{ConnectionId, Inspections, JobQuery, LiveStatus, Sessions};
use crate::run::loss::Loss;
use crate::run::nodes::Node;
use crate::run::outcome::{NodeEnd, Outcome, Reason};
use crate::run::rendezvous::{Relay, no_library};
use crate::run::session::{NodeEvent, NodeEventKind};
use crate::run::signals::UserSignal;
use queries::{LastState, Watches};
use reports::{Abort, LineLimit};
use rlaunch_bootstrap::deadline::{self, Deadline};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::control::{FromAgent, Helper, ToAgent};
use rlaunch_bootstrap::protocol::rank::JobEvent;
use rlaunch_bootstrap::rendezvous::message::MAX_TEXT;
use rlaunch_bootstrap::rendezvous::rank_set::RankSet;
use rlaunch_plan::job::JobSpec;
use rlaunch_plan::job::apps::{DueProgram, StartOrder};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use suspension::Suspension;

/// Time, in addition to the grace period, that nodes have to end their ranks and to report their end.
const END_SLACK: Duration = Duration::from_secs(4);
/// Time for which a reader of the output may take nothing when the job is to end whether or not it reads.
pub(crate) const READER_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum length of a reason that is sent to ranks, in characters, which take up to 4 bytes each.
const MAX_REASON: usize = MAX_TEXT / 4;

/// Event to which the supervisor of a running job reacts.
#[derive(Debug)]
pub(crate) enum Input {
    /// A message from an agent, or the loss of an agent.
    Node(NodeEvent),
    /// Every session has ended, so no node will report anything more.
    SessionsClosed,
    Signal(UserSignal),
    /// The reader of this process's stdout or stderr has closed it.
    ReaderGone,
    /// Another rlaunch asks about the job.
    Query(JobQuery),
}

/// Action for the driver.
#[derive(Debug)]
pub(crate) enum Action {
    Send(NodeId, ToAgent),
    SendAll(ToAgent),
    /// Forward bytes from one node to its neighbour in the tree.
    Relay {
        from: NodeId,
        to: NodeId,
        data: Vec<u8>,
        room: Option<Reserved>,
    },
    Emit(Event),
    /// Offer the program that reads stacks to all nodes, before they are asked for stacks.
    OfferStackReader,
    /// Send the program that reads stacks to a node that has asked for it.
    SendStackReader(NodeId),
    /// Answer another rlaunch that has asked about the job.
    Reply(ConnectionId, Reply),
    /// Print a line about the job's progress.
    Info(String),
    Warn(String),
    /// Give up from now on each reader of the output that takes nothing for this time.
    LimitReaders(Duration),
    /// Stop this process, as Ctrl-Z does by default. The action is done when the process is continued.
    StopProcess,
}

/// State machines that were made in earlier phases and are used while ranks run.
pub(crate) struct PhaseStates {
    pub relay: Relay,
    pub links: LinkMonitor,
    pub order: StartOrder,
}

/// State of a running job.
pub(crate) struct Supervisor<'a> {
    job: &'a JobSpec,
    nodes: Vec<Node>,
    /// Lines that each node may still cause.
    line_limits: Vec<LineLimit>,
    relay: Relay,
    links: LinkMonitor,
    order: StartOrder,
    actions: VecDeque<Action>,
    first_failure: FirstFailure,
    /// Reason why the job is being ended; `None` while it runs.
    reason: Option<Reason>,
    /// Whether the loss of a node was told, by node. A channel that then ends says no more.
    told_losses: Vec<bool>,
    /// Final reports, by node; `None` until the node has reported its end, or was cleaned up after its loss.
    ends: Vec<Option<NodeEnd>>,
    /// Time at which `--timeout` ends the job.
    timeout: Option<Instant>,
    /// Time limit for nodes to report their end; `None` until the job is being ended.
    end_deadline: Option<Deadline>,
    /// Whether the user has asked for the end.
    asked_to_end: bool,
    suspension: Option<Suspension>,
    warned_of_mpi: bool,
    /// Ranks that have called `MPI_Abort`.
    aborting_ranks: Vec<Rank>,
    /// Rank whose `MPI_Abort` ended the job, and the time at which that was received. `None` if the program itself
    /// called it, since then no other rank is the cause.
    mpi_aborted: Option<(Rank, Instant)>,
    exited: Exited,
    broken_edges: Option<BrokenEdges>,
    inspections: Inspections,
    sessions: Sessions,
    watches: Watches,
    last_state: Option<LastState>,
    /// Whether nodes were offered the program that reads stacks.
    has_offered_reader: bool,
    sessions_closed: bool,
    gave_up: bool,
}

/// Ranks that exited successfully and were not reported to the other ranks yet.
#[derive(Default)]
struct Exited {
    ranks: RankSet,
    /// Time at which `ranks` are reported to the other ranks; `None` while `ranks` is empty.
    due: Option<Instant>,
}

/// Lines about edges of the tree that broke, to be printed when they are due.
struct BrokenEdges {
    due: Instant,
    lines: Vec<String>,
}

impl<'a> Supervisor<'a> {
    /// Makes the supervisor at `now`, the time at which nodes were ordered to start their ranks. `status` has the time of
    /// the last output.
    pub(crate) fn new(
        job: &'a JobSpec,
        nodes: Vec<Node>,
        PhaseStates { relay, links, order }: PhaseStates,
        status: &LiveStatus,
        now: Instant,
    ) -> Supervisor<'a> {
        Supervisor {
            job,
            told_losses: vec![false; nodes.len()],
            ends: nodes.iter().map(|_| None).collect(),
            line_limits: nodes.iter().map(|_| LineLimit::new(now)).collect(),
            nodes,
            relay,
            links,
            order,
            actions: VecDeque::new(),
            first_failure: FirstFailure::default(),
            reason: None,
            timeout: job.timeout.map(|timeout| now + timeout),
            end_deadline: None,
            asked_to_end: false,
            suspension: None,
            warned_of_mpi: false,
            aborting_ranks: Vec::new(),
            mpi_aborted: None,
            exited: Exited::default(),
            broken_edges: None,
            inspections: Inspections::default(),
            sessions: Sessions::default(),
            watches: Watches::new(job, status, now),
            last_state: None,
            has_offered_reader: false,
            sessions_closed: false,
            gave_up: false,
        }
    }

    /// Tells whether supervision is over: all nodes have reported their end and no Ctrl-Z is pending, or no
    /// node can report any more, or the deadline for their reports has passed.
    pub(crate) fn is_over(&self) -> bool {
        let all_ended = self.ends.iter().all(Option::is_some);
        self.sessions_closed || self.gave_up || (all_ended && self.suspension.is_none())
    }

    /// Tells whether nodes are stopping their ranks because of a Ctrl-Z. During that time, the caller must
    /// pass in only events of nodes, and leave signals and the loss of the output's reader for later.
    pub(crate) fn is_suspending(&self) -> bool {
        self.suspension.is_some()
    }

    /// Handles an input. The resulting actions are queued.
    pub(crate) fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Node(NodeEvent {
                kind: NodeEventKind::Message(FromAgent::Suspended), ..
            }) => {
                self.on_suspended();
            }
            Input::Node(event) => self.on_node(now, event),
            Input::SessionsClosed => {
                self.stop_process();
                self.sessions_closed = true;
            }
            Input::Signal(signal) => self.on_signal(now, signal),
            Input::Query(query) => self.on_query(now, query),
            Input::ReaderGone if self.is_ending() => {}
            Input::ReaderGone => {
                self.end(
                    now,
                    Reason::ReaderGone,
                    job_ending("its output cannot be written any more"),
                );
            }
        }
    }

    /// Handles the timers that are due at `now`, when the job waits for these. A node reports its end behind its output, so
    /// its time for that does not run while output waits for its reader.
    pub(crate) fn handle_timeout(&mut self, now: Instant, waits: OutsideWaits) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if let Some(suspension) = &self.suspension {
            if is_due(Some(suspension.due)) {
                self.stop_process();
            }
            return;
        }
        if is_due(self.inspections.deadline()) {
            self.inspections.on_time(now);
            self.send_answers(now);
        }
        if !self.is_ending() {
            self.watch(now, waits);
        }
        if is_due(self.broken_edges.as_ref().map(|edges| edges.due)) {
            self.print_broken_edges();
        }
        if is_due(self.order.deadline()) && !self.is_ending() {
            self.actions.extend(self.order.on_time(now).into_iter().map(Action::Info));
        }
        if is_due(self.links.deadline()) && !self.is_ending() {
            self.links.on_time(now);
            self.send_for_links();
        }
        if is_due(self.exited.due) && !self.is_ending() {
            // Ranks may wait for a rank that has exited. Without a connection to it they would not notice its
            // end.
            let Exited { ranks, .. } = std::mem::take(&mut self.exited);
            self.send_all(ToAgent::JobEvent(JobEvent::RanksFinished { ranks }));
        }
        if is_due(self.timeout) && !self.is_ending() {
            self.on_job_timeout(now);
        }
        if let Some(deadline) = self.end_deadline.as_mut().filter(|_| waits.output) {
            deadline.restart(now);
        }
        if let Some(deadline) = &mut self.end_deadline
            && now >= deadline.next_check()
            && deadline.has_expired(now)
        {
            self.gave_up = true;
        }
    }

    /// Returns the time at which [`Supervisor::handle_timeout`] is due; `None` if no timer is running.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if let Some(suspension) = &self.suspension {
            return Some(suspension.due);
        }
        let broken = self.broken_edges.as_ref().map(|edges| edges.due);
        let watches = self.watches.deadline();
        let only_running =
            [self.order.deadline(), self.links.deadline(), self.exited.due, self.timeout, watches];
        let only_running = only_running.into_iter().flatten().filter(|_| !self.is_ending());
        let end = self.end_deadline.as_ref().map(Deadline::next_check);
        only_running.chain(broken).chain(end).chain(self.inspections.deadline()).min()
    }

    /// Returns the next action, or `None` if there is none.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the nodes, indexed by [`NodeId`].
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        let Supervisor { nodes, first_failure, reason, ends, .. } = self;
        Outcome { nodes, first_failure, reason, ends }
    }

    /// Tells whether the ranks are being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.reason.is_some()
    }

    fn on_node(&mut self, now: Instant, NodeEvent { node, kind, room }: NodeEvent) {
        match kind {
            NodeEventKind::Message(FromAgent::Relay { to, data }) => {
                if self.relay.may_relay(node, to) {
                    self.actions.push_back(Action::Relay { from: node, to, data, room });
                }
            }
            NodeEventKind::Message(message) => match Loss::reported(&message) {
                Some(loss) => self.on_loss(now, node, &loss),
                None => {
                    // What was asked for comes once.
                    let is_asked = matches!(message, FromAgent::Inspected { .. });
                    let before = self.actions.len();
                    self.on_message(now, node, message);
                    if !is_asked {
                        self.limit_lines(now, node, before);
                    }
                }
            },
            NodeEventKind::Lost(how) => self.on_loss(now, node, &Loss::of_channel(how)),
            NodeEventKind::JobOver(how) => self.on_job_over(now, node, how),
            NodeEventKind::CleanedUp(outcome) => {
                self.ends[node.index()] = Some(NodeEnd::Lost(outcome));
            }
        }
    }

    /// Tells whether a message reports a rank that its node does not run, which only a faulty agent sends.
    fn is_about_foreign_rank(&self, node: NodeId, message: &FromAgent) -> bool {
        let (FromAgent::Started { rank, .. }
        | FromAgent::RankError { rank, .. }
        | FromAgent::Exited { rank, .. }) = message
        else {
            return false;
        };
        let is_foreign = !self.nodes[node.index()].ranks.contains(rank);
        if is_foreign {
            tracing::debug!(%rank, host = %self.host(node), "the agent does not run this rank");
        }
        is_foreign
    }

    fn on_message(&mut self, now: Instant, node: NodeId, message: FromAgent) {
        let host = self.host(node);
        if self.is_about_foreign_rank(node, &message) {
            return;
        }
        match message {
            FromAgent::Started { rank, pid } => {
                tracing::info!(%rank, %host, pid, "started");
                self.emit(Event::RankStarted { rank: rank.0, host, pid });
                let due = self.order.on_rank_started(rank);
                self.start(due);
            }
            FromAgent::RankError { rank, content } => {
                self.first_failure.note_error(rank, &content);
            }
            FromAgent::Exited { .. } => self.on_exit_report(now, node, &host, &message),
            FromAgent::PortOpen { id } => {
                let due = self.order.on_port_open(id);
                self.start(due);
            }
            FromAgent::NoLibrary { cause } => self.warn(no_library(&host, &cause)),
            FromAgent::Done(receipt) => {
                let (helpers_ended, segments_removed) =
                    (receipt.leftovers_ended, receipt.segments_removed);
                self.emit(Event::NodeClean { host, helpers_ended, segments_removed });
                self.ends[node.index()] = Some(NodeEnd::Done(receipt));
                self.inspections.on_node_gone(node);
                self.send_answers(now);
                self.sessions.on_node_done(node);
                self.send_for_sessions();
            }
            FromAgent::GraceRestarted => self.end_deadline.iter_mut().for_each(|d| d.restart(now)),
            FromAgent::UnservedMpi { pid, what } => self.on_unserved(now, &host, pid, &what),
            FromAgent::EdgeBroke { peer, how } => self.on_broken_edge(now, node, peer, &how),
            FromAgent::Waiting { what, waited_ms, missing } => {
                self.on_waiting(what, waited_ms, &missing);
            }
            FromAgent::WaitingForKey { key, waited_ms } => {
                self.info(reports::waiting_for_key(&key, waited_ms));
            }
            FromAgent::Aborted { by, text, code } => {
                let abort = Abort { by, text, code };
                self.on_abort(now, &host, &abort);
            }
            FromAgent::RankEvent { rank, text } => {
                self.emit(Event::Custom { rank: rank.0, text });
            }
            FromAgent::PathEvent(event) => {
                let change = self.links.on_path_event(now, event);
                self.on_link(now, change);
            }
            FromAgent::PathEndpoints { round, endpoints: given } => {
                self.links.on_endpoints(node, round, given);
                self.send_for_links();
            }
            FromAgent::RoundDone { round, outcomes, .. } => {
                let change = self.links.on_round_done(now, node, round, outcomes);
                self.send_for_links();
                self.on_link(now, change);
            }
            FromAgent::NeedsHelper(Helper::Stack) => {
                self.actions.push_back(Action::SendStackReader(node));
            }
            FromAgent::Session { id, what } => self.on_session(node, id, what),
            FromAgent::Inspected { id, result } => self.on_inspected(now, node, id, result),
            // The others belong to earlier phases, or the session has handled them.
            _ => {}
        }
    }

    /// Starts applications whose conditions are met, unless the job is being ended.
    fn start(&mut self, due: Vec<DueProgram>) {
        if self.is_ending() {
            return;
        }
        for DueProgram { index, nodes } in due {
            tracing::info!("application {} starts", index + 1);
            let start = |node| Action::Send(node, ToAgent::StartApplication { index });
            self.actions.extend(nodes.into_iter().map(start));
        }
    }

    fn on_loss(&mut self, now: Instant, node: NodeId, loss: &Loss) {
        // A node that is done has no ranks that could be lost.
        if loss.ends_in_order && (self.is_ending() || self.ends[node.index()].is_some()) {
            return;
        }
        let host = self.host(node);
        let lost = loss.error(&host);
        if !loss.ends_in_order {
            self.inspections.on_node_gone(node);
            self.send_answers(now);
            self.sessions.on_node_lost(node, &lost.message);
            self.send_for_sessions();
        }
        if std::mem::replace(&mut self.told_losses[node.index()], true) {
            return;
        }
        self.emit(Event::NodeLost { host, cause: loss.how.clone() });
        if self.is_ending() {
            self.actions.push_back(Action::LimitReaders(READER_PATIENCE));
            self.warn(lost.message);
        } else {
            let how = loss.how.chars().take(MAX_REASON).collect();
            self.end(now, Reason::Lost(lost), JobEvent::NodeLost { node, how });
        }
    }

    /// Handles the end of the batch system's job on a node. It comes on all nodes at about the same time; only the first
    /// begins the grace of the ranks, which lasts until the batch system has ended what is its own.
    fn on_job_over(&mut self, now: Instant, node: NodeId, how: String) {
        if !self.is_ending() {
            return self.on_loss(now, node, &Loss::of_job(how));
        }
        let is_told = std::mem::replace(&mut self.told_losses[node.index()], true);
        let by_job = matches!(&self.reason, Some(Reason::Lost(lost)) if !lost.may_restart);
        if self.ends[node.index()].is_none() && (is_told || !by_job) {
            self.end_now(now);
        }
    }

    /// Ends the ranks of a job that is being ended without the rest of their grace.
    fn end_now(&mut self, now: Instant) {
        self.send_all(ToAgent::End { now: true });
        self.set_end_deadline(now, END_SLACK);
    }

    fn on_signal(&mut self, now: Instant, signal: UserSignal) {
        match signal {
            UserSignal::Forward(signal) => self.send_all(ToAgent::Signal(signal as i32)),
            UserSignal::Resize(size) => self.send_all(ToAgent::Resize(size)),
            UserSignal::Suspend => self.suspend(now),
            UserSignal::End(signal) if !self.is_ending() => {
                self.asked_to_end = true;
                self.end(now, Reason::User(signal), job_ending(format!("ended by {signal}")));
            }
            UserSignal::End(_) => {
                self.end_now(now);
                let is_first = !std::mem::replace(&mut self.asked_to_end, true);
                let patience = if is_first { READER_PATIENCE } else { Duration::ZERO };
                self.actions.push_back(Action::LimitReaders(patience));
            }
        }
    }

    /// Begins to end the job. Ranks that wait for others are sent `event`, which has the reason, before they
    /// are ended.
    fn end(&mut self, now: Instant, reason: Reason, event: JobEvent) {
        self.first_failure.begin_ending(now);
        self.send_all(ToAgent::JobEvent(event));
        self.send_all(ToAgent::End { now: false });
        self.set_end_deadline(now, self.job.kill_after + END_SLACK);
        if reason.limits_readers() {
            self.actions.push_back(Action::LimitReaders(READER_PATIENCE));
        }
        self.reason = Some(reason);
    }

    fn set_end_deadline(&mut self, now: Instant, limit: Duration) {
        self.end_deadline =
            Some(Deadline::after(limit, now).checked_every(deadline::CHECK_INTERVAL));
    }

    /// Returns the name of a node's host, or `unknown node N` for an id that no node has, which only a faulty
    /// agent sends.
    fn host(&self, node: NodeId) -> String {
        let known = self.nodes.get(node.index());
        known.map_or_else(|| format!("unknown node {}", node.0), |node| node.host.to_string())
    }

    fn send_all(&mut self, message: ToAgent) {
        self.actions.push_back(Action::SendAll(message));
    }

    fn send_for_links(&mut self) {
        let messages = self.links.take_messages();
        self.actions.extend(messages.into_iter().map(|(node, text)| Action::Send(node, text)));
    }

    fn emit(&mut self, event: Event) {
        self.actions.push_back(Action::Emit(event));
    }

    fn info(&mut self, line: String) {
        self.actions.push_back(Action::Info(line));
    }

    fn warn(&mut self, line: String) {
        self.actions.push_back(Action::Warn(line));
    }
}

/// Makes the event that tells ranks why the job is ended. Failed ranks and lost nodes have events of their
/// own.
fn job_ending(why: impl Into<String>) -> JobEvent {
    let why: String = why.into();
    JobEvent::JobEnding { why: why.chars().take(MAX_REASON).collect() }
}
