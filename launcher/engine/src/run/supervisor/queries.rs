//! Questions to the agents about their ranks: those of other rlaunch processes, of the watches for hangs and for stragglers,
//! which ask again and again, and at the end of `--timeout`. Requests of other rlaunch processes to end the job, and their
//! sessions beside ranks.

use super::{Action, Supervisor, job_ending};
use crate::run::events::Event;
use crate::run::hang::{self, HangWatch, Hung, OutsideWaits, PeerNode};
use crate::run::live::messages::Reply;
use crate::run::live::{Asker, InspectionAnswer, JobQuery, LiveStatus, QueryKind, SessionStep};
use crate::run::outcome::Reason;
use crate::run::signals::UserSignal;
use crate::run::stragglers::{StragglerWatch, Stragglers};
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use rlaunch_bootstrap::protocol::session::{FromSession, ToSession};
use rlaunch_plan::job::JobSpec;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

/// State of the ranks at `--timeout`, while it is collected.
#[derive(Debug, Default)]
pub(super) struct LastState {
    results: Vec<InspectionResult>,
    /// Questions that are still to be asked.
    questions: Vec<Inspection>,
}

impl Supervisor<'_> {
    pub(super) fn on_query(&mut self, now: Instant, JobQuery { connection, kind }: JobQuery) {
        let asker = Asker::Connection(connection);
        match kind {
            QueryKind::Closed => {
                self.inspections.on_asker_gone(asker);
                self.sessions.on_client_gone(connection);
                self.send_for_sessions();
            }
            QueryKind::Session(ToSession::Start(start)) => {
                let node = self.node_for_session(start.rank);
                self.sessions.start(connection, start, node);
                self.send_for_sessions();
            }
            QueryKind::Session(what) => {
                self.sessions.on_client(connection, what);
                self.send_for_sessions();
            }
            QueryKind::Inspect(what) => self.ask(now, asker, &what),
            QueryKind::End => {
                let reply = self.end_for_client(now);
                self.actions.push_back(Action::Reply(connection, reply));
            }
        }
    }

    /// Ends the job as SIGTERM of the user does. A second request ends it without the grace period.
    fn end_for_client(&mut self, now: Instant) -> Reply {
        if self.is_suspending() {
            return Reply::Refused("it is being suspended".to_owned());
        }
        self.on_signal(now, UserSignal::End(Signal::SIGTERM));
        Reply::Ending
    }

    /// Returns the node beside whose rank a session may begin, or the reason why it may not.
    fn node_for_session(&self, rank: Rank) -> Result<NodeId, String> {
        let Some(at) = self.nodes.iter().position(|node| node.ranks.contains(&rank)) else {
            let ranks: usize = self.nodes.iter().map(|node| node.ranks.len()).sum();
            return Err(format!("its last rank is {}", ranks.saturating_sub(1)));
        };
        let node = NodeId(u32::try_from(at).unwrap_or(u32::MAX));
        if self.is_ending() {
            Err("it is ending".to_owned())
        } else if self.is_suspending() {
            Err("it is suspended".to_owned())
        } else if self.ends[at].is_some() {
            Err(format!("all its ranks on {} have ended", self.host(node)))
        } else {
            Ok(node)
        }
    }

    /// Takes a message of an agent for a session.
    pub(super) fn on_session(&mut self, node: NodeId, id: u32, what: FromSession) {
        self.sessions.on_agent(node, id, what);
        self.send_for_sessions();
    }

    /// Sends the messages of sessions to agents and clients.
    pub(super) fn send_for_sessions(&mut self) {
        let action = |step| match step {
            SessionStep::Send(node, message) => Action::Send(node, message),
            SessionStep::Reply(connection, reply) => Action::Reply(connection, reply),
        };
        self.actions.extend(self.sessions.take_steps().into_iter().map(action));
    }

    /// Asks all nodes whose ranks have not ended.
    pub(super) fn ask(&mut self, now: Instant, asker: Asker, what: &Inspection) {
        let needs_program = matches!(what, Inspection::Stacks { .. } | Inspection::Collectives);
        if needs_program && !std::mem::replace(&mut self.has_offered_reader, true) {
            self.actions.push_back(Action::OfferStackReader);
        }
        let running = self.ends.iter().enumerate().filter(|(_, end)| end.is_none());
        let running = running.filter_map(|(node, _)| u32::try_from(node).ok().map(NodeId));
        let messages = self.inspections.ask(now, asker, what, running);
        let send = |(node, message)| Action::Send(node, message);
        self.actions.extend(messages.into_iter().map(send));
        self.send_answers(now);
    }

    /// Takes an answer of an agent.
    pub(super) fn on_inspected(
        &mut self,
        now: Instant,
        node: NodeId,
        id: u32,
        mut result: InspectionResult,
    ) {
        // Agents answer for their own ranks only.
        let own = self.nodes.get(node.index()).map(|node| &node.ranks);
        let is_own = |rank: &Rank| own.is_some_and(|own| own.contains(rank));
        if let InspectionResult::Usage(usage) = &mut result {
            usage.retain(|usage| is_own(&usage.rank));
        }
        if let InspectionResult::Stacks(stacks) = &mut result {
            stacks.retain(|stacks| is_own(&stacks.rank));
            let named = self.nodes.iter().map(|node| {
                let addresses = node.facts.addresses.iter().map(|own| own.address);
                (node.host.to_string(), &node.ranks, addresses.collect::<Vec<IpAddr>>())
            });
            let named: Vec<(String, &Vec<Rank>, Vec<IpAddr>)> = named.collect();
            let peers =
                named.iter().map(|(host, ranks, addresses)| PeerNode { host, ranks, addresses });
            let peers: Vec<PeerNode<'_>> = peers.collect();
            hang::name_peers(stacks, node, &peers);
        }
        if let InspectionResult::Collectives(positions) = &mut result {
            positions.retain(|position| is_own(&position.rank));
        }
        self.inspections.on_answer(node, id, result);
        self.send_answers(now);
    }

    /// Passes the answers of agents on to those that have asked.
    pub(super) fn send_answers(&mut self, now: Instant) {
        for (asker, answer) in self.inspections.take_answers() {
            match asker {
                Asker::Connection(connection) => {
                    let reply = answer.into_reply(|node| self.host(node));
                    self.actions.push_back(Action::Reply(connection, reply));
                }
                Asker::HangWatch => self.on_hang_answer(now, answer),
                Asker::StragglerWatch => self.on_straggler_answer(now, answer),
                Asker::Timeout => self.on_last_state(now, answer),
            }
        }
    }

    /// Handles `--timeout`: ends the job, after the state of its ranks was collected if the user wants that.
    pub(super) fn on_job_timeout(&mut self, now: Instant) {
        self.timeout = None;
        let report = self.job.timeout_report;
        let stacks = Inspection::Stacks { ranks: Vec::new(), native: true };
        let wanted = [(report.stacks, stacks), (report.state, Inspection::Usage)];
        let questions = wanted.into_iter().filter(|(is_wanted, _)| *is_wanted);
        let questions = questions.map(|(_, question)| question).collect();
        self.last_state = Some(LastState { results: Vec::new(), questions });
        self.ask_last_state(now);
    }

    fn ask_last_state(&mut self, now: Instant) {
        let next = self.last_state.as_mut().and_then(|state| state.questions.pop());
        match next {
            Some(what) => self.ask(now, Asker::Timeout, &what),
            None if self.is_ending() => {}
            None => {
                let after = self.job.timeout.unwrap_or_default();
                let details = self.last_state.take().map(|state| self.describe_last_state(&state));
                let why = format!("not done within {} s", after.as_secs_f64());
                let reason = Reason::Timeout(after, details.unwrap_or_default());
                self.end(now, reason, job_ending(why));
            }
        }
    }

    fn on_last_state(&mut self, now: Instant, answer: InspectionAnswer) {
        match answer {
            InspectionAnswer::Node(_, result) => {
                self.last_state.iter_mut().for_each(|state| state.results.push(result.clone()));
            }
            InspectionAnswer::Complete(_) | InspectionAnswer::Refused(_) => {
                self.ask_last_state(now);
            }
        }
    }

    /// Describes the last state of the ranks, one line for each group of ranks or each rank.
    fn describe_last_state(&self, state: &LastState) -> Vec<String> {
        let (mut usage, mut stacks, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for result in &state.results {
            match result {
                InspectionResult::Usage(ranks) => usage.extend(ranks.clone()),
                InspectionResult::Stacks(ranks) => stacks.extend(ranks.clone()),
                InspectionResult::Counters(_) | InspectionResult::Collectives(_) => {}
                InspectionResult::Failed(cause) => failed.push(cause.clone()),
            }
        }
        usage.sort_by_key(|rank| rank.rank);
        let states = usage.iter().map(|rank| hang::describe_state(rank, &self.host_of(rank.rank)));
        let mut lines: Vec<String> = states.collect();
        if !stacks.is_empty() {
            lines.extend(hang::describe(&stacks, |rank| self.host_of(rank)).1);
        }
        lines.extend(failed);
        lines
    }

    /// Returns the name of the host of a rank.
    pub(super) fn host_of(&self, rank: Rank) -> String {
        let node = self.nodes.iter().find(|node| node.ranks.contains(&rank));
        node.map(|node| node.host.to_string()).unwrap_or_default()
    }
}

