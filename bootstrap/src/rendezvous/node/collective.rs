//! Barriers and gathers.
//!
//! What a subtree's ranks gave goes up once all of them have arrived. At the root everybody has;
//! then each child gets what came from outside its own subtree and has the rest already.

use super::{Answer, CallId, ClientId, MAX_NAMES, MAX_WAITING, Node, NodeViolation, Refusal};
use crate::exit_status::ExitStatus;
use crate::id::{NodeId, Rank};
use crate::rendezvous::Time;
use crate::rendezvous::gathered::gather_record;
use crate::rendezvous::message::{
    CallCounts, CollectiveFailure, CollectiveId, CollectiveKind, Message, MissingRanks,
};
use crate::rendezvous::payload::Payload;
use crate::rendezvous::rank_set::RankSet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// After this long it is asked who is missing.
const ASK_AFTER: Duration = Duration::from_secs(10);
/// And again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(60);

type Name = (CollectiveKind, Arc<str>);

/// A rank that ended, and how far it had come.
#[derive(Debug)]
pub(super) struct Dead {
    status: ExitStatus,
    turns: BTreeMap<Name, u64>,
}

impl Dead {
    pub(super) fn new(status: ExitStatus, turns: &CallCounts) -> Dead {
        let turns = turns.iter().map(|(kind, name, turn)| ((*kind, name.clone()), *turn));
        Dead { status, turns: turns.collect() }
    }

    fn never_arrives(&self, operation: &CollectiveId) -> bool {
        let taken = self.turns.get(&operation.of_name()).copied().unwrap_or(0);
        taken <= operation.turn
    }
}

impl CollectiveId {
    pub(super) fn of_name(&self) -> Name {
        (self.kind, self.name.clone())
    }
}

/// A call that waits for everybody.
#[derive(Clone, Copy, Debug)]
pub(super) struct CollectiveWaiter {
    id: CallId,
    since: Time,
    until: Option<Time>,
}

impl CollectiveWaiter {
    pub(super) fn new(id: CallId, now: Time, timeout: Option<Duration>) -> CollectiveWaiter {
        CollectiveWaiter { id, since: now, until: timeout.map(|timeout| now + timeout) }
    }

    /// Early enough for an answer before the wait is over.
    fn ask_at(&self) -> Time {
        let half = self.until.map_or(ASK_AFTER, |until| until.since(self.since) / 2);
        self.since + half.min(ASK_AFTER)
    }
}

/// An operation that has begun and not ended.
#[derive(Debug, Default)]
struct Open {
    arrived: RankSet,
    given: Vec<Payload>,
    /// Of each child whose subtree has arrived, what it gave.
    children: BTreeMap<NodeId, Payload>,
    /// The parent has been told.
    sent: bool,
    waiters: Vec<CollectiveWaiter>,
    ask_at: Option<Time>,
    missing: MissingRanks,
}

/// What every rank of the node takes part in.
#[derive(Debug, Default)]
pub(super) struct Collectives {
    open: BTreeMap<CollectiveId, Open>,
    /// Turns before this one have ended.
    finished: BTreeMap<Name, u64>,
    /// From this turn on nothing of the name can end well.
    broken: BTreeMap<Name, (u64, CollectiveFailure)>,
    waiting: usize,
}

impl Collectives {
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn due(&self) -> Option<Time> {
        let due_of = |open: &Open| {
            let ends = open.waiters.iter().filter_map(|waiter| waiter.until);
            ends.chain(open.ask_at.filter(|_| !open.waiters.is_empty())).min()
        };
        self.open.values().filter_map(due_of).min()
    }

    /// Every call that waits.
    pub(super) fn abandon(&mut self) -> Vec<CallId> {
        let open = std::mem::take(&mut self.open);
        self.waiting = 0;
        open.into_values().flat_map(|open| open.waiters).map(|waiter| waiter.id).collect()
    }

    /// The client's ranks have arrived all the same; only nobody waits for the answer.
    pub(super) fn forget(&mut self, client: ClientId) {
        for open in self.open.values_mut() {
            open.waiters.retain(|waiter| waiter.id.client != client);
        }
        self.waiting = self.open.values().map(|open| open.waiters.len()).sum();
    }

