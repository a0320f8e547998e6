//! Schedules of a communicator's recent collectives, and what a schedule depends on.

use super::CollectiveKind;
use super::choice::{
    AllGather, AllToAll, Barrier, Choice, Gather, ReduceScatter, Scatter, Topology,
};
use super::schedule::Schedule;
use crate::types::element::ElementType;
use std::sync::{Arc, Mutex, PoisonError};

/// Parameters of a collective that determine its schedule in a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduleKey {
    pub(crate) kind: CollectiveKind,
    /// Number of elements: in the whole message or vector, or in one rank's block if the collective
    /// divides its data into blocks.
    pub(crate) count: usize,
    pub(crate) element: ElementType,
    pub(crate) in_place: bool,
}

impl ScheduleKey {
    fn schedule(self, topology: &Topology) -> Schedule {
        let ScheduleKey { kind, count, element, in_place } = self;
        let bytes = count * element.size();
        let all = bytes * topology.me().size;
        let me = topology.me();
        match kind {
            CollectiveKind::Barrier => Barrier::choose(topology).schedule(topology),
            CollectiveKind::Broadcast { root } => {
                Choice::broadcast(topology, bytes).schedule(topology, count, root)
            }
            CollectiveKind::Reduce { root } => {
                Choice::reduce(topology, bytes).schedule(topology, count, root, in_place)
            }
            CollectiveKind::AllReduce => {
                Choice::all_reduce(topology, bytes).schedule(topology, count, in_place)
            }
            CollectiveKind::Gather { root } => {
                Gather::choose(topology, bytes).schedule(me, count, root, in_place)
            }
            CollectiveKind::Scatter { root } => {
                Scatter::choose(topology, bytes).schedule(me, count, root, in_place)
            }
            CollectiveKind::AllGather => {
                AllGather::choose(topology, all).schedule(me, count, in_place)
            }
            CollectiveKind::ReduceScatter => {
                ReduceScatter::choose(topology, all).schedule(me, count, in_place)
            }
            CollectiveKind::AllToAll => {
                AllToAll::choose(topology, bytes).schedule(me, count, in_place)
            }
        }
    }
}

/// Cache of the most recently built schedules, with the newest at the end. Programs repeat the same
/// few collectives, so most calls find their schedule in the cache.
#[derive(Debug)]
pub(crate) struct ScheduleCache {
    topology: Topology,
    entries: Mutex<Vec<(ScheduleKey, Arc<Schedule>)>>,
}

impl ScheduleCache {
    /// Maximum number of cached schedules.
    const CAPACITY: usize = 32;

    pub(crate) fn new(topology: Topology) -> ScheduleCache {
        ScheduleCache { topology, entries: Mutex::default() }
    }

    pub(crate) fn get(&self, key: ScheduleKey) -> Arc<Schedule> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, schedule)) = entries.iter().rev().find(|(known, _)| *known == key) {
            return schedule.clone();
        }
        if entries.len() == ScheduleCache::CAPACITY {
            entries.remove(0);
        }
        let schedule = Arc::new(key.schedule(&self.topology));
        entries.push((key, schedule.clone()));
        schedule
    }
}
