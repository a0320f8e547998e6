//! Names of the collectives.

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// [`Communicator::barrier`](crate::Communicator::barrier).
    Barrier,
    /// [`Communicator::broadcast`](crate::Communicator::broadcast).
    Broadcast {
        /// Who has it.
        root: usize,
    },
    /// [`Communicator::reduce`](crate::Communicator::reduce).
    Reduce {
        /// Who gets it.
        root: usize,
    },
    /// [`Communicator::all_reduce`](crate::Communicator::all_reduce).
    AllReduce,
    /// [`Communicator::gather`](crate::Communicator::gather).
    Gather {
        /// Who gets it.
        root: usize,
    },
    /// [`Communicator::scatter`](crate::Communicator::scatter).
    Scatter {
        /// Who has it.
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
    /// As errors name it.
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

    /// The names of all kinds, by number.
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

    /// The rank that is unlike the others.
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