    fn is_finished(&self, operation: &CollectiveId) -> bool {
        self.finished.get(&operation.of_name()).is_some_and(|&turn| operation.turn < turn)
    }

    fn why_broken(&self, operation: &CollectiveId) -> Option<&CollectiveFailure> {
        let (turn, why) = self.broken.get(&operation.of_name())?;
        (operation.turn >= *turn).then_some(why)
    }

    /// Ranks of this node that have arrived; `None` when the operation has ended here.
    pub(super) fn arrived(&self, operation: &CollectiveId) -> Option<RankSet> {
        if self.is_finished(operation) || self.why_broken(operation).is_some() {
            return None;
        }
        Some(self.open.get(operation).map(|open| open.arrived.clone()).unwrap_or_default())
    }

    pub(super) fn child_has_arrived(&self, operation: &CollectiveId, child: NodeId) -> bool {
        self.open.get(operation).is_some_and(|open| open.children.contains_key(&child))
    }

    pub(super) fn note_missing(&mut self, operation: &CollectiveId, missing: &MissingRanks) {
        if let Some(open) = self.open.get_mut(operation) {
            open.missing = missing.clone();
        }
    }
}

impl Node {
    /// A rank arrives and waits.
    pub(super) fn meet(
        &mut self,
        now: Time,
        rank: Rank,
        name: Name,
        blob: &[u8],
        waiter: CollectiveWaiter,
    ) {
        let waiting = self.waiting();
        let Some(local) = self.locals.get_mut(&rank) else { return };
        let is_known = local.turns.contains_key(&name);
        if waiting >= MAX_WAITING || (!is_known && local.turns.len() >= MAX_NAMES) {
            return self.answer(waiter.id, Answer::Refused(Refusal::TooMany));
        }
        let count = local.turns.entry(name.clone()).or_default();
        let operation = CollectiveId { kind: name.0, name: name.1, turn: *count };
        *count += 1;
        if let Some(why) = self.collectives.why_broken(&operation).cloned() {
            return self.answer(waiter.id, Answer::Failed(why));
        }
        self.collectives.waiting += 1;
        let open = self.collectives.open.entry(operation.clone()).or_default();
        let ask_at = open.ask_at.map_or(waiter.ask_at(), |at| at.min(waiter.ask_at()));
        open.ask_at = Some(ask_at.max(now));
        open.arrived.insert(rank);
        open.waiters.push(waiter);
        if operation.kind == CollectiveKind::Gather {
            open.given.push(gather_record(rank, blob));
        }
        self.settle(&operation);
    }

    /// A child's whole subtree has arrived.
    pub(super) fn on_arrived(
        &mut self,
        from: NodeId,
        operation: &CollectiveId,
        payload: Payload,
    ) -> Result<(), NodeViolation> {
        let message = "arrived";
        if self.collectives.why_broken(operation).is_some() || self.aborted.is_some() {
            return Ok(()); // It was on its way when the news was.
        }
        if self.collectives.is_finished(operation)
            || self.collectives.child_has_arrived(operation, from)
        {
            return Err(NodeViolation::Duplicate { from, message });
        }
        if self.collectives.open.len() >= MAX_WAITING {
            return Err(NodeViolation::TooMany { from, message });
        }
        let open = self.collectives.open.entry(operation.clone()).or_default();
        open.children.insert(from, payload);
        self.settle(operation);
        Ok(())
    }

    /// Goes on once everybody below has arrived, or gives up when somebody never will.
    fn settle(&mut self, operation: &CollectiveId) {
        let Some(open) = self.collectives.open.get_mut(operation) else { return };
        let complete = open.arrived.len() as usize == self.locals.len()
            && open.children.len() == self.children.len();
        if !complete {
            let dead = self.dead.iter().find(|(_, dead)| dead.never_arrives(operation));
            if let Some((&rank, dead)) = dead {
                let why = CollectiveFailure::RankEnded { rank, status: dead.status };
                self.break_operation(operation, why);
            }
            return;
        }
        let Some(parent) = self.parent else {
            return self.release(operation, &Payload::empty());
        };
        if !std::mem::replace(&mut open.sent, true) {
            let payload = Payload::join(open.given.iter().chain(open.children.values())).shared();
            self.send_with(parent, Message::Arrived(operation.clone()), payload);
        }
    }

