//! Choice of the algorithm for each collective.
//!
//! All ranks of a collective make the same choice, because the choice depends only on data that all
//! of them have: the message size and the placement of ranks on nodes.
//!
//! A *flat* algorithm ignores which ranks share a node. In a *hierarchical* algorithm, only one
//! rank of each node, its *leader*, exchanges messages with other nodes.
//!
//! The thresholds in the tables come from measurements: run the benchmarks (`cargo lab bench comm`)
//! after changing a threshold.

use crate::collectives::schedule::by_node::{self, Nodes};
use crate::collectives::schedule::{Member, Schedule, all_reduce, exchange, rooted};
use std::fmt;

/// Placement of a communicator's ranks on nodes, as seen from one of these ranks.
#[derive(Clone, Debug)]
pub struct Topology {
    me: Member,
    class: TopologyClass,
    nodes: Nodes,
}

impl Topology {
    /// Creates the topology as seen from rank `rank`; `node_of[r]` is the number of rank `r`'s
    /// node.
    pub fn new(rank: usize, node_of: &[usize]) -> Topology {
        let nodes = Nodes::new(node_of);
        let class = match (nodes.count(), nodes.largest()) {
            (..=1, _) => TopologyClass::OneNode,
            // With at most two ranks per node, the leaders of a hierarchical algorithm save
            // nothing.
            (_, ..=2) => TopologyClass::Spread,
            _ => TopologyClass::Grouped,
        };
        let me = Member { rank, size: nodes.size() };
        Topology { me, class, nodes }
    }

    /// Returns the rank from which the placement is seen, with the communicator's number of ranks.
    pub fn me(&self) -> Member {
        self.me
    }

    fn flat<A: Copy>(&self, table: &Table<A>, bytes: usize) -> A {
        table.find(self.class, self.me.size, bytes)
    }

    /// Finds the algorithm for the part of a hierarchical collective that the nodes' leaders run
    /// among themselves.
    fn among<A: Copy>(&self, table: &Table<A>, bytes: usize) -> A {
        table.find(TopologyClass::Spread, self.nodes.count(), bytes)
    }

    /// Finds the algorithm for the part of a hierarchical collective that the ranks of this rank's
    /// node run among themselves.
    fn within<A: Copy>(&self, table: &Table<A>, bytes: usize) -> A {
        let size = self.nodes.within(self.me.rank).size;
        table.find(TopologyClass::OneNode, size, bytes)
    }

    /// Chooses the algorithm of a collective of `bytes` bytes: a hierarchical one if ranks share
    /// nodes and the table has one for this size, otherwise a flat one.
    fn choose<A: Copy>(&self, table: &Table<A>, bytes: usize) -> Choice<A> {
        if !self.goes_by_node(table, bytes) {
            return Choice::Flat(self.flat(table, bytes));
        }
        Choice::ByNode { within: self.within(table, bytes), among: self.among(table, bytes) }
    }

    fn goes_by_node<A>(&self, table: &Table<A>, bytes: usize) -> bool {
        self.class == TopologyClass::Grouped && bytes <= table.by_node
    }
}

/// Chosen algorithm of a collective: one flat algorithm, or one algorithm within each node and
/// another among the nodes' leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<A, W = A> {
    /// One algorithm among all ranks, which ignores their nodes.
    Flat(A),
    /// Hierarchical algorithm: only one rank of each node, its leader, exchanges messages with
    /// other nodes. See [`by_node`].
    ByNode {
        /// Algorithm among the ranks of one node.
        within: W,
        /// Algorithm among the leaders.
        among: A,
    },
}

impl<A: fmt::Display, W: fmt::Display> fmt::Display for Choice<A, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Flat(algorithm) => write!(f, "{algorithm}"),
            Choice::ByNode { within, among } => write!(f, "{within} within nodes, {among} among"),
        }
    }
}

/// Chosen algorithm of a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// [`exchange::dissemination`] among all ranks.
    Dissemination,
    /// [`by_node::barrier`], with [`exchange::dissemination`] among the nodes' leaders.
    ByNode,
}

impl Barrier {
    /// Chooses the algorithm for this placement of ranks.
    pub fn choose(topology: &Topology) -> Barrier {
        if topology.class == TopologyClass::Grouped {
            Barrier::ByNode
        } else {
            Barrier::Dissemination
        }
    }

