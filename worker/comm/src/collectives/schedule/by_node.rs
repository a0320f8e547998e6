//! Collectives that cross the network once for each node: within the nodes, among one leader of
//! each, and within the nodes again. The parts are flat schedules of fewer ranks.

use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span, tree};
use std::collections::HashMap;

/// Which ranks share a node.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// All ranks, node by node.
    ranks: Vec<usize>,
    /// Where in `ranks` a node's begin; one more for the end.
    starts: Vec<usize>,
    /// The node of each rank, and which of the node's ranks it is.
    positions: Vec<(usize, usize)>,
}

impl Nodes {
    /// From the node of each rank. Nodes are numbered anew, in the order of their first ranks.
    pub fn new(node_of: &[usize]) -> Nodes {
        let mut number = HashMap::new();
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut positions = Vec::with_capacity(node_of.len());
        for (rank, node) in node_of.iter().enumerate() {
            let node = *number.entry(node).or_insert(members.len());
            if node == members.len() {
                members.push(Vec::new());
            }
            positions.push((node, members[node].len()));
            members[node].push(rank);
        }
        let mut starts = vec![0];
        starts.extend(members.iter().scan(0, |end, members| {
            *end += members.len();
            Some(*end)
        }));
        Nodes { ranks: members.concat(), starts, positions }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// How many ranks the node has that has most.
    pub fn largest(&self) -> usize {
        let sizes = self.starts.windows(2).map(|ends| ends[1] - ends[0]);
        sizes.max().unwrap_or(0)
    }

    /// The rank among those of its node.
    pub fn within(&self, rank: usize) -> Member {
        Member { rank: self.positions[rank].1, size: self.of(rank).len() }
    }

    /// Its node among all nodes.
    pub fn among(&self, rank: usize) -> Member {
        Member { rank: self.positions[rank].0, size: self.count() }
    }

    /// The ranks of its node, in order.
    fn of(&self, rank: usize) -> &[usize] {
        let node = self.positions[rank].0;
        &self.ranks[self.starts[node]..self.starts[node + 1]]
    }

    /// Who speaks for a node: its first rank, or the root.
    fn leader(&self, node: usize, root: Option<usize>) -> usize {
        match root {
            Some(root) if self.positions[root].0 == node => root,
            _ => self.ranks[self.starts[node]],
        }
    }
}

/// A flat schedule whose ranks count node by node, so that neighbours share a node where they can.
/// For collectives to which the order of ranks does not matter.
pub fn in_order(rank: usize, nodes: &Nodes, flat: impl FnOnce(Member) -> Schedule) -> Schedule {
    let (node, index) = nodes.positions[rank];
    let member = Member { rank: nodes.starts[node] + index, size: nodes.size() };
    let mut builder = ScheduleBuilder::default();
    builder.append(flat(member), |rank| nodes.ranks[rank], |span| span);
    builder.finish()
}

/// The leader waits for its node, `among` is the leaders' barrier, the node waits for its leader.
pub fn barrier(rank: usize, nodes: &Nodes, among: impl FnOnce(Member) -> Schedule) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let (relative, ranks) = (nodes.within(rank), nodes.of(rank));
    let parent = tree::parent(relative.rank).map(|parent| ranks[parent]);
    for child in tree::children(relative.rank, relative.size) {
        builder.await_signal(ranks[child]);
    }
    builder.then();
    match parent {
        Some(parent) => {
            builder.signal(parent);
            builder.then();
            builder.await_signal(parent);
            builder.then();
        }
        None => {
            let leaders = among(nodes.among(rank));
            builder.append(leaders, |node| nodes.leader(node, None), |span| span);
        }
    }
    for child in tree::children(relative.rank, relative.size) {
        builder.signal(ranks[child]);
    }
    builder.finish()
}

/// [`broadcast`](super::broadcast), with a broadcast among the leaders and one within each node,
/// both functions of the member, how many elements, and the root.
pub fn broadcast(
    rank: usize,
    nodes: &Nodes,
    count: usize,
    root: usize,
    among: impl FnOnce(Member, usize, usize) -> Schedule,
    within: impl FnOnce(Member, usize, usize) -> Schedule,
) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let (relative, ranks) = (nodes.within(rank), nodes.of(rank));
    let node = nodes.among(rank);
    let leader = |node| nodes.leader(node, Some(root));
    if rank == leader(node.rank) {
        let leaders = among(node, count, nodes.among(root).rank);
        builder.append(leaders, leader, |span| span);
    }
    let first = nodes.within(leader(node.rank)).rank;
    builder.append(within(relative, count, first), |index| ranks[index], |span| span);
    builder.finish()
}

/// [`reduce`](super::reduce), with a reduction within each node and one among the leaders, both
/// functions of the member, how many elements, the root, and whether in place.
pub fn reduce(
    rank: usize,
    nodes: &Nodes,
    count: usize,
    root: usize,
    in_place: bool,
    within: impl FnOnce(Member, usize, usize, bool) -> Schedule,
    among: impl FnOnce(Member, usize, usize, bool) -> Schedule,
) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let (relative, ranks) = (nodes.within(rank), nodes.of(rank));
    let node = nodes.among(rank);
    let leader = |node| nodes.leader(node, Some(root));
    let leads = rank == leader(node.rank);
    let alone = relative.size == 1;
    // A leader that is not the root has no Output: its node's sum is in front of the scratch memory.
    let aside = leads && rank != root && !alone;
    if aside {
        builder.scratch(count);
    }
    let behind = |span: Span, front: Buffer| match span.place {
        Buffer::Scratch => Span::new(Buffer::Scratch, span.start + count, span.length),
        place if place == front => Span::new(Buffer::Scratch, span.start, span.length),
        _ => span,
    };
    if !alone {
        let first = nodes.within(leader(node.rank)).rank;
        let part = within(relative, count, first, in_place && rank == root);
        builder.append(
            part,
            |index| ranks[index],
            |span| if aside { behind(span, Buffer::Output) } else { span },
        );
    }
    if leads {
        let in_place = rank == root && (in_place || !alone);
        builder.append(among(node, count, nodes.among(root).rank, in_place), leader, |span| {
            if aside { behind(span, Buffer::Input) } else { span }
        });
    }
    builder.finish()
}

/// [`all_reduce`](super::all_reduce): a reduction within each node, an all-reduce among the leaders,
/// a broadcast within each node.
pub fn all_reduce(
    rank: usize,
    nodes: &Nodes,
    count: usize,
    in_place: bool,
    reduce: impl FnOnce(Member, usize, usize, bool) -> Schedule,
    among: impl FnOnce(Member, usize, bool) -> Schedule,
    broadcast: impl FnOnce(Member, usize, usize) -> Schedule,
) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let (relative, ranks) = (nodes.within(rank), nodes.of(rank));
    let alone = relative.size == 1;
    if !alone {
        // Those who only send do not ask what is in place.
        let output = |span: Span| match span.place {
            Buffer::Input if in_place => Span::new(Buffer::Output, span.start, span.length),
            _ => span,
        };
        builder.append(reduce(relative, count, 0, in_place), |index| ranks[index], output);
    }
    if relative.rank == 0 {
        let leaders = among(nodes.among(rank), count, in_place || !alone);
        builder.append(leaders, |node| nodes.leader(node, None), |span| span);
    }
    builder.append(broadcast(relative, count, 0), |index| ranks[index], |span| span);
    builder.finish()
}
