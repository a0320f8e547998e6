//! Collective algorithms, independent of the network.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | the collectives and their names; the schedules of a communicator's recent ones |
//! | `schedule` | algorithms as data: in each step, which rank sends which elements to which rank |
//! | `choice` | tables that select an algorithm by message size and placement of ranks |
//! | `reduce` | vectorised element-wise reductions |

pub mod choice;
pub(crate) mod reduce;
pub mod schedule;

use crate::types::ElementType;
use choice::{AllGather, AllToAll, Barrier, Choice, Gather, ReduceScatter, Scatter, Topology};
use schedule::Schedule;
use std::sync::{Arc, Mutex, PoisonError};

/// Kind of collective, with the number of the root rank if the kind has a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// Every rank waits until all ranks have called the barrier, see
    /// [`Communicator::barrier`](crate::Communicator::barrier).
    Barrier,
    /// All ranks get the root's data, see
    /// [`Communicator::broadcast`](crate::Communicator::broadcast).
    Broadcast {
        /// Rank that has the data.
        root: usize,
    },
    /// The root gets the reduction of all ranks' data, see
    /// [`Communicator::reduce`](crate::Communicator::reduce).
    Reduce {
        /// Rank that gets the result.
        root: usize,
    },
    /// All ranks get the reduction of all ranks' data, see
    /// [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    AllReduce,
    /// The root gets the data of all ranks, see
    /// [`Communicator::gather`](crate::Communicator::gather).
    Gather {
        /// Rank that gets the data.
        root: usize,
    },
    /// Each rank gets its block of the root's data, see
    /// [`Communicator::scatter`](crate::Communicator::scatter).
    Scatter {
        /// Rank that has the data.
        root: usize,
    },
    /// All ranks get the data of all ranks, see
    /// [`Communicator::all_gather`](crate::Communicator::all_gather).
    AllGather,
    /// Each rank gets its block of the reduction of all ranks' data, see
    /// [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    ReduceScatter,
    /// Each rank gets one block from every rank, see
    /// [`Communicator::all_to_all`](crate::Communicator::all_to_all).
    AllToAll,
}

impl CollectiveKind {
    /// Returns the name that errors use, such as `all_reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            CollectiveKind::Barrier => "barrier",
            CollectiveKind::Broadcast { .. } => "broadcast",
            CollectiveKind::Reduce { .. } => "reduce",
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::Gather { .. } => "gather",
            CollectiveKind::Scatter { .. } => "scatter",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
        }
    }

    /// Names of all collectives. A packet that reports a cancelled collective carries the index of
    /// the collective's name in this list.
    pub(crate) const NAMES: [&str; 9] = [
        CollectiveKind::Barrier.name(),
        CollectiveKind::Broadcast { root: 0 }.name(),
        CollectiveKind::Reduce { root: 0 }.name(),
        CollectiveKind::AllReduce.name(),
        CollectiveKind::Gather { root: 0 }.name(),
        CollectiveKind::Scatter { root: 0 }.name(),
        CollectiveKind::AllGather.name(),
        CollectiveKind::ReduceScatter.name(),
        CollectiveKind::AllToAll.name(),
    ];

    /// Returns the root rank, or `None` if this kind of collective has no root.
    pub fn root(self) -> Option<usize> {
        match self {
            CollectiveKind::Broadcast { root }
            | CollectiveKind::Reduce { root }
            | CollectiveKind::Gather { root }
            | CollectiveKind::Scatter { root } => Some(root),
            _ => None,
        }
    }
}

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
