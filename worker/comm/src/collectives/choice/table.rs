//! The tables. Their numbers are measured; whoever changes one runs the benches.

use crate::collectives::schedule::{
    Member, Schedule, all_gather, all_reduce, all_to_all, broadcast, gather, reduce,
    reduce_scatter, scatter,
};
use std::fmt;

/// Where the ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TopologyClass {
    /// All on one.
    OneNode,
    /// One or two on each of several.
    Spread,
    /// More than that on some of several.
    Grouped,
}

/// What is taken when; the first row that fits.
pub(super) struct Table<A: 'static> {
    /// Grouped ranks go by node up to so many bytes.
    pub(super) by_node: usize,
    rows: &'static [Row<A>],
    otherwise: A,
}

/// Where; up to how many ranks; up to how many bytes; what.
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

/// By bytes of the message.
pub(super) static BROADCAST: Table<Broadcast> = Table {
    by_node: ANY,
    rows: &[
        Row(ANYWHERE, 2, ANY, Broadcast::Binomial),
        Row(ANYWHERE, ANY, 64 * KIB, Broadcast::Binomial),
        // All fetch at once from where it is.
        Row(ONE_NODE, 8, ANY, Broadcast::Linear),
    ],
    otherwise: Broadcast::ScatterRing,
};

/// By bytes of each rank.
pub(super) static REDUCE: Table<Reduce> = Table {
    by_node: ANY,
    rows: &[Row(ANYWHERE, 2, ANY, Reduce::Binomial), Row(ANYWHERE, ANY, 8 * KIB, Reduce::Binomial)],
    otherwise: Reduce::ScatterGather,
};

/// By bytes of each rank.
pub(super) static ALL_REDUCE: Table<AllReduce> = Table {
    // Beyond, a ring crosses the network as rarely, and needs no leader.
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

/// By bytes from each rank.
pub(super) static GATHER: Table<Gather> = Table {
    by_node: NEVER,
    rows: &[Row(ANYWHERE, 4, ANY, Gather::Linear), Row(ANYWHERE, ANY, 2 * KIB, Gather::Binomial)],
    otherwise: Gather::Linear,
};

/// By bytes for each rank.
pub(super) static SCATTER: Table<Scatter> = Table {
    by_node: NEVER,
    rows: &[Row(ANYWHERE, 4, ANY, Scatter::Linear), Row(ANYWHERE, ANY, 2 * KIB, Scatter::Binomial)],
    otherwise: Scatter::Linear,
};

/// By bytes from all ranks together.
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

/// By bytes of each rank.
pub(super) static REDUCE_SCATTER: Table<ReduceScatter> = Table {
    by_node: NEVER,
    rows: &[
        Row(ANYWHERE, 2, ANY, ReduceScatter::Pairwise),
        Row(ANYWHERE, ANY, 512 * KIB, ReduceScatter::Halving),
    ],
    otherwise: ReduceScatter::Pairwise,
};

/// By bytes from each rank to each.
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
                /// This member's part.
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
    /// From one to all.
    Broadcast(count: usize, root: usize) in broadcast {
        Linear => linear, "linear";
        Binomial => binomial, "binomial";
        ScatterRing => scatter_ring, "scatter and ring";
    }
    /// Of all at one.
    Reduce(count: usize, root: usize, in_place: bool) in reduce {
        Binomial => binomial, "binomial";
        ScatterGather => scatter_gather, "reduce-scatter and gather";
    }
    /// Of all at all.
    AllReduce(count: usize, in_place: bool) in all_reduce {
        Direct => direct, "direct";
        RecursiveDoubling => recursive_doubling, "recursive doubling";
        Rabenseifner => rabenseifner, "Rabenseifner";
        Scattered => scattered, "scattered";
        Pieces => pieces, "pieces";
        Ring => ring, "ring";
    }
    /// From all to one.
    Gather(count: usize, root: usize, in_place: bool) in gather {
        Linear => linear, "linear";
        Binomial => binomial, "binomial";
    }
    /// From one, a block to each.
    Scatter(count: usize, root: usize, in_place: bool) in scatter {
        Linear => linear, "linear";
        Binomial => binomial, "binomial";
    }
    /// From all to all.
    AllGather(count: usize, in_place: bool) in all_gather {
        Doubling => doubling, "recursive doubling";
        Bruck => bruck, "Bruck";
        Ring => ring, "ring";
    }
    /// Of all, a block at each.
    ReduceScatter(count: usize, in_place: bool) in reduce_scatter {
        Halving => halving, "recursive halving";
        Pairwise => pairwise, "pairwise";
    }
    /// From all, a block to each.
    AllToAll(count: usize, in_place: bool) in all_to_all {
        Pairwise => pairwise, "pairwise";
        Scattered => scattered, "scattered";
        Bruck => bruck, "Bruck";
    }
}
