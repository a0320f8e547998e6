//! Questions to the agents of a running job that wait for answers. A state machine without I/O and without a
//! clock, part of the supervisor.

use super::messages::Reply;
use super::socket::ConnectionId;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time that nodes have to answer. A node that is busy with its ranks answers later than an idle one, but a user
/// waits.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for what libraries are asked: torch looks once a second whether it is asked.
const LIBRARY_TIMEOUT: Duration = Duration::from_secs(9);

/// Maximum number of questions that wait at a time. Further ones are refused.
const MAX_PENDING: usize = 32;

/// Part of rlaunch that has asked a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asker {
    /// Client of the job's socket.
    Connection(ConnectionId),
    HangWatch,
    StragglerWatch,
    /// End of `--timeout`, with a report.
    Timeout,
}

/// Questions that wait for answers.
#[derive(Debug, Default)]
pub(crate) struct Inspections {
    next: u32,
    pending: BTreeMap<u32, Pending>,
    answers: Vec<(Asker, InspectionAnswer)>,
}

/// Answer to a question, or the end of the answers.
#[derive(Debug, PartialEq)]
pub(crate) enum InspectionAnswer {
    /// Answer of one node.
    Node(NodeId, InspectionResult),
    /// No more answers will come; these nodes have not answered.
    Complete(Vec<NodeId>),
    /// The question was not asked, for this reason.
    Refused(&'static str),
}

#[derive(Debug)]
struct Pending {
    asker: Asker,
    waiting: BTreeSet<NodeId>,
    deadline: Instant,
}

impl Inspections {
    /// Asks `nodes`. Returns the messages to send.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        asker: Asker,
        what: &Inspection,
        nodes: impl Iterator<Item = NodeId>,
    ) -> Vec<(NodeId, ToAgent)> {
        if self.pending.len() >= MAX_PENDING {
            let reason = "too many questions about this job wait for answers";
            self.answers.push((asker, InspectionAnswer::Refused(reason)));
            return Vec::new();
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let waiting: BTreeSet<NodeId> = nodes.collect();
        let message = |&node| (node, ToAgent::Inspect { id, what: what.clone() });
        let messages = waiting.iter().map(message).collect();
        let limit = match what {
            Inspection::Collectives => LIBRARY_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        };
        self.pending.insert(id, Pending { asker, waiting, deadline: now + limit });
        self.complete_if_answered(id);
        messages
    }

    /// Takes a node's answer. An answer that is not waited for is dropped: its time was up.
    pub(crate) fn on_answer(&mut self, node: NodeId, id: u32, result: InspectionResult) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        if pending.waiting.remove(&node) {
            self.answers.push((pending.asker, InspectionAnswer::Node(node, result)));
            self.complete_if_answered(id);
        }
    }

    /// Stops waiting for a node that is gone.
    pub(crate) fn on_node_gone(&mut self, node: NodeId) {
        let asked: Vec<u32> = self.pending.keys().copied().collect();
        for id in asked {
            let gone = || InspectionResult::Failed("the node has ended".to_owned());
            if self.pending.get(&id).is_some_and(|pending| pending.waiting.contains(&node)) {
                self.on_answer(node, id, gone());
            }
        }
    }

    /// Forgets the questions of an asker that is gone.
    pub(crate) fn on_asker_gone(&mut self, asker: Asker) {
        self.pending.retain(|_, pending| pending.asker != asker);
        self.answers.retain(|(other, _)| *other != asker);
    }

    /// Gives up on nodes that have not answered in time.
    pub(crate) fn on_time(&mut self, now: Instant) {
        let is_late = |pending: &Pending| pending.deadline <= now;
        let late: Vec<u32> =
            self.pending.iter().filter(|(_, p)| is_late(p)).map(|(id, _)| *id).collect();
        for pending in late.into_iter().filter_map(|id| self.pending.remove(&id)) {
            let missing = pending.waiting.into_iter().collect();
            self.answers.push((pending.asker, InspectionAnswer::Complete(missing)));
        }
    }

