//! Names of the collectives.

/// Collective, with its root rank if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// [`Communicator::barrier`](crate::Communicator::barrier).
    Barrier,
    /// [`Communicator::broadcast`](crate::Communicator::broadcast).
    Broadcast {
        /// Rank that has the data.
        root: usize,
    },
    /// [`Communicator::reduce`](crate::Communicator::reduce).
    Reduce {
        /// Rank that gets the result.
        root: usize,
    },
    /// [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    AllReduce,
    /// [`Communicator::gather`](crate::Communicator::gather).
    Gather {
        /// Rank that gets the data.
        root: usize,
    },
    /// [`Communicator::scatter`](crate::Communicator::scatter).
    Scatter {
        /// Rank that has the data.
        root: usize,
    },
    /// [`Communicator::all_gather`](crate::Communicator::all_gather).
    AllGather,
    /// [`Communicator::reduce_scatter`](crate::Communicator::reduce_scatter).
    ReduceScatter,
    /// [`Communicator::all_to_all`](crate::Communicator::all_to_all).
    AllToAll,
}

impl CollectiveKind {
    /// Returns the name that errors use.
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

    /// Names of all collectives. Notices of cancelled collectives carry the index.
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

    /// Returns the root, if the collective has one.
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
