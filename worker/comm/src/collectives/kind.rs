//! Names of the collectives.

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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

impl Kind {
    /// As errors name it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Barrier => "barrier",
            Kind::Broadcast { .. } => "broadcast",
            Kind::Reduce { .. } => "reduce",
            Kind::AllReduce => "all_reduce",
            Kind::Gather { .. } => "gather",
            Kind::Scatter { .. } => "scatter",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllToAll => "all_to_all",
        }
    }

    /// The names of all kinds, by number.
    pub(crate) const NAMES: [&str; 9] = [
        Kind::Barrier.name(),
        Kind::Broadcast { root: 0 }.name(),
        Kind::Reduce { root: 0 }.name(),
        Kind::AllReduce.name(),
        Kind::Gather { root: 0 }.name(),
        Kind::Scatter { root: 0 }.name(),
        Kind::AllGather.name(),
        Kind::ReduceScatter.name(),
        Kind::AllToAll.name(),
    ];

    /// The rank that is unlike the others.
    pub fn root(self) -> Option<usize> {
        match self {
            Kind::Broadcast { root }
            | Kind::Reduce { root }
            | Kind::Gather { root }
            | Kind::Scatter { root } => Some(root),
            _ => None,
        }
    }
}
