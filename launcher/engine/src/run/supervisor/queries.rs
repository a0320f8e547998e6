//! Questions to the agents about their ranks: those of other rlaunch processes, of watches, and at the end of
//! `--timeout`. Requests of other rlaunch processes to end the job, and their sessions beside ranks.

use super::{Action, SupervisedNode, Supervisor, job_ending};
use crate::run::hang::{self, PeerNode};
use crate::run::live::messages::Reply;
use crate::run::live::{Asker, InspectionAnswer, JobQuery, QueryKind, SessionStep};
use crate::run::outcome::Reason;
use crate::run::signals::UserSignal;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use rlaunch_bootstrap::protocol::session::{FromSession, ToSession};
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
                let node = self.node_of(start.rank);
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
    fn node_of(&self, rank: Rank) -> Result<NodeId, String> {
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
            let nodes = self.nodes.iter();
            let peers = nodes.map(|SupervisedNode { host, ranks, addresses, .. }| PeerNode {
                host,
                ranks,
                addresses,
            });
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
                let details = self.last_state.take().map(|state| self.describe(&state));
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
    fn describe(&self, state: &LastState) -> Vec<String> {
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
        node.map(|node| node.host.clone()).unwrap_or_default()
    }
}