    /// Builds the schedule for this rank, which is [`Topology::me`].
    pub fn schedule(self, topology: &Topology) -> Schedule {
        match self {
            Barrier::Dissemination => exchange::dissemination(topology.me),
            Barrier::ByNode => {
                by_node::barrier(topology.me.rank, &topology.nodes, exchange::dissemination)
            }
        }
    }
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Barrier::Dissemination => "dissemination",
            Barrier::ByNode => "tree within nodes, dissemination among",
        })
    }
}

impl Choice<Broadcast> {
    /// Chooses the algorithm to broadcast a message of `bytes` bytes.
    pub fn broadcast(topology: &Topology, bytes: usize) -> Self {
        topology.choose(&BROADCAST, bytes)
    }

    /// Builds the schedule for this rank, [`Topology::me`], for a message of `count` elements.
    pub fn schedule(self, topology: &Topology, count: usize, root: usize) -> Schedule {
        match self {
            Choice::Flat(algorithm) => algorithm.schedule(topology.me, count, root),
            Choice::ByNode { within, among } => by_node::broadcast(
                topology.me.rank,
                &topology.nodes,
                count,
                root,
                |me, count, root| among.schedule(me, count, root),
                |me, count, root| within.schedule(me, count, root),
            ),
        }
    }
}

impl Choice<Reduce> {
    /// Chooses the algorithm to reduce all ranks' vectors of `bytes` bytes, with the result at one
    /// rank.
    pub fn reduce(topology: &Topology, bytes: usize) -> Self {
        topology.choose(&REDUCE, bytes)
    }

    /// Builds the schedule for this rank, [`Topology::me`], for vectors of `count` elements.
    pub fn schedule(
        self,
        topology: &Topology,
        count: usize,
        root: usize,
        in_place: bool,
    ) -> Schedule {
        match self {
            Choice::Flat(algorithm) => algorithm.schedule(topology.me, count, root, in_place),
            Choice::ByNode { within, among } => by_node::reduce(
                topology.me.rank,
                &topology.nodes,
                count,
                root,
                in_place,
                |me, count, root, in_place| within.schedule(me, count, root, in_place),
                |me, count, root, in_place| among.schedule(me, count, root, in_place),
            ),
        }
    }
}

/// Algorithms for the two parts of a hierarchical all-reduce that run within each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpDown {
    /// Reduction of the vectors of a node's ranks, with the result at the node's leader.
    pub up: Reduce,
    /// Broadcast of the final result from the leader to the node's other ranks.
    pub down: Broadcast,
}

impl fmt::Display for UpDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} up and {} down", self.up, self.down)
    }
}

impl Choice<AllReduce, UpDown> {
    /// Chooses the algorithm to reduce all ranks' vectors of `bytes` bytes, with the result at
    /// every rank.
    pub fn all_reduce(topology: &Topology, bytes: usize) -> Self {
        if !topology.goes_by_node(&ALL_REDUCE, bytes) {
            return Choice::Flat(topology.flat(&ALL_REDUCE, bytes));
        }
        Choice::ByNode {
            within: UpDown {
                up: topology.within(&REDUCE, bytes),
                down: topology.within(&BROADCAST, bytes),
            },
            among: topology.among(&ALL_REDUCE, bytes),
        }
    }

    /// Builds the schedule for this rank, [`Topology::me`], for vectors of `count` elements.
    pub fn schedule(self, topology: &Topology, count: usize, in_place: bool) -> Schedule {
        let (rank, nodes) = (topology.me.rank, &topology.nodes);
        match self {
            // Neighbours exchange the most data. With ranks numbered node by node, most neighbours
            // share a node.
            Choice::Flat(algorithm) => {
                by_node::in_order(rank, nodes, |me| algorithm.schedule(me, count, in_place))
            }
            Choice::ByNode { within, among } => by_node::all_reduce(
                rank,
                nodes,
                count,
                in_place,
                |me, count, root, in_place| within.up.schedule(me, count, root, in_place),
                |me, count, in_place| among.schedule(me, count, in_place),
                |me, count, root| within.down.schedule(me, count, root),
            ),
        }
    }
}

