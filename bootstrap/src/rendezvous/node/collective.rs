//! Barriers and gathers.
//!
//! When all ranks of a subtree have arrived, the topmost node of the subtree sends their records to
//! its own parent. When all ranks of the job have arrived, the root sends each child the records
//! from outside the child's subtree, because the child has kept the records of its own subtree.

use super::{Answer, CallId, ClientId, MAX_NAMES, MAX_WAITING, Node, NodeViolation, Refusal};
use crate::id::{ExitStatus, NodeId, Rank};
use crate::rendezvous::Time;
use crate::rendezvous::message::{
    CallCounts, CollectiveFailure, CollectiveId, CollectiveKind, Message, MissingRanks,
};
use crate::rendezvous::payload::Payload;
use crate::rendezvous::payload::gather_record;
use crate::rendezvous::rank_set::RankSet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a search for missing ranks is started on behalf of a waiting rank.
const QUERY_AFTER: Duration = Duration::from_secs(10);
/// Time between two searches for the ranks that are missing from one collective.
const QUERY_INTERVAL: Duration = Duration::from_secs(60);

type CollectiveName = (CollectiveKind, Arc<str>);

/// Rank of this node's subtree that has ended, with the number of calls that it made of each
/// collective.
#[derive(Debug)]
pub(super) struct EndedRank {
    status: ExitStatus,
    call_counts: BTreeMap<CollectiveName, u64>,
}

impl EndedRank {
    pub(super) fn new(status: ExitStatus, call_counts: &CallCounts) -> EndedRank {
        let call_counts =
            call_counts.iter().map(|(kind, name, sequence)| ((*kind, name.clone()), *sequence));
        EndedRank { status, call_counts: call_counts.collect() }
    }

    fn never_arrives(&self, operation: &CollectiveId) -> bool {
        let taken = self.call_counts.get(&operation.collective_name()).copied().unwrap_or(0);
        taken <= operation.sequence
    }
}

impl CollectiveId {
    pub(super) fn collective_name(&self) -> CollectiveName {
        (self.kind, self.name.clone())
    }
}

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

    /// Returns the time at which to search for missing ranks: early enough to have the result
    /// before the timeout.
    fn query_at(&self) -> Time {
        let half = self.until.map_or(QUERY_AFTER, |until| until.since(self.since) / 2);
        self.since + half.min(QUERY_AFTER)
    }
}

/// Collective at which some ranks of this node's subtree have arrived, and that is not complete.
#[derive(Debug, Default)]
struct PendingCollective {
    arrived: RankSet,
    blobs: Vec<Payload>,
    /// Records that child nodes have sent. A child sends its records once all ranks of its subtree
    /// have arrived.
    children: BTreeMap<NodeId, Payload>,
    /// Whether this node has notified its parent that all ranks of its subtree have arrived.
    sent: bool,
    waiters: Vec<CollectiveWaiter>,
    query_at: Option<Time>,
    missing: MissingRanks,
}

#[derive(Debug, Default)]
pub(super) struct Collectives {
    open: BTreeMap<CollectiveId, PendingCollective>,
    /// For each kind and name: the sequence number below which all collectives are complete.
    finished: BTreeMap<CollectiveName, u64>,
    /// For each kind and name: the sequence number from which on no collective can complete, with
    /// the reason.
    failed: BTreeMap<CollectiveName, (u64, CollectiveFailure)>,
    waiting: usize,
}

impl Collectives {
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn due(&self) -> Option<Time> {
        let due_of = |open: &PendingCollective| {
            let ends = open.waiters.iter().filter_map(|waiter| waiter.until);
            ends.chain(open.query_at.filter(|_| !open.waiters.is_empty())).min()
        };
        self.open.values().filter_map(due_of).min()
    }

    /// Removes all pending collectives. Returns the calls that wait for them.
    pub(super) fn abandon(&mut self) -> Vec<CallId> {
        let open = std::mem::take(&mut self.open);
        self.waiting = 0;
        open.into_values().flat_map(|open| open.waiters).map(|waiter| waiter.id).collect()
    }

    /// Drops the waiting calls of a client that disconnected. Its rank still counts as arrived.
    pub(super) fn forget(&mut self, client: ClientId) {
        for open in self.open.values_mut() {
            open.waiters.retain(|waiter| waiter.id.client != client);
        }
        self.waiting = self.open.values().map(|open| open.waiters.len()).sum();
    }

    fn is_finished(&self, operation: &CollectiveId) -> bool {
        self.finished
            .get(&operation.collective_name())
            .is_some_and(|&sequence| operation.sequence < sequence)
    }

    fn failure_of(&self, operation: &CollectiveId) -> Option<&CollectiveFailure> {
        let (sequence, why) = self.failed.get(&operation.collective_name())?;
        (operation.sequence >= *sequence).then_some(why)
    }

