//! Invariants of a run, checked with every call, answer and message.

use crate::scenario::{Fault, Scenario};
use crate::script::{self, Step};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::rendezvous::message::{
    CollectiveFailure, CollectiveId, CollectiveKind, Message, Packet,
};
use rlaunch_bootstrap::rendezvous::node::{Answer, CallId, NodeReport};
use rlaunch_bootstrap::rendezvous::payload::{Gathered, RECORD_HEADER};
use std::collections::{BTreeMap, BTreeSet};

/// Number of ranks above which gathered blobs are compared only for a sample of the ranks.
const FULLY_COMPARED_RANKS: u32 = 1000;
/// Interval between the ranks in the sample.
const SAMPLE_INTERVAL: u32 = 97;

/// Call that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub struct PendingCall {
    /// Rank that made the call.
    pub rank: Rank,
    /// Index of the step in the script.
    pub step: usize,
    /// Sequence number of the collective; 0 for other calls.
    pub sequence: u64,
}

/// History of a run, as far as the invariants need it.
#[derive(Debug)]
pub struct Checker<'a> {
    scenario: &'a Scenario,
    radix: u32,
    /// Calls that are not answered yet.
    pub pending: BTreeMap<CallId, PendingCall>,
    arrived: BTreeMap<(CollectiveKind, &'static str, u64), BTreeSet<Rank>>,
    /// Keys whose put was confirmed.
    confirmed_keys: BTreeSet<u32>,
    /// Ranks that have ended, with their exit status.
    pub ended: BTreeMap<Rank, ExitStatus>,
    /// Reports to the launcher.
    pub reports: Vec<NodeReport>,
    /// Number of messages that a node sent for a collective.
    sent: BTreeMap<(NodeId, CollectiveId), u32>,
    /// Bytes of a collective that crossed an edge of the tree, by the child at its lower end.
    crossed: BTreeMap<(NodeId, CollectiveId), usize>,
    tables: BTreeSet<NodeId>,
    /// Blobs of all ranks, by name and sequence number of the gather.
    expected_blobs: BTreeMap<(&'static str, u64), Vec<Vec<u8>>>,
}

type CheckResult = Result<(), String>;

impl<'a> Checker<'a> {
    /// Makes a checker for a run of `scenario`.
    pub fn new(scenario: &'a Scenario, radix: u32) -> Checker<'a> {
        Checker {
            scenario,
            radix,
            pending: BTreeMap::new(),
            arrived: BTreeMap::new(),
            confirmed_keys: BTreeSet::new(),
            ended: BTreeMap::new(),
            reports: Vec::new(),
            sent: BTreeMap::new(),
            crossed: BTreeMap::new(),
            tables: BTreeSet::new(),
            expected_blobs: BTreeMap::new(),
        }
    }

    /// Records a call.
    pub fn called(&mut self, id: CallId, call: PendingCall) {
        if let Some((kind, name)) = self.scenario.script[call.step].collective() {
            self.arrived.entry((kind, name, call.sequence)).or_default().insert(call.rank);
        }
        self.pending.insert(id, call);
    }

    /// Checks the answer to a call. Returns the call.
    pub fn answered(&mut self, id: CallId, answer: &Answer) -> Result<PendingCall, String> {
        let call = self.pending.remove(&id).ok_or(format!("answer without a call: {answer:?}"))?;
        let step = &self.scenario.script[call.step];
        match (step, answer) {
            (_, Answer::Aborted { .. }) => self.check_abort()?,
            (Step::Barrier(_) | Step::Gather(..), Answer::Failed(why)) => {
                self.check_failure(step, call.sequence, why)?;
            }
            (Step::Barrier(name), Answer::Done) => {
                self.check_all_arrived(CollectiveKind::Barrier, name, call.sequence)?;
            }
            (Step::Gather(name, length), Answer::Gathered(gathered)) => {
                self.check_all_arrived(CollectiveKind::Gather, name, call.sequence)?;
                self.check_blobs(name, *length, &call, &Gathered(gathered.clone()))?;
            }
            (Step::Put(_, key), Answer::Done) => drop(self.confirmed_keys.insert(*key)),
            (Step::Get(key) | Step::Await(key), Answer::Value(value)) => {
                if value.to_vec() != script::value(*key) {
                    return Err(format!("key {key} has another value"));
                }
            }
            // The writer may have ended before its put; otherwise a barrier separates put and get.
            (Step::Get(key), Answer::NoValue) if self.confirmed_keys.contains(key) => {
                return Err(format!("key {key} was put, but has no value"));
            }
            (Step::Get(_), Answer::NoValue) | (Step::Clock, Answer::Clock { .. }) => {}
            (step, answer) => return Err(format!("{step:?} was answered by {answer:?}")),
        }
        Ok(call)
    }

    fn check_all_arrived(
        &self,
        kind: CollectiveKind,
        name: &'static str,
        sequence: u64,
    ) -> CheckResult {
        let arrived = self.arrived.get(&(kind, name, sequence)).map_or(0, BTreeSet::len);
        let all = self.scenario.world_size() as usize;
        if arrived == all {
            Ok(())
        } else {
            Err(format!("{kind:?} {name:?} {sequence}: {arrived} of {all} had arrived"))
        }
    }

    /// Compares gathered blobs; in large jobs all bytes for a sample of ranks, the length for all.
    fn check_blobs(
        &mut self,
        name: &'static str,
        length: usize,
        call: &PendingCall,
        gathered: &Gathered,
    ) -> CheckResult {
        let ranks = self.scenario.world_size();
        let all = (length + RECORD_HEADER) * ranks as usize;
        if gathered.0.len() != all {
            return Err(format!("gather {name:?}: {} bytes of {all}", gathered.0.len()));
        }
        if ranks > FULLY_COMPARED_RANKS && !call.rank.0.is_multiple_of(SAMPLE_INTERVAL) {
            return Ok(());
        }
        let sequence = call.sequence;
        let expected = self.expected_blobs.entry((name, sequence)).or_insert_with(|| {
            (0..ranks).map(|rank| script::blob(Rank(rank), name, sequence, length)).collect()
        });
        let blobs = gathered.by_rank(ranks).map_err(|error| format!("gather {name:?}: {error}"))?;
        match blobs.iter().zip(expected).position(|(blob, expected)| blob != expected) {
            None => Ok(()),
            Some(rank) => Err(format!("gather {name:?}: the blob of rank {rank} has changed")),
        }
    }

    fn check_failure(&self, step: &Step, sequence: u64, why: &CollectiveFailure) -> CheckResult {
        let CollectiveFailure::RankEnded { rank, status } = why;
        let arrived_ranks =
            step.collective().and_then(|(kind, name)| self.arrived.get(&(kind, name, sequence)));
        if arrived_ranks.is_some_and(|arrived| arrived.contains(rank)) {
            return Err(format!("{step:?} failed because of rank {rank}, which had arrived"));
        }
        match self.ended.get(rank) {
            Some(known) if known == status => Ok(()),
            known => {
                Err(format!("failed because rank {rank} {status}, but its status is {known:?}"))
            }
        }
    }

    fn check_abort(&self) -> CheckResult {
        let ends = |(_, fault): &(_, Fault)| {
            matches!(fault, Fault::Abort(_) | Fault::Crash(_) | Fault::Exit(_, 1..))
        };
        let may = self.scenario.faults.iter().any(ends);
        if may { Ok(()) } else { Err("aborted without a reason".to_owned()) }
    }

    /// Records that a node received the rank table.
    pub fn table(&mut self, node: NodeId) -> CheckResult {
        let is_first = self.tables.insert(node);
        if is_first { Ok(()) } else { Err(format!("node {node} received the table twice")) }
    }

    /// Records a message from a node; `child` is the lower end of the edge that the message
    /// crosses.
    pub fn sent(&mut self, node: NodeId, child: NodeId, packet: &Packet) -> CheckResult {
        if let Message::Arrived(operation) | Message::Released(operation) = &packet.message {
            let sent = self.sent.entry((node, operation.clone())).or_default();
            *sent += 1;
            if *sent > self.radix + 2 {
                return Err(format!("node {node} sent {sent} messages for {operation}"));
            }
            *self.crossed.entry((child, operation.clone())).or_default() += packet.payload.len();
        }
        Ok(())
    }

    /// Checks the end of a run: calls that still wait have a reason, and gathered bytes crossed
    /// each edge of the tree at most once.
    pub fn finish(&self, is_over: bool) -> CheckResult {
        if is_over && !self.pending.is_empty() {
            return Err(format!("the job is over and {:?} waits", self.pending.values().next()));
        }
        if !is_over && self.tables.len() != self.scenario.nodes as usize {
            return Err(format!(
                "{} of {} nodes have the table",
                self.tables.len(),
                self.scenario.nodes
            ));
        }
        let everywhere = |report: &&NodeReport| **report == NodeReport::TableEverywhere;
        let count = self.reports.iter().filter(everywhere).count();
        if count > 1 || (count == 0 && !is_over) {
            return Err(format!("{count} reports that every node has the table"));
        }
        self.check_bytes_per_edge()?;
        for call in self.pending.values() {
            self.check_waiting(call)?;
        }
        self.check_missing_reports()
    }

    fn check_bytes_per_edge(&self) -> CheckResult {
        let length = |operation: &CollectiveId| {
            self.scenario.script.iter().find_map(|step| match step {
                Step::Gather(name, length) if **name == *operation.name => Some(*length),
                _ => None,
            })
        };
        let same_length = |operation: &CollectiveId| {
            let of_name =
                self.scenario.script.iter().filter(
                    |step| matches!(step, Step::Gather(name, _) if **name == *operation.name),
                );
            of_name.count() == 1
        };
        for ((child, operation), bytes) in &self.crossed {
            let complete = operation.kind == CollectiveKind::Gather && same_length(operation);
            let all = length(operation).unwrap_or_default() + 8;
            let all = all * self.scenario.world_size() as usize;
            if complete && *bytes > all {
                return Err(format!("{bytes} bytes of {all} crossed the edge above {child}"));
            }
        }
        Ok(())
    }

    /// Checks that a waiting call waits for a rank that hangs or has exited, and that the wait was
    /// reported to the launcher.
    fn check_waiting(&self, call: &PendingCall) -> CheckResult {
        let step = &self.scenario.script[call.step];
        // Collectives do not wait for ranks that have ended; they fail.
        let is_collective = step.collective().is_some();
        let may_wait = self
            .missing_ranks()
            .iter()
            .any(|rank| !is_collective || !self.ended.contains_key(rank));
        let reported = match step {
            Step::Barrier(name) | Step::Gather(name, _) => self.reports.iter().any(|report| {
                matches!(report, NodeReport::Waiting { operation, .. } if *operation.name == **name)
            }),
            Step::Await(key) => self.reports.iter().any(|report| {
                matches!(report, NodeReport::WaitingForKey { key: k, .. } if *k == script::key(*key))
            }),
            _ => false,
        };
        if !may_wait || !reported {
            return Err(format!(
                "rank {} waits at {step:?} for no reason, or without a report (reported: {reported})",
                call.rank
            ));
        }
        Ok(())
    }

    fn missing_ranks(&self) -> BTreeSet<Rank> {
        let of_fault = |(_, fault): &(_, Fault)| match fault {
            Fault::Hang(rank) | Fault::Exit(rank, _) | Fault::Leave(rank) => Some(*rank),
            _ => None,
        };
        self.scenario.faults.iter().filter_map(of_fault).collect()
    }

    /// Checks that each report about missing ranks names at least one rank that never arrives.
    fn check_missing_reports(&self) -> CheckResult {
        for report in &self.reports {
            if let NodeReport::Waiting { operation, missing, .. } = report {
                // Ranks on slow nodes arrive later; ranks that hang never do.
                let hung = self.missing_ranks();
                if missing.ranks.iter().all(|rank| !hung.contains(&rank))
                    && !self.pending.is_empty()
                {
                    return Err(format!("{operation}: {missing} named, {hung:?} missing"));
                }
            }
        }
        Ok(())
    }
}
