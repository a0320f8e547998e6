//! Collective algorithms, independent of the network.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | the collectives and their names |
//! | `schedule` | algorithms as data: in each step, which rank sends which elements to which rank |
//! | `choice` | tables that select an algorithm by message size and placement of ranks |
//! | `cache` | schedules of recent collectives |
//! | `reduce` | vectorised element-wise reductions |

pub(crate) mod cache;
pub mod choice;
pub mod reduce;
pub mod schedule;

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
