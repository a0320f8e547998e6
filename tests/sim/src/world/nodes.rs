//! Agents and ranks: the steps of scripts, calls and answers, exits and restarts.

use super::network::Carrier;
use super::{BREAK_DETECTION, Event, World};
use crate::check::PendingCall;
use crate::scenario::Fault;
use crate::script::Step;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::rendezvous::link::ReliableLink;
use rlaunch_bootstrap::rendezvous::message::CollectiveKind;
use rlaunch_bootstrap::rendezvous::node::{
    Answer, Call, CallId, ClientId, Node, NodeInput, NodeOutput, NodeReport,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Request number of aborts, whose answers are not checked.
const ABORT_REQUEST: u64 = u64::MAX;

pub(super) struct SimNode {
    pub(super) node: Node,
    pub(super) links: BTreeMap<NodeId, ReliableLink>,
    /// Nanoseconds by which the node's clock is ahead of virtual time.
    pub(super) clock_offset: u64,
    pub(super) delay_per_frame: Duration,
    pub(super) is_alive: bool,
    /// Whether the node crashed and restarted without its state. Violations of the protocol by the
    /// node and its neighbours are expected then.
    pub(super) has_lost_state: bool,
    pub(super) timer: Option<Duration>,
}

#[derive(Default)]
pub(super) struct SimRank {
    pub(super) step: usize,
    pub(super) call_counts: BTreeMap<(CollectiveKind, &'static str), u64>,
    /// Fault that takes effect before the next step.
    pub(super) fault: Option<Fault>,
    /// Whether the rank has exited, hangs or waits for the end of the job.
    pub(super) has_stopped: bool,
}

impl World<'_> {
    pub(super) fn step(&mut self, rank: Rank) -> Result<(), String> {
        let id = self.node_of(rank);
        if self.is_over || !self.nodes[id.index()].is_alive || self.ranks[rank.index()].has_stopped
        {
            return Ok(());
        }
        match self.ranks[rank.index()].fault.take() {
            Some(Fault::Exit(_, code)) => return self.exit(rank, code),
            Some(Fault::Hang(_)) => {
                self.ranks[rank.index()].has_stopped = true;
                return Ok(());
            }
            Some(fault @ Fault::Leave(_)) => {
                let state = &mut self.ranks[rank.index()];
                state.fault = Some(fault);
                let collective = self.scenario.script.get(state.step).and_then(Step::collective);
                if collective.is_some() {
                    state.has_stopped = true;
                    let leaving = self.make_next_step(rank);
                    // The rank exits without waiting for the answer.
                    let number = self.ranks[rank.index()].step as u64 - 1;
                    self.abandoned_calls.insert(call_id(rank, number));
                    self.checker.pending.remove(&call_id(rank, number));
                    return leaving.and_then(|()| self.exit(rank, 0));
                }
            }
            Some(Fault::Abort(_)) => {
                let call = Call::Abort("enough".into());
                self.ranks[rank.index()].has_stopped = true;
                return self.handle(id, NodeInput::Call(rank, call_id(rank, ABORT_REQUEST), call));
            }
            _ => {}
        }
        self.make_next_step(rank)
    }

    fn make_next_step(&mut self, rank: Rank) -> Result<(), String> {
        let id = self.node_of(rank);
        let state = &mut self.ranks[rank.index()];
        let Some(step) = self.scenario.script.get(state.step) else {
            state.has_stopped = true;
            return self.exit(rank, 0);
        };
        let number = state.step;
        state.step += 1;
        let sequence = step.collective().map_or(0, |name| {
            let sequence = state.call_counts.entry(name).or_default();
            *sequence += 1;
            *sequence - 1
        });
        match step.call(rank, sequence) {
            Some(call) => {
                let id_of_call = call_id(rank, number as u64);
                self.checker.called(id_of_call, PendingCall { rank, step: number, sequence });
                self.handle(id, NodeInput::Call(rank, id_of_call, call))
            }
            None => {
                let pause = match step {
                    Step::Compute(most) => {
                        Duration::from_micros(self.rng.u64(..=most.as_micros() as u64))
                    }
                    _ => Duration::ZERO,
                };
                self.schedule(self.now + pause, Event::Step(rank));
                Ok(())
            }
        }
    }

    pub(super) fn exit(&mut self, rank: Rank, code: i32) -> Result<(), String> {
        let id = self.node_of(rank);
        let status = ExitStatus::Code(code);
        self.ranks[rank.index()].has_stopped = true;
        self.checker.ended.insert(rank, status);
        if code != 0 {
            let detected = self.now + self.scenario.latency;
            self.schedule(detected, Event::End);
        }
        self.handle(id, NodeInput::RankEnded(rank, status))
    }

    /// Restarts a crashed node without its state. It connects to its neighbours again.
    pub(super) fn restart(&mut self, id: NodeId) -> Result<(), String> {
        let node = &mut self.nodes[id.index()];
        if node.is_alive {
            return Ok(());
        }
        let first = id.0 * self.scenario.ranks_per_node;
        let ranks = (first..first + self.scenario.ranks_per_node).map(Rank);
        node.node = Node::new(id, self.shape, ranks);
        (node.is_alive, node.has_lost_state) = (true, true);
        for (&peer, link) in &mut node.links {
            *link = ReliableLink::default();
            link.carrier_up();
            if let Some(direction) = self.edges.get_mut(&(id, peer)) {
                (direction.carrier, direction.lost_after) = (Carrier::Tcp, None);
            }
        }
        self.process_outputs(id)
    }

    pub(super) fn handle(&mut self, id: NodeId, input: NodeInput) -> Result<(), String> {
        let now = self.clock(id);
        let handled = self.nodes[id.index()].node.handle(now, input);
        self.check_violation(&[id], handled, || format!("node {id}"))?;
        self.process_outputs(id)
    }

    /// Executes the outputs of a node.
    pub(super) fn process_outputs(&mut self, id: NodeId) -> Result<(), String> {
        while let Some(output) = self.nodes[id.index()].node.poll_output() {
            match output {
                NodeOutput::Send(to, packet) if self.has_lost_state(id) => {
                    if let Some(link) = self.nodes[id.index()].links.get_mut(&to) {
                        link.send(packet);
                    }
                }
                _ if self.has_lost_state(id) => {}
                NodeOutput::Send(to, packet) => {
                    self.checker.sent(id, id.max(to), &packet)?;
                    let (messages, bytes) = &mut self.sent[id.index()];
                    *messages += 1;
                    *bytes += packet.payload.len() as u64;
                    if let Some(link) = self.nodes[id.index()].links.get_mut(&to) {
                        link.send(packet);
                    }
                }
                NodeOutput::Answer(call, answer) => self.answered(id, call, &answer)?,
                NodeOutput::Table(_) => self.checker.table(id)?,
                // No agent of the simulation makes requests to the root's agent.
                NodeOutput::RootRequest(..) => {}
                NodeOutput::Report(report) => {
                    if matches!(report, NodeReport::Aborted { .. }) {
                        self.is_aborted = true;
                        // Time for the abort to reach every node through the tree.
                        self.schedule(self.now + BREAK_DETECTION * 3, Event::End);
                    }
                    self.checker.reports.push(report);
                }
            }
        }
        self.transmit(id);
        self.set_timer(id);
        Ok(())
    }

    fn answered(&mut self, id: NodeId, call: CallId, answer: &Answer) -> Result<(), String> {
        // Aborts are reported everywhere; ranks that have left do not read answers.
        if call.request == ABORT_REQUEST || self.abandoned_calls.contains(&call) {
            return Ok(());
        }
        let open = self.checker.answered(call, answer)?;
        self.answered += 1;
        self.last_answer = self.now;
        if let Answer::Clock { offset, error } = *answer {
            let (root, own) = (self.nodes[0].clock_offset, self.nodes[id.index()].clock_offset);
            let truth = root.wrapping_sub(own).cast_signed();
            if offset.abs_diff(truth) > error {
                return Err(format!("clock of {id}: {offset} ± {error}, in truth {truth}"));
            }
        }
        match answer {
            // A rank stops if its call fails, as a program would.
            Answer::Aborted { .. } | Answer::Failed(_) => {
                self.ranks[open.rank.index()].has_stopped = true;
            }
            _ => self.schedule(self.now, Event::Step(open.rank)),
        }
        Ok(())
    }

    fn set_timer(&mut self, id: NodeId) {
        let ahead = self.nodes[id.index()].clock_offset;
        let node = &mut self.nodes[id.index()];
        let Some(due) = node.node.poll_timeout() else { return };
        let due = Duration::from_nanos(due.0.saturating_sub(ahead));
        if node.timer.is_none_or(|timer| due < timer) {
            node.timer = Some(due);
            self.schedule(due, Event::Timer(id));
        }
    }
}

fn call_id(rank: Rank, request: u64) -> CallId {
    CallId { client: ClientId(u64::from(rank.0)), request }
}
