//! Collective algorithms, independent of the network.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | the collectives and their names; the schedules that a communicator keeps |
//! | `schedule` | algorithms as data: in each step, which rank sends which elements to which rank |
//! | `choice` | tables that select an algorithm by message size and placement of ranks |
//! | `reduce` | vectorised element-wise reductions |

pub mod choice;
pub(crate) mod reduce;
pub mod schedule;

use crate::types::ElementType;
use choice::{AllGather, AllToAll, Barrier, Choice, Gather, ReduceScatter, Scatter, Topology};
use schedule::Schedule;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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

/// Schedules of a communicator. Programs repeat the same few collectives, so the first ones that
/// they run are kept, and found without a lock. Of the others, the most recent ones are kept.
#[derive(Debug)]
pub(crate) struct ScheduleCache {
    topology: Topology,
    /// The first schedules, in the order in which they were built.
    first: [OnceLock<CachedSchedule>; ScheduleCache::FIRST],
    /// The most recently built schedules other than the first ones, with the newest at the end.
    recent: Mutex<Vec<CachedSchedule>>,
}

type CachedSchedule = (ScheduleKey, Arc<Schedule>);

impl ScheduleCache {
    /// Number of schedules that are kept for good.
    const FIRST: usize = 8;
    /// Maximum number of other schedules.
    const RECENT: usize = 32;

    pub(crate) fn new(topology: Topology) -> ScheduleCache {
        let first = [const { OnceLock::new() }; ScheduleCache::FIRST];
        ScheduleCache { topology, first, recent: Mutex::default() }
    }

    /// Finds or builds the schedule of a collective. Finding one of the first executes no locked
    /// instruction, as a mutex or a clone of an `Arc` would: they take a notable part of the time
    /// of a short collective.
    #[inline]
    pub(crate) fn get(&self, key: ScheduleKey) -> Cow<'_, Arc<Schedule>> {
        for entry in &self.first {
            let (known, schedule) = entry.get_or_init(|| self.build(key));
            if *known == key {
                return Cow::Borrowed(schedule);
            }
        }
        Cow::Owned(self.get_recent(key))
    }

    fn get_recent(&self, key: ScheduleKey) -> Arc<Schedule> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, schedule)) = recent.iter().rev().find(|(known, _)| *known == key) {
            return schedule.clone();
        }
        if recent.len() == ScheduleCache::RECENT {
            recent.remove(0);
        }
        let entry = self.build(key);
        let schedule = entry.1.clone();
        recent.push(entry);
        schedule
    }

    #[cold]
    fn build(&self, key: ScheduleKey) -> CachedSchedule {
        (key, Arc::new(key.schedule(&self.topology)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_reduce(count: usize) -> ScheduleKey {
        let (kind, element) = (CollectiveKind::AllReduce, ElementType::F32);
        ScheduleKey { kind, count, element, in_place: false }
    }

    fn cache() -> ScheduleCache {
        ScheduleCache::new(Topology::new(1, &[0, 0, 0]))
    }

    #[test]
    fn a_schedule_is_that_of_its_collective_wherever_it_is_kept() {
        let cache = cache();
        let more_than_are_kept = ScheduleCache::FIRST + ScheduleCache::RECENT + 5;
        for _ in 0..3 {
            for count in 1..more_than_are_kept {
                let expected = all_reduce(count).schedule(&cache.topology);
                assert_eq!(**cache.get(all_reduce(count)), expected, "{count} elements");
            }
        }
        let recent = cache.recent.lock().unwrap();
        assert_eq!(recent.len(), ScheduleCache::RECENT);
    }

    #[test]
    fn the_first_schedules_stay_and_of_the_others_the_most_recent() {
        let cache = cache();
        let first = cache.get(all_reduce(1)).into_owned();
        let counts = 2..=ScheduleCache::FIRST + 1;
        let last = counts.map(|count| cache.get(all_reduce(count)).into_owned()).last().unwrap();
        for count in 100..99 + ScheduleCache::RECENT {
            let _ = cache.get(all_reduce(count));
        }
        let is_kept = |count, schedule| Arc::ptr_eq(&cache.get(all_reduce(count)), schedule);
        assert!(is_kept(1, &first));
        assert!(is_kept(ScheduleCache::FIRST + 1, &last), "one of {}", ScheduleCache::RECENT);
        let _ = cache.get(all_reduce(99));
        assert!(!is_kept(ScheduleCache::FIRST + 1, &last), "the oldest made room");
        assert!(is_kept(1, &first));
        assert!(matches!(cache.get(all_reduce(1)), Cow::Borrowed(_)), "without a lock");
    }

    #[test]
    fn threads_that_begin_at_once_find_the_same_schedules() {
        let cache = cache();
        let all = || (1..20).map(|count| cache.get(all_reduce(count)).into_owned());
        let found: Vec<Vec<Arc<Schedule>>> = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| all().collect()));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for others in &found[1..] {
            assert!(std::iter::zip(&found[0], others).all(|(one, other)| Arc::ptr_eq(one, other)));
        }
    }
}
