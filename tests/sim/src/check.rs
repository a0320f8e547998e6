//! What must hold, whatever goes wrong: told of every call and answer, it knows what may not be.

use crate::scenario::{Fault, Scenario};
use crate::script::{self, Step};
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::ExitStatus;
use rlaunch_bootstrap::rendezvous::gathered::{Gathered, RECORD_HEADER};
use rlaunch_bootstrap::rendezvous::message::{
    CollectiveFailure, CollectiveId, CollectiveKind, Message, Packet,
};
use rlaunch_bootstrap::rendezvous::node::{Answer, CallId, NodeReport};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs of more ranks are compared in part.
const COMPARED: u32 = 1000;
/// Of those, one rank in so many.
const SAMPLED: u32 = 97;

/// A call that was made and not answered.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Who made it.
    pub rank: Rank,
    /// Which step of the script it is.
    pub step: usize,
    /// The turn, for steps at which all meet.
    pub turn: u64,
}

/// Everything that has been seen.
#[derive(Debug)]
pub struct Checker<'a> {
    scenario: &'a Scenario,
    radix: u32,
    /// Calls that wait.
    pub open: BTreeMap<CallId, Open>,
    arrived: BTreeMap<(CollectiveKind, &'static str, u64), BTreeSet<Rank>>,
    /// Keys that some rank knows to be kept.
    kept: BTreeSet<u32>,
    /// Ranks that have ended, and how.
    pub ended: BTreeMap<Rank, ExitStatus>,
    /// What the launcher was told.
    pub tidings: Vec<NodeReport>,
    /// Messages that a node sent for an operation.
    sent: BTreeMap<(NodeId, CollectiveId), u32>,
    /// Bytes of an operation that crossed an edge, by its child.
    crossed: BTreeMap<(NodeId, CollectiveId), usize>,
    tables: BTreeSet<NodeId>,
    /// By name and turn of a gather: what every rank gives.
    given: BTreeMap<(&'static str, u64), Vec<Vec<u8>>>,
}

type Checked = Result<(), String>;

impl<'a> Checker<'a> {
    /// Nothing seen yet.
    pub fn new(scenario: &'a Scenario, radix: u32) -> Checker<'a> {
        Checker {
            scenario,
            radix,
            open: BTreeMap::new(),
            arrived: BTreeMap::new(),
            kept: BTreeSet::new(),
            ended: BTreeMap::new(),
            tidings: Vec::new(),
            sent: BTreeMap::new(),
            crossed: BTreeMap::new(),
            tables: BTreeSet::new(),
            given: BTreeMap::new(),
        }
    }

    /// A rank calls.
    pub fn called(&mut self, id: CallId, open: Open) {
        if let Some((kind, name)) = self.scenario.script[open.step].meeting() {
            self.arrived.entry((kind, name, open.turn)).or_default().insert(open.rank);
        }
        self.open.insert(id, open);
    }

    /// A call is answered; gives back what it was.
    pub fn answered(&mut self, id: CallId, answer: &Answer) -> Result<Open, String> {
        let open = self.open.remove(&id).ok_or(format!("an answer to no call: {answer:?}"))?;
        let step = &self.scenario.script[open.step];
        match (step, answer) {
            (_, Answer::Aborted { .. }) => self.may_end()?,
            (Step::Barrier(_) | Step::Gather(..), Answer::Failed(why)) => {
                self.may_break(step, open.turn, why)?;
            }
            (Step::Barrier(name), Answer::Done) => {
                self.all_came(CollectiveKind::Barrier, name, open.turn)?;
            }
            (Step::Gather(name, length), Answer::Gathered(gathered)) => {
                self.all_came(CollectiveKind::Gather, name, open.turn)?;
                self.is_what_was_given(name, *length, &open, &Gathered(gathered.clone()))?;
            }
            (Step::Put(_, key), Answer::Done) => drop(self.kept.insert(*key)),
            (Step::Get(key) | Step::Await(key), Answer::Value(value)) => {
                if value.to_vec() != script::value(*key) {
                    return Err(format!("key {key} has another value"));
                }
            }
            // Its writer may have ended before it wrote; otherwise a barrier lies between.
            (Step::Get(key), Answer::NoValue) if self.kept.contains(key) => {
                return Err(format!("key {key} was kept and is not found"));
            }
            (Step::Get(_), Answer::NoValue) | (Step::Clock, Answer::Clock { .. }) => {}
            (step, answer) => return Err(format!("{step:?} was answered by {answer:?}")),
        }
        Ok(open)
    }

    fn all_came(&self, kind: CollectiveKind, name: &'static str, turn: u64) -> Checked {
        let came = self.arrived.get(&(kind, name, turn)).map_or(0, BTreeSet::len);
        let all = self.scenario.world_size() as usize;
        if came == all {
            Ok(())
        } else {
            Err(format!("{kind:?} {name:?} {turn}: {came} of {all} had come"))
        }
    }

    /// Compares every byte, in large jobs for some of the nodes and the length for the others.
    fn is_what_was_given(
        &mut self,
        name: &'static str,
        length: usize,
        open: &Open,
        gathered: &Gathered,
    ) -> Checked {
        let ranks = self.scenario.world_size();
        let all = (length + RECORD_HEADER) * ranks as usize;
        if gathered.0.len() != all {
            return Err(format!("gather {name:?}: {} bytes of {all}", gathered.0.len()));
        }
        if ranks > COMPARED && !open.rank.0.is_multiple_of(SAMPLED) {
            return Ok(());
        }
        let turn = open.turn;
        let given = self.given.entry((name, turn)).or_insert_with(|| {
            (0..ranks).map(|rank| script::blob(Rank(rank), name, turn, length)).collect()
        });
        let blobs = gathered.by_rank(ranks).map_err(|error| format!("gather {name:?}: {error}"))?;
        match blobs.iter().zip(given).position(|(blob, given)| blob != given) {
            None => Ok(()),
            Some(rank) => Err(format!("gather {name:?}: what rank {rank} gave has changed")),
        }
    }

    fn may_break(&self, step: &Step, turn: u64, why: &CollectiveFailure) -> Checked {
        let CollectiveFailure::RankEnded { rank, status } = why;
        let meeting = step.meeting().and_then(|(kind, name)| self.arrived.get(&(kind, name, turn)));
        if meeting.is_some_and(|came| came.contains(rank)) {
            return Err(format!("{step:?} broken by rank {rank}, which had come"));
        }
        match self.ended.get(rank) {
            Some(known) if known == status => Ok(()),
            known => {
                Err(format!("broken by rank {rank} that {status}, which it did not: {known:?}"))
            }
        }
    }

    fn may_end(&self) -> Checked {
        let ends = |(_, fault): &(_, Fault)| {
            matches!(fault, Fault::Abort(_) | Fault::Crash(_) | Fault::Exit(_, 1..))
        };
        let may = self.scenario.faults.iter().any(ends);
        if may { Ok(()) } else { Err("aborted, and nobody wanted it".to_owned()) }
    }

    /// A node has got the rank table.
    pub fn table(&mut self, node: NodeId) -> Checked {
        let is_first = self.tables.insert(node);
        if is_first { Ok(()) } else { Err(format!("node {node} got the table twice")) }
    }

    /// A node sends; `child` is the lower end of the edge.
    pub fn sent(&mut self, node: NodeId, child: NodeId, packet: &Packet) -> Checked {
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

    /// When all is quiet: nobody waits who need not, and every byte crossed every edge once.
    pub fn finish(&self, over: bool) -> Checked {
        if over && !self.open.is_empty() {
            return Err(format!("the job is over and {:?} waits", self.open.values().next()));
        }
        if !over && self.tables.len() != self.scenario.nodes as usize {
            return Err(format!(
                "{} of {} nodes have the table",
                self.tables.len(),
                self.scenario.nodes
            ));
        }
        let everywhere = |tidings: &&NodeReport| **tidings == NodeReport::TableEverywhere;
        let said = self.tidings.iter().filter(everywhere).count();
        if said > 1 || (said == 0 && !over) {
            return Err(format!("the table was said to be everywhere {said} times"));
        }
        self.bytes_crossed_once()?;
        for open in self.open.values() {
            self.waits_rightly(open)?;
        }
        self.told_the_truth()
    }

    fn bytes_crossed_once(&self) -> Checked {
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

    /// Somebody it waits for hangs or has left, and the launcher was told.
    fn waits_rightly(&self, open: &Open) -> Checked {
        let step = &self.scenario.script[open.step];
        // Whoever waits for all to meet does not wait for the dead.
        let meets = step.meeting().is_some();
        let may_wait = self.absent().iter().any(|rank| !meets || !self.ended.contains_key(rank));
        let told = match step {
            Step::Barrier(name) | Step::Gather(name, _) => self.tidings.iter().any(|tidings| {
                matches!(tidings, NodeReport::Waiting { operation, .. } if *operation.name == **name)
            }),
            Step::Await(key) => self.tidings.iter().any(|tidings| {
                matches!(tidings, NodeReport::WaitingForKey { key: k, .. } if *k == script::key(*key))
            }),
            _ => false,
        };
        if !may_wait || !told {
            return Err(format!("rank {} waits in vain at {step:?}, told: {told}", open.rank));
        }
        Ok(())
    }

    fn absent(&self) -> BTreeSet<Rank> {
        let of_fault = |(_, fault): &(_, Fault)| match fault {
            Fault::Hang(rank) | Fault::Exit(rank, _) | Fault::Leave(rank) => Some(*rank),
            _ => None,
        };
        self.scenario.faults.iter().filter_map(of_fault).collect()
    }

    /// Who was named as missing long after the start was.
    fn told_the_truth(&self) -> Checked {
        for tidings in &self.tidings {
            if let NodeReport::Waiting { operation, missing, .. } = tidings {
                // Slow nodes catch up; who hangs never does.
                let hung = self.absent();
                if missing.ranks.iter().all(|rank| !hung.contains(&rank)) && !self.open.is_empty() {
                    return Err(format!("{operation}: {missing} named, {hung:?} missing"));
                }
            }
        }
        Ok(())
    }
}