    /// Returns the time at which [`Inspections::on_time`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.deadline).min()
    }

    /// Takes the answers that have come.
    pub(crate) fn take_answers(&mut self) -> Vec<(Asker, InspectionAnswer)> {
        std::mem::take(&mut self.answers)
    }

    fn complete_if_answered(&mut self, id: u32) {
        let is_complete = self.pending.get(&id).is_some_and(|pending| pending.waiting.is_empty());
        if is_complete && let Some(pending) = self.pending.remove(&id) {
            self.answers.push((pending.asker, InspectionAnswer::Complete(Vec::new())));
        }
    }
}

impl InspectionAnswer {
    /// Converts the answer for a client. `host` names the host of a node.
    pub(crate) fn into_reply(self, host: impl Fn(NodeId) -> String) -> Reply {
        match self {
            InspectionAnswer::Node(node, result) => Reply::Node { host: host(node), result },
            InspectionAnswer::Complete(missing) => {
                Reply::Complete { missing: missing.into_iter().map(host).collect() }
            }
            InspectionAnswer::Refused(reason) => Reply::Refused(reason.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Asker = Asker::Connection(ConnectionId(1));
    const B: Asker = Asker::Connection(ConnectionId(2));

    fn usage() -> InspectionResult {
        InspectionResult::Usage(Vec::new())
    }

    fn ask(inspections: &mut Inspections, now: Instant, asker: Asker, nodes: u32) -> u32 {
        let nodes = (0..nodes).map(NodeId);
        let messages = inspections.ask(now, asker, &Inspection::Usage, nodes);
        match messages.first() {
            Some((_, ToAgent::Inspect { id, .. })) => *id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_node_answers_once() {
        let (mut inspections, now) = (Inspections::default(), Instant::now());
        let id = ask(&mut inspections, now, A, 2);
        inspections.on_answer(NodeId(1), id, usage());
        inspections.on_answer(NodeId(1), id, usage());
        inspections.on_answer(NodeId(0), id + 1, usage());
        assert_eq!(inspections.take_answers(), [(A, InspectionAnswer::Node(NodeId(1), usage()))]);
        inspections.on_answer(NodeId(0), id, usage());
        let answers = inspections.take_answers();
        assert_eq!(answers[1], (A, InspectionAnswer::Complete(Vec::new())));
        assert_eq!(inspections.deadline(), None);
    }

    #[test]
    fn a_node_that_does_not_answer_is_named() {
        let (mut inspections, now) = (Inspections::default(), Instant::now());
        let id = ask(&mut inspections, now, A, 3);
        inspections.on_answer(NodeId(0), id, usage());
        inspections.on_node_gone(NodeId(2));
        inspections.take_answers();
        let due = inspections.deadline().unwrap();
        inspections.on_time(due);
        assert_eq!(inspections.take_answers(), [(A, InspectionAnswer::Complete(vec![NodeId(1)]))]);
    }

    #[test]
    fn a_job_without_nodes_answers_at_once() {
        let (mut inspections, now) = (Inspections::default(), Instant::now());
        assert!(inspections.ask(now, A, &Inspection::Usage, std::iter::empty()).is_empty());
        assert_eq!(inspections.take_answers(), [(A, InspectionAnswer::Complete(Vec::new()))]);
    }

    #[test]
    fn questions_are_bounded_and_end_with_their_asker() {
        let (mut inspections, now) = (Inspections::default(), Instant::now());
        for _ in 0..MAX_PENDING {
            ask(&mut inspections, now, A, 1);
        }
        assert!(inspections.ask(now, B, &Inspection::Usage, (0..1).map(NodeId)).is_empty());
        assert!(matches!(inspections.take_answers()[..], [(B, InspectionAnswer::Refused(_))]));
        inspections.on_asker_gone(A);
        ask(&mut inspections, now, B, 1);
    }
}