macro_rules! flat {
    ($($(#[$doc:meta])* $algorithm:ident: $table:ident;)*) => {
        $(
            impl $algorithm {
                $(#[$doc])*
                pub fn choose(topology: &Topology, bytes: usize) -> $algorithm {
                    topology.flat(&$table, bytes)
                }
            }
        )*
    };
}

flat! {
    /// Chooses the algorithm to gather one block of `bytes` bytes from each rank.
    Gather: GATHER;
    /// Chooses the algorithm to scatter one block of `bytes` bytes to each rank.
    Scatter: SCATTER;
    /// Chooses the algorithm to gather one block from each rank, with all blocks at every rank. All
    /// blocks together have `bytes` bytes.
    AllGather: ALL_GATHER;
    /// Chooses the algorithm to reduce all ranks' inputs of `bytes` bytes, with one block of the
    /// result at each rank.
    ReduceScatter: REDUCE_SCATTER;
    /// Chooses the algorithm to send one block of `bytes` bytes from each rank to each rank.
    AllToAll: ALL_TO_ALL;
}

/// Coarse kind of placement of ranks on nodes. Each row of a table lists the classes to which it
/// applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopologyClass {
    /// All ranks on one node.
    OneNode,
    /// Several nodes with one or two ranks each.
    Spread,
    /// Several nodes, some with more than two ranks.
    Grouped,
}

/// Table that selects a collective's algorithm. The first matching row applies, or `otherwise` if
/// none matches.
struct Table<A: 'static> {
    /// Maximum message size in bytes for which ranks placed as [`TopologyClass::Grouped`] use a
    /// hierarchical algorithm.
    by_node: usize,
    rows: &'static [Row<A>],
    otherwise: A,
}

/// Row of a table: classes of placements, maximum number of ranks, maximum message size in bytes,
/// and algorithm.
struct Row<A>(&'static [TopologyClass], usize, usize, A);

impl<A: Copy> Table<A> {
    fn find(&self, class: TopologyClass, ranks: usize, bytes: usize) -> A {
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
static BROADCAST: Table<Broadcast> = Table {
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
static REDUCE: Table<Reduce> = Table {
    by_node: ANY,
    rows: &[Row(ANYWHERE, 2, ANY, Reduce::Binomial), Row(ANYWHERE, ANY, 8 * KIB, Reduce::Binomial)],
    otherwise: Reduce::ScatterGather,
};

/// All-reduce algorithms, selected by the size of a rank's vector in bytes.
static ALL_REDUCE: Table<AllReduce> = Table {
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
static GATHER: Table<Gather> = Table {
    by_node: NEVER,
    rows: &[Row(ANYWHERE, 4, ANY, Gather::Linear), Row(ANYWHERE, ANY, 2 * KIB, Gather::Binomial)],
    otherwise: Gather::Linear,
};

/// Scatter algorithms, selected by the size in bytes of the block to each rank.
static SCATTER: Table<Scatter> = Table {
    by_node: NEVER,
    rows: &[Row(ANYWHERE, 4, ANY, Scatter::Linear), Row(ANYWHERE, ANY, 2 * KIB, Scatter::Binomial)],
    otherwise: Scatter::Linear,
};

/// All-gather algorithms, selected by the total size in bytes of the blocks of all ranks.
static ALL_GATHER: Table<AllGather> = Table {
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
static REDUCE_SCATTER: Table<ReduceScatter> = Table {
    by_node: NEVER,
    rows: &[
        Row(ANYWHERE, 2, ANY, ReduceScatter::Pairwise),
        Row(ANYWHERE, ANY, 512 * KIB, ReduceScatter::Halving),
    ],
    otherwise: ReduceScatter::Pairwise,
};

/// All-to-all algorithms, selected by the size in bytes of the block from each rank to each rank.
static ALL_TO_ALL: Table<AllToAll> = Table {
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
    Broadcast(count: usize, root: usize) in rooted {
        Linear => broadcast_linear, "linear";
        Binomial => broadcast_binomial, "binomial";
        ScatterRing => broadcast_scatter_ring, "scatter and ring";
    }
    /// Reduction algorithm, with the result at one rank.
    Reduce(count: usize, root: usize, in_place: bool) in rooted {
        Binomial => reduce_binomial, "binomial";
        ScatterGather => reduce_scatter_gather, "reduce-scatter and gather";
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
    Gather(count: usize, root: usize, in_place: bool) in rooted {
        Linear => gather_linear, "linear";
        Binomial => gather_binomial, "binomial";
    }
    /// Scatter algorithm.
    Scatter(count: usize, root: usize, in_place: bool) in rooted {
        Linear => scatter_linear, "linear";
        Binomial => scatter_binomial, "binomial";
    }
    /// All-gather algorithm.
    AllGather(count: usize, in_place: bool) in exchange {
        Doubling => all_gather_doubling, "recursive doubling";
        Bruck => all_gather_bruck, "Bruck";
        Ring => all_gather_ring, "ring";
    }
    /// Reduce-scatter algorithm.
    ReduceScatter(count: usize, in_place: bool) in all_reduce {
        Halving => reduce_scatter_halving, "recursive halving";
        Pairwise => reduce_scatter_pairwise, "pairwise";
    }
    /// All-to-all algorithm.
    AllToAll(count: usize, in_place: bool) in exchange {
        Pairwise => all_to_all_pairwise, "pairwise";
        Scattered => all_to_all_scattered, "scattered";
        Bruck => all_to_all_bruck, "Bruck";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(ranks_of_nodes: &[usize]) -> Topology {
        let node_of: Vec<usize> = ranks_of_nodes
            .iter()
            .enumerate()
            .flat_map(|(node, ranks)| vec![node; *ranks])
            .collect();
        Topology::new(0, &node_of)
    }

    #[test]
    fn collectives_go_by_node_where_more_than_two_ranks_share_one_of_several() {
        for (nodes, by_node) in [
            (&[8][..], false),
            (&[1, 1, 1, 1], false),
            (&[2, 2, 2], false),
            (&[3, 1], true),
            (&[4, 4, 4], true),
        ] {
            let topology = topology(nodes);
            let barrier = Barrier::choose(&topology);
            assert_eq!(barrier == Barrier::ByNode, by_node, "{nodes:?}");
            let broadcast = Choice::broadcast(&topology, 8);
            let goes = matches!(broadcast, Choice::ByNode { .. });
            assert_eq!(goes, by_node, "{nodes:?}: {broadcast}");
            let all_reduce = Choice::all_reduce(&topology, 8);
            let goes = matches!(all_reduce, Choice::ByNode { .. });
            assert_eq!(goes, by_node, "{nodes:?}: {all_reduce}");
        }
    }

    #[test]
    fn few_bytes_take_few_rounds_and_many_bytes_cross_the_network_once() {
        let spread = topology(&[1; 8]);
        let all_reduce = |bytes| Choice::all_reduce(&spread, bytes);
        assert_eq!(all_reduce(8), Choice::Flat(AllReduce::RecursiveDoubling));
        assert_eq!(all_reduce(64 << 10), Choice::Flat(AllReduce::Rabenseifner));
        assert_eq!(all_reduce(16 << 20), Choice::Flat(AllReduce::Ring));
        let broadcast = |bytes| Choice::broadcast(&spread, bytes);
        assert_eq!(broadcast(8), Choice::Flat(Broadcast::Binomial));
        assert_eq!(broadcast(16 << 20), Choice::Flat(Broadcast::ScatterRing));
        assert_eq!(AllToAll::choose(&spread, 8), AllToAll::Bruck);
        assert_eq!(AllToAll::choose(&spread, 1 << 20), AllToAll::Pairwise);
    }

    #[test]
    fn a_choice_says_what_it_is() {
        let grouped = topology(&[4, 4]);
        let choice = Choice::all_reduce(&grouped, 8);
        assert_eq!(
            choice.to_string(),
            "binomial up and binomial down within nodes, recursive doubling among"
        );
        assert_eq!(Choice::all_reduce(&grouped, 1 << 24).to_string(), "ring");
    }

    #[test]
    fn a_choice_becomes_this_ranks_part() {
        let grouped = topology(&[3, 3]);
        let choice = Choice::all_reduce(&grouped, 8);
        let schedule = choice.schedule(&grouped, 1, false);
        assert_eq!(schedule.steps.len(), 4, "{schedule:?}");
        let large = Choice::all_reduce(&grouped, 1 << 24).schedule(&grouped, 1 << 22, true);
        assert_eq!(large.steps.len(), 10, "{large:?}");
    }
}
