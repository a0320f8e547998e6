//! Tables that select algorithms by message size and placement of ranks. The thresholds come from
//! measurements: run the benchmarks (`cargo lab bench comm`) after changing a threshold.
//!
//! In a *hierarchical* algorithm, only one rank of each node, its *leader*, exchanges messages with
//! other nodes.

use crate::collectives::schedule::{
    Member, Schedule, all_gather, all_reduce, all_to_all, broadcast, gather, reduce,
    reduce_scatter, scatter,
};
use std::fmt;

/// Coarse kind of placement of ranks on nodes. Each row of a table lists the classes to which it
/// applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopologyClass {
    /// All ranks on one node.
    OneNode,
    /// Several nodes with one or two ranks each.
    Spread,
    /// Several nodes, some with more than two ranks.
    Grouped,
}

/// Table that selects a collective's algorithm. The first matching row applies, or `otherwise` if
/// none matches.
pub(super) struct Table<A: 'static> {
    /// Maximum message size in bytes for which ranks placed as [`TopologyClass::Grouped`] use a
    /// hierarchical algorithm.
    pub(super) by_node: usize,
    rows: &'static [Row<A>],
    otherwise: A,
}

/// Row of a table: classes of placements, maximum number of ranks, maximum message size in bytes,
/// and algorithm.
struct Row<A>(&'static [TopologyClass], usize, usize, A);

impl<A: Copy> Table<A> {
    pub(super) fn find(&self, class: TopologyClass, ranks: usize, bytes: usize) -> A {
        let fits = |row: &&Row<A>| row.0.contains(&class) && ranks <= row.1 && bytes <= row.2;
        let row = self.rows.iter().find(fits);
        row.map_or(self.otherwise, |row| row.3)
    }
}

const ANYWHERE: &[TopologyClass] =
    &[TopologyClass::OneNode, TopologyClass::Spread, TopologyClass::Grouped];
const ONE_NODE: &[TopologyClass] = &[TopologyClass::OneNode];
const ANY: usize = usize::MAX;
const NEVER: usize = 0;
const KIB: usize = 1 << 10;

/// Broadcast algorithms, selected by the message size in bytes.
pub(super) static BROADCAST: Table<Broadcast> = Table {
    by_node: ANY,
    rows: &[
        Row(ANYWHERE, 2, ANY, Broadcast::Binomial),
        Row(ANYWHERE, ANY, 64 * KIB, Broadcast::Binomial),
        // On one node, all other ranks read from the root's memory at the same time.
        Row(ONE_NODE, 8, ANY, Broadcast::Linear),
    ],
    otherwise: Broadcast::ScatterRing,
};

/// Algorithms of reductions with the result at one rank, selected by the size of a rank's vector in
/// bytes.
pub(super) static REDUCE: Table<Reduce> = Table {
    by_node: ANY,
    rows: &[Row(ANYWHERE, 2, ANY, Reduce::Binomial), Row(ANYWHERE, ANY, 8 * KIB, Reduce::Binomial)],
    otherwise: Reduce::ScatterGather,
};

/// All-reduce algorithms, selected by the size of a rank's vector in bytes.
pub(super) static ALL_REDUCE: Table<AllReduce> = Table {
    // Above this size, a ring among all ranks is better: it sends about as few bytes between nodes
    // as a hierarchical algorithm does, and needs no leaders.
    by_node: 256 * KIB,
    rows: &[
        Row(ANYWHERE, 2, 8 * KIB, AllReduce::RecursiveDoubling),
        Row(ONE_NODE, 2, 64 * KIB, AllReduce::Pieces),
        Row(ANYWHERE, 2, ANY, AllReduce::Rabenseifner),
        Row(ANYWHERE, 4, 256, AllReduce::Direct),
        Row(ANYWHERE, ANY, 8 * KIB, AllReduce::RecursiveDoubling),
        Row(ANYWHERE, 3, 48 * KIB, AllReduce::Scattered),
        Row(ANYWHERE, 4, 64 * KIB, AllReduce::Scattered),
        Row(ANYWHERE, ANY, 256 * KIB, AllReduce::Rabenseifner),
        Row(ONE_NODE, ANY, ANY, AllReduce::Rabenseifner),
    ],
    otherwise: AllReduce::Ring,
};

/// Gather algorithms, selected by the size in bytes of the block from each rank.
pub(super) static GATHER: Table<Gather> = Table {
    by_node: NEVER,
    rows: &[Row(ANYWHERE, 4, ANY, Gather::Linear), Row(ANYWHERE, ANY, 2 * KIB, Gather::Binomial)],
    otherwise: Gather::Linear,
};

/// Scatter algorithms, selected by the size in bytes of the block to each rank.
pub(super) static SCATTER: Table<Scatter> = Table {
    by_node: NEVER,
    rows: &[Row(ANYWHERE, 4, ANY, Scatter::Linear), Row(ANYWHERE, ANY, 2 * KIB, Scatter::Binomial)],
    otherwise: Scatter::Linear,
};

/// All-gather algorithms, selected by the total size in bytes of the blocks of all ranks.
pub(super) static ALL_GATHER: Table<AllGather> = Table {
    by_node: NEVER,
    rows: &[
        Row(ANYWHERE, 2, ANY, AllGather::Doubling),
        Row(ANYWHERE, ANY, 32 * KIB, AllGather::Bruck),
        Row(ANYWHERE, ANY, 512 * KIB, AllGather::Doubling),
        Row(ONE_NODE, ANY, ANY, AllGather::Doubling),
    ],
    otherwise: AllGather::Ring,
};

/// Reduce-scatter algorithms, selected by the size in bytes of each rank's input.
pub(super) static REDUCE_SCATTER: Table<ReduceScatter> = Table {
    by_node: NEVER,
    rows: &[
        Row(ANYWHERE, 2, ANY, ReduceScatter::Pairwise),
        Row(ANYWHERE, ANY, 512 * KIB, ReduceScatter::Halving),
    ],
    otherwise: ReduceScatter::Pairwise,
};

/// All-to-all algorithms, selected by the size in bytes of the block from each rank to each rank.
pub(super) static ALL_TO_ALL: Table<AllToAll> = Table {
    by_node: NEVER,
    rows: &[
        Row(ANYWHERE, 2, ANY, AllToAll::Pairwise),
        Row(ANYWHERE, 7, 32 * KIB, AllToAll::Scattered),
        Row(ANYWHERE, ANY, 256, AllToAll::Bruck),
        Row(ANYWHERE, ANY, 32 * KIB, AllToAll::Scattered),
    ],
    otherwise: AllToAll::Pairwise,
};

macro_rules! algorithms {
    ($(
        $(#[$doc:meta])*
        $collective:ident($($argument:ident: $type:ty),*) in $module:ident {
            $($variant:ident => $function:ident, $name:literal;)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $collective {
                $(
                    #[doc = concat!("[`", stringify!($module), "::", stringify!($function), "`]")]
                    $variant,
                )*
            }

            impl $collective {
                /// Builds the schedule of rank `me`.
                pub fn schedule(self, me: Member, $($argument: $type),*) -> Schedule {
                    let algorithm: fn(Member, $($type),*) -> Schedule = match self {
                        $($collective::$variant => $module::$function,)*
                    };
                    algorithm(me, $($argument),*)
                }
            }

            impl fmt::Display for $collective {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(match self {
                        $($collective::$variant => $name,)*
                    })
                }
            }
        )*
    };
}

algorithms! {
    /// Broadcast algorithm.
    Broadcast(count: usize, root: usize) in broadcast {
        Linear => linear, "linear";
        Binomial => binomial, "binomial";
        ScatterRing => scatter_ring, "scatter and ring";
    }
    /// Reduction algorithm, with the result at one rank.
    Reduce(count: usize, root: usize, in_place: bool) in reduce {
        Binomial => binomial, "binomial";
        ScatterGather => scatter_gather, "reduce-scatter and gather";
    }
    /// Reduction algorithm, with the result at all ranks.
    AllReduce(count: usize, in_place: bool) in all_reduce {
        Direct => direct, "direct";
        RecursiveDoubling => recursive_doubling, "recursive doubling";
        Rabenseifner => rabenseifner, "Rabenseifner";
        Scattered => scattered, "scattered";
        Pieces => pieces, "pieces";
        Ring => ring, "ring";
    }
    /// Gather algorithm.
    Gather(count: usize, root: usize, in_place: bool) in gather {
        Linear => linear, "linear";
        Binomial => binomial, "binomial";
    }
    /// Scatter algorithm.
    Scatter(count: usize, root: usize, in_place: bool) in scatter {
        Linear => linear, "linear";
        Binomial => binomial, "binomial";
    }
    /// All-gather algorithm.
    AllGather(count: usize, in_place: bool) in all_gather {
        Doubling => doubling, "recursive doubling";
        Bruck => bruck, "Bruck";
        Ring => ring, "ring";
    }
    /// Reduce-scatter algorithm.
    ReduceScatter(count: usize, in_place: bool) in reduce_scatter {
        Halving => halving, "recursive halving";
        Pairwise => pairwise, "pairwise";
    }
    /// All-to-all algorithm.
    AllToAll(count: usize, in_place: bool) in all_to_all {
        Pairwise => pairwise, "pairwise";
        Scattered => scattered, "scattered";
        Bruck => bruck, "Bruck";
    }
}