    /// Everybody has arrived; this came from above.
    pub(super) fn on_released(
        &mut self,
        from: NodeId,
        operation: &CollectiveId,
        payload: &Payload,
    ) -> Result<(), NodeViolation> {
        if self.aborted.is_some() {
            return Ok(());
        }
        match self.collectives.open.get(operation) {
            Some(open) if open.sent => self.release(operation, payload),
            _ => return Err(NodeViolation::Unknown { from, message: "released" }),
        }
        Ok(())
    }

    fn release(&mut self, operation: &CollectiveId, above: &Payload) {
        let Some(open) = self.collectives.open.remove(operation) else { return };
        self.collectives.finished.insert(operation.of_name(), operation.turn + 1);
        self.collectives.waiting -= open.waiters.len();
        let gathers = operation.kind == CollectiveKind::Gather;
        let ours = Payload::join(&open.given);
        for child in self.shape.children(self.id) {
            let payload = match gathers {
                false => Payload::empty(),
                true => {
                    let others = open.children.iter().filter(|(id, _)| **id != child);
                    let others = others.map(|(_, given)| given);
                    Payload::join([above, &ours].into_iter().chain(others)).shared()
                }
            };
            self.send_with(child, Message::Released(operation.clone()), payload);
        }
        let answer = match gathers {
            false => Answer::Done,
            true => {
                let all = [above, &ours].into_iter().chain(open.children.values());
                Answer::Gathered(Payload::join(all).shared())
            }
        };
        for waiter in open.waiters {
            self.answer(waiter.id, answer.clone());
        }
    }

    pub(super) fn break_all_waiting_for_the_dead(&mut self) {
        let open: Vec<CollectiveId> = self.collectives.open.keys().cloned().collect();
        for operation in open {
            self.settle(&operation);
        }
    }

    /// The operation can never end well: the root is told, and tells everybody.
    pub(super) fn break_operation(&mut self, operation: &CollectiveId, why: CollectiveFailure) {
        if self.collectives.why_broken(operation).is_some() || self.aborted.is_some() {
            return;
        }
        match self.parent {
            None => self.on_broke(operation, &why),
            Some(parent) => self.send(parent, Message::ReportFailure(operation.clone(), why)),
        }
    }

    /// Everybody is told that it never ends well.
    pub(super) fn on_broke(&mut self, operation: &CollectiveId, why: &CollectiveFailure) {
        if self.collectives.why_broken(operation).is_some() {
            return;
        }
        self.collectives.broken.insert(operation.of_name(), (operation.turn, why.clone()));
        self.send_down(&Message::Failed(operation.clone(), why.clone()).into());
        // What comes after a turn that never ends does not end either.
        let of_name = |open: &&CollectiveId| {
            open.of_name() == operation.of_name() && open.turn >= operation.turn
        };
        let over: Vec<CollectiveId> =
            self.collectives.open.keys().filter(of_name).cloned().collect();
        for operation in over {
            let Some(open) = self.collectives.open.remove(&operation) else { continue };
            self.collectives.waiting -= open.waiters.len();
            for waiter in open.waiters {
                self.answer(waiter.id, Answer::Failed(why.clone()));
            }
        }
    }

    /// Ends waits that were long enough and asks who is missing where they are long.
    pub(super) fn expire_collectives(&mut self, now: Time) {
        let mut ask = Vec::new();
        let mut expired = Vec::new();
        for (operation, open) in &mut self.collectives.open {
            open.waiters.retain(|waiter| {
                let is_over = waiter.until.is_some_and(|until| until <= now);
                if is_over {
                    expired.push((waiter.id, open.missing.clone()));
                }
                !is_over
            });
            let since = open.waiters.iter().map(|waiter| waiter.since).min();
            if let (Some(since), true) = (since, open.ask_at.is_some_and(|at| at <= now)) {
                open.ask_at = Some(now + ASK_AGAIN);
                ask.push((operation.clone(), now.since(since)));
            }
        }
        self.collectives.waiting -= expired.len();
        for (id, missing) in expired {
            self.answer(id, Answer::TimedOut(missing));
        }
        for (operation, waited) in ask {
            self.ask_who_is_missing(now, operation, waited);
        }
    }
}