    /// Returns the ranks of this node that have arrived at the collective, or `None` if the
    /// collective is complete or has failed.
    pub(super) fn arrived(&self, operation: &CollectiveId) -> Option<RankSet> {
        if self.is_finished(operation) || self.failure_of(operation).is_some() {
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
    /// Handles a rank's call of a collective: the rank arrives and waits.
    pub(super) fn arrive(
        &mut self,
        now: Time,
        rank: Rank,
        name: CollectiveName,
        blob: &[u8],
        waiter: CollectiveWaiter,
    ) {
        let waiting = self.waiting();
        let Some(local) = self.locals.get_mut(&rank) else { return };
        let is_known = local.call_counts.contains_key(&name);
        if waiting >= MAX_WAITING || (!is_known && local.call_counts.len() >= MAX_NAMES) {
            return self.answer(waiter.id, Answer::Refused(Refusal::TooMany));
        }
        let count = local.call_counts.entry(name.clone()).or_default();
        let operation = CollectiveId { kind: name.0, name: name.1, sequence: *count };
        *count += 1;
        if let Some(why) = self.collectives.failure_of(&operation).cloned() {
            return self.answer(waiter.id, Answer::Failed(why));
        }
        self.collectives.waiting += 1;
        let open = self.collectives.open.entry(operation.clone()).or_default();
        let query_at = open.query_at.map_or(waiter.query_at(), |at| at.min(waiter.query_at()));
        open.query_at = Some(query_at.max(now));
        open.arrived.insert(rank);
        open.waiters.push(waiter);
        if operation.kind == CollectiveKind::Gather {
            open.blobs.push(gather_record(rank, blob));
        }
        self.advance_collective(&operation);
    }

    /// Handles the message that all ranks of a child's subtree have arrived.
    pub(super) fn on_arrived(
        &mut self,
        from: NodeId,
        operation: &CollectiveId,
        payload: Payload,
    ) -> Result<(), NodeViolation> {
        let message = "arrived";
        if self.collectives.failure_of(operation).is_some() || self.aborted.is_some() {
            return Ok(()); // Sent before the child knew of the failure or abort.
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
        self.advance_collective(operation);
        Ok(())
    }

    /// Notifies the parent once all ranks of this node's subtree have arrived. Fails the collective
    /// if a missing rank has ended.
    fn advance_collective(&mut self, operation: &CollectiveId) {
        let Some(open) = self.collectives.open.get_mut(operation) else { return };
        let complete = open.arrived.len() as usize == self.locals.len()
            && open.children.len() == self.children.len();
        if !complete {
            let dead = self.ended_ranks.iter().find(|(_, dead)| dead.never_arrives(operation));
            if let Some((&rank, dead)) = dead {
                let why = CollectiveFailure::RankEnded { rank, status: dead.status };
                self.fail_collective(operation, why);
            }
            return;
        }
        let Some(parent) = self.parent else {
            return self.release(operation, &Payload::empty());
        };
        if !std::mem::replace(&mut open.sent, true) {
            let payload = Payload::join(open.blobs.iter().chain(open.children.values())).shared();
            self.send_with(parent, Message::Arrived(operation.clone()), payload);
        }
    }

    /// Handles the message from the parent that all ranks have arrived.
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
        self.collectives.finished.insert(operation.collective_name(), operation.sequence + 1);
        self.collectives.waiting -= open.waiters.len();
        let gathers = operation.kind == CollectiveKind::Gather;
        let ours = Payload::join(&open.blobs);
        for child in self.shape.children(self.id) {
            let payload = if gathers {
                let others = open.children.iter().filter(|(id, _)| **id != child);
                let others = others.map(|(_, blobs)| blobs);
                Payload::join([above, &ours].into_iter().chain(others)).shared()
            } else {
                Payload::empty()
            };
            self.send_with(child, Message::Released(operation.clone()), payload);
        }
        let answer = if gathers {
            let all = [above, &ours].into_iter().chain(open.children.values());
            Answer::Gathered(Payload::join(all).shared())
        } else {
            Answer::Done
        };
        for waiter in open.waiters {
            self.answer(waiter.id, answer.clone());
        }
    }

    pub(super) fn fail_collectives_of_ended_ranks(&mut self) {
        let open: Vec<CollectiveId> = self.collectives.open.keys().cloned().collect();
        for operation in open {
            self.advance_collective(&operation);
        }
    }

    /// Reports to the root that a collective can never complete. The root then notifies every node.
    pub(super) fn fail_collective(&mut self, operation: &CollectiveId, why: CollectiveFailure) {
        if self.collectives.failure_of(operation).is_some() || self.aborted.is_some() {
            return;
        }
        match self.parent {
            None => self.on_failed(operation, &why),
            Some(parent) => self.send(parent, Message::ReportFailure(operation.clone(), why)),
        }
    }

    /// Fails a collective and all later ones of the same name, on this node and in its subtree.
    pub(super) fn on_failed(&mut self, operation: &CollectiveId, why: &CollectiveFailure) {
        if self.collectives.failure_of(operation).is_some() {
            return;
        }
        self.collectives
            .failed
            .insert(operation.collective_name(), (operation.sequence, why.clone()));
        self.send_down(&Message::Failed(operation.clone(), why.clone()).into());
        // Later collectives of this name cannot complete either, because each rank calls them in
        // order.
        let is_same_or_later = |open: &&CollectiveId| {
            open.collective_name() == operation.collective_name()
                && open.sequence >= operation.sequence
        };
        let over: Vec<CollectiveId> =
            self.collectives.open.keys().filter(is_same_or_later).cloned().collect();
        for operation in over {
            let Some(open) = self.collectives.open.remove(&operation) else { continue };
            self.collectives.waiting -= open.waiters.len();
            for waiter in open.waiters {
                self.answer(waiter.id, Answer::Failed(why.clone()));
            }
        }
    }

    /// Ends calls whose timeout has expired, and starts searches for missing ranks that are due.
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
            if let Some(since) = since
                && open.query_at.is_some_and(|at| at <= now)
            {
                open.query_at = Some(now + QUERY_INTERVAL);
                ask.push((operation.clone(), now.since(since)));
            }
        }
        self.collectives.waiting -= expired.len();
        for (id, missing) in expired {
            self.answer(id, Answer::TimedOut(missing));
        }
        for (operation, waited) in ask {
            self.query_missing(now, operation, waited);
        }
    }
}
