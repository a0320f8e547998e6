//! Search for ranks that are missing from a collective. A node whose ranks have waited long sends a
//! query up to the root. The root asks the subtrees that have not arrived for their missing ranks,
//! and sends the result to every node.

use super::{Node, NodeOutput, NodeReport};
use crate::id::NodeId;
use crate::rendezvous::Time;
use crate::rendezvous::message::{CollectiveId, Message, MissingRanks, RankState};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time after a query in which further queries about the same collective are dropped.
const QUERY_MERGE: Duration = Duration::from_secs(1);
/// Time in which each level of the subtree must report its missing ranks.
const TIME_PER_LEVEL: Duration = Duration::from_millis(250);

#[derive(Debug)]
struct Count {
    awaited: Vec<NodeId>,
    missing: MissingRanks,
    until: Time,
}

/// Queries that this node has passed on, and counts of missing ranks that are in progress.
#[derive(Debug, Default)]
pub(super) struct StragglerQueries {
    asked: BTreeMap<CollectiveId, (Time, Duration)>,
    counts: BTreeMap<CollectiveId, Count>,
}

impl StragglerQueries {
    pub(super) fn due(&self) -> Option<Time> {
        self.counts.values().map(|count| count.until).min()
    }

    pub(super) fn abandon(&mut self) {
        self.counts.clear();
        self.asked.clear();
    }
}

impl Node {
    /// Starts or passes on a query for the ranks that are missing from a collective.
    pub(super) fn query_missing(&mut self, now: Time, operation: CollectiveId, waited: Duration) {
        if self.aborted.is_some() {
            return;
        }
        self.stragglers.asked.retain(|_, (asked, _)| now.since(*asked) < QUERY_MERGE);
        if self.stragglers.asked.contains_key(&operation) {
            return;
        }
        self.stragglers.asked.insert(operation.clone(), (now, waited));
        match self.parent {
            Some(parent) => {
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                self.send(parent, Message::QueryMissing { operation, waited_ms });
            }
            None => self.count_missing(now, &operation),
        }
    }

    /// Starts to count the missing ranks of this node's subtree.
    pub(super) fn count_missing(&mut self, now: Time, operation: &CollectiveId) {
        if self.stragglers.counts.contains_key(operation) || self.aborted.is_some() {
            return;
        }
        let mut missing = MissingRanks::default();
        let mut awaited = Vec::new();
        if let Some(arrived) = self.collectives.arrived(operation) {
            for (rank, local) in &self.locals {
                if !arrived.contains(*rank) {
                    missing.add(*rank, local.state());
                }
            }
            let children = self.children.iter().map(|child| child.id);
            let absent = |id: &NodeId| !self.collectives.child_has_arrived(operation, *id);
            awaited = children.filter(absent).collect();
        }
        for &child in &awaited {
            self.outputs.push_back(NodeOutput::Send(
                child,
                Message::CountMissing(operation.clone()).into(),
            ));
        }
        let until = now + TIME_PER_LEVEL * self.shape.height_of(self.id);
        self.stragglers.counts.insert(operation.clone(), Count { awaited, missing, until });
        self.conclude_if_counted(operation);
    }

    /// Handles the missing ranks that a child has reported for its subtree.
    pub(super) fn on_missing_counted(
        &mut self,
        from: NodeId,
        operation: &CollectiveId,
        missing: MissingRanks,
    ) {
        // The time for the count is over, and it ended without this child.
        let Some(count) = self.stragglers.counts.get_mut(operation) else { return };
        if count.awaited.contains(&from) {
            count.awaited.retain(|&id| id != from);
            count.missing.extend(missing);
            self.conclude_if_counted(operation);
        }
    }

    pub(super) fn expire_counts(&mut self, now: Time) {
        let over = |(_, count): &(&CollectiveId, &Count)| count.until <= now;
        let expired: Vec<CollectiveId> = self
            .stragglers
            .counts
            .iter()
            .filter(over)
            .map(|(operation, _)| operation.clone())
            .collect();
        for operation in expired {
            let Some(count) = self.stragglers.counts.get_mut(&operation) else { continue };
            let silent = std::mem::take(&mut count.awaited);
            let children = self.children.iter().filter(|child| silent.contains(&child.id));
            for ranks in children.filter_map(|child| child.ranks.as_ref()) {
                count.missing.add_all(ranks, RankState::AgentSilent);
            }
            self.conclude_if_counted(&operation);
        }
    }

    fn conclude_if_counted(&mut self, operation: &CollectiveId) {
        if self.stragglers.counts.get(operation).is_none_or(|count| !count.awaited.is_empty()) {
            return;
        }
        if let Some(count) = self.stragglers.counts.remove(operation) {
            self.conclude(operation, count.missing);
        }
    }

    fn conclude(&mut self, operation: &CollectiveId, missing: MissingRanks) {
        match self.parent {
            Some(parent) => self.send(parent, Message::MissingCounted(operation.clone(), missing)),
            None if missing.ranks.is_empty() => {}
            None => {
                let waited = self.stragglers.asked.get(operation).map(|(_, waited)| *waited);
                self.on_missing(operation, &missing);
                self.outputs.push_back(NodeOutput::Report(NodeReport::Waiting {
                    operation: operation.clone(),
                    waited: waited.unwrap_or_default(),
                    missing,
                }));
            }
        }
    }

    /// Records the missing ranks of the whole job, which the root has found, and sends them to the
    /// children.
    pub(super) fn on_missing(&mut self, operation: &CollectiveId, missing: &MissingRanks) {
        self.collectives.note_missing(operation, missing);
        self.send_down(&Message::Missing(operation.clone(), missing.clone()).into());
    }
}