/// Warning about a program whose ranks cannot be compared.
const NO_DATA: &str = "--straggler-report has nothing to compare yet: ranks neither print speeds, such as \
                       `812 images/s`, nor use rlaunch's communicator";
/// Number of ranges of ranks that are named on a host.
const RANGES: usize = 8;

/// Watches that the user wants.
#[derive(Debug)]
pub(super) struct Watches {
    hang: Option<HangWatch>,
    stragglers: Option<StragglerWatch>,
}

impl Watches {
    /// Makes the watches of a job whose ranks start at `now`.
    pub(super) fn new(job: &JobSpec, status: &LiveStatus, now: Instant) -> Watches {
        let readers = job.stdin.readers;
        let watch = |options| HangWatch::new(options, readers, status.clone(), now);
        let hang = job.watches.hang.map(watch);
        let stragglers = job.watches.straggler_window;
        let stragglers = stragglers.map(|time| StragglerWatch::new(time, status.clone(), now));
        Watches { hang, stragglers }
    }

    /// Returns the time at which a watch has a question.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let hang = self.hang.as_ref().and_then(HangWatch::deadline);
        hang.into_iter().chain(self.stragglers.as_ref().and_then(StragglerWatch::deadline)).min()
    }
}

impl Supervisor<'_> {
    /// Lets the watches ask their next questions, if these are due.
    pub(super) fn watch(&mut self, now: Instant, waits: OutsideWaits) {
        let question = self.watches.hang.as_mut().and_then(|watch| watch.on_time(now, waits));
        if let Some(what) = question {
            self.ask(now, Asker::HangWatch, &what);
        }
        if self.watches.stragglers.as_mut().is_some_and(|watch| watch.take_due(now)) {
            self.ask(now, Asker::StragglerWatch, &Inspection::Usage);
        }
    }

    pub(super) fn on_hang_answer(&mut self, now: Instant, answer: InspectionAnswer) {
        let Some(watch) = &mut self.watches.hang else { return };
        match answer {
            InspectionAnswer::Node(_, result) => watch.on_answer(result),
            InspectionAnswer::Complete(_) | InspectionAnswer::Refused(_) => {
                if let Some(hung) = watch.on_complete(now).filter(|_| !self.is_ending()) {
                    self.on_hang(now, &hung);
                }
            }
        }
    }

    /// Reports a job that makes no progress, and ends it if the user wants that.
    fn on_hang(&mut self, now: Instant, hung: &Hung) {
        let (mut sentence, mut lines) = hang::describe(&hung.stacks, |rank| self.host_of(rank));
        let comparison = hang::compare(&hung.positions, |rank| self.host_of(rank));
        // Ranks that wait for a GPU are all at the same place; a library knows which one is behind.
        if let Some(difference) = comparison.differences.first().filter(|_| lines.len() == 1) {
            sentence.clone_from(difference);
        }
        lines.splice(..0, comparison.differences);
        lines.extend(comparison.agreements);
        lines.retain(|line| !sentence.contains(line));
        let seconds = hung.quiet_for.as_secs();
        let message = format!("no progress for {seconds} s: {sentence}");
        self.emit(Event::Hang { seconds, text: message.clone(), groups: lines.clone() });
        if hung.ends_job {
            let failed = Failed::new(Exit::TIMEOUT, message.clone());
            let failed = Failed { details: lines, may_restart: true, ..failed };
            self.end(now, Reason::Hang(failed), job_ending(message));
        } else {
            self.warn(std::iter::once(message).chain(lines).collect::<Vec<_>>().join("\n  "));
        }
    }

    pub(super) fn on_straggler_answer(&mut self, now: Instant, answer: InspectionAnswer) {
        let Some(watch) = &mut self.watches.stragglers else { return };
        match answer {
            InspectionAnswer::Node(_, result) => watch.on_answer(result),
            InspectionAnswer::Complete(_) | InspectionAnswer::Refused(_) => {
                let (found, lacks_data) = (watch.on_complete(now), watch.lacks_data());
                if let Some(found) = found.filter(|_| !self.is_ending()) {
                    self.on_stragglers(&found);
                }
                if lacks_data && !self.is_ending() {
                    self.warn(NO_DATA.to_owned());
                }
            }
        }
    }

    fn on_stragglers(&mut self, Stragglers { ranks, comparison }: &Stragglers) {
        let text = format!("slower than the others: {}: {comparison}", self.name_by_host(ranks));
        let ranks = ranks.iter().map(|rank| rank.0).collect();
        self.emit(Event::Stragglers { ranks, text: text.clone() });
        self.warn(text);
    }

    /// Names ranks by their hosts: `ranks 4-7 on b, rank 9 on c`.
    fn name_by_host(&self, ranks: &[Rank]) -> String {
        let mut hosts: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for &rank in ranks {
            hosts.entry(self.host_of(rank)).or_default().push(rank.0);
        }
        let name = |(host, ranks): (String, Vec<u32>)| match ranks[..] {
            [rank] => format!("rank {rank} on {host}"),
            _ => format!("ranks {} on {host}", text::ranges(ranks.into_iter(), RANGES)),
        };
        hosts.into_iter().map(name).collect::<Vec<_>>().join(", ")
    }
}
