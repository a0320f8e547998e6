//! Hierarchical algorithms: only one rank of each node, the leader, exchanges messages with other
//! nodes. Each algorithm consists of flat schedules, which ignore nodes: one within each node
//! before the schedule among the leaders, or after it, or both.

use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span, tree};
use std::collections::HashMap;

/// Grouping of ranks into nodes.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// Ranks, grouped by node.
    ranks: Vec<usize>,
    /// Index in `ranks` of each node's first rank, and at the end the number of ranks.
    starts: Vec<usize>,
    /// For each rank, the index of its node, and the index of the rank among those of the node.
    positions: Vec<(usize, usize)>,
}

impl Nodes {
    /// Groups ranks by node; `node_of` has the node of each rank. Nodes are renumbered in the order
    /// of their first ranks.
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

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the number of ranks on the largest node.
    pub fn largest(&self) -> usize {
        let sizes = self.starts.windows(2).map(|ends| ends[1] - ends[0]);
        sizes.max().unwrap_or(0)
    }

    /// Returns a rank's position among the ranks of its node, and the number of these ranks.
    pub fn within(&self, rank: usize) -> Member {
        Member { rank: self.positions[rank].1, size: self.ranks_on_node(rank).len() }
    }

    /// Returns the index of a rank's node, and the number of nodes.
    pub fn among(&self, rank: usize) -> Member {
        Member { rank: self.positions[rank].0, size: self.count() }
    }

    /// Returns the ranks on the node of `rank`, itself included, in ascending order.
    fn ranks_on_node(&self, rank: usize) -> &[usize] {
        let node = self.positions[rank].0;
        &self.ranks[self.starts[node]..self.starts[node + 1]]
    }

    /// Returns the leader of a node: `root` if it is on the node, or else the node's first rank.
    fn leader(&self, node: usize, root: Option<usize>) -> usize {
        match root {
            Some(root) if self.positions[root].0 == node => root,
            _ => self.ranks[self.starts[node]],
        }
    }
}

/// Builds the schedule that `flat` returns when ranks are numbered node by node, so that most
/// neighbours share a node. Suits collectives whose result does not depend on the order of ranks.
pub fn in_order(rank: usize, nodes: &Nodes, flat: impl FnOnce(Member) -> Schedule) -> Schedule {
    let (node, index) = nodes.positions[rank];
    let member = Member { rank: nodes.starts[node] + index, size: nodes.size() };
    let mut builder = ScheduleBuilder::default();
    builder.append(flat(member), |rank| nodes.ranks[rank], |span| span);
    builder.finish()
}

/// Builds a barrier: each leader waits for the ranks of its node, `among` synchronises the leaders,
/// and the ranks of each node wait for their leader.
pub fn barrier(rank: usize, nodes: &Nodes, among: impl FnOnce(Member) -> Schedule) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let (position, ranks) = (nodes.within(rank), nodes.ranks_on_node(rank));
    let parent = tree::parent(position.rank).map(|parent| ranks[parent]);
    for child in tree::children(position.rank, position.size) {
        builder.await_signal(ranks[child]);
    }
    builder.begin_step();
    match parent {
        Some(parent) => {
            builder.signal(parent);
            builder.begin_step();
            builder.await_signal(parent);
            builder.begin_step();
        }
        None => {
            let leaders = among(nodes.among(rank));
            builder.append(leaders, |node| nodes.leader(node, None), |span| span);
        }
    }
    for child in tree::children(position.rank, position.size) {
        builder.signal(ranks[child]);
    }
    builder.finish()
}

/// Builds a broadcast among the leaders followed by a broadcast within each node. `among` and
/// `within` take the member, the number of elements and the root.
pub fn broadcast(
    rank: usize,
    nodes: &Nodes,
    count: usize,
    root: usize,
    among: impl FnOnce(Member, usize, usize) -> Schedule,
    within: impl FnOnce(Member, usize, usize) -> Schedule,
) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let (position, ranks) = (nodes.within(rank), nodes.ranks_on_node(rank));
    let node = nodes.among(rank);
    let leader = |node| nodes.leader(node, Some(root));
    if rank == leader(node.rank) {
        let leaders = among(node, count, nodes.among(root).rank);
        builder.append(leaders, leader, |span| span);
    }
    let first = nodes.within(leader(node.rank)).rank;
    builder.append(within(position, count, first), |index| ranks[index], |span| span);
    builder.finish()
}

/// Builds a reduction within each node followed by a reduction among the leaders. `within` and
/// `among` take the member, the number of elements, the root, and whether the member works in
/// place.
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
    let (position, ranks) = (nodes.within(rank), nodes.ranks_on_node(rank));
    let node = nodes.among(rank);
    let leader = |node| nodes.leader(node, Some(root));
    let is_leader = rank == leader(node.rank);
    let is_alone = position.size == 1;
    // A leader other than the root has no Output, so its node's result is at the start of the
    // scratch buffer.
    let in_scratch = is_leader && rank != root && !is_alone;
    if in_scratch {
        builder.scratch(count);
    }
    let shifted = |span: Span, front: Buffer| match span.buffer {
        Buffer::Scratch => Span::new(Buffer::Scratch, span.start + count, span.length),
        buffer if buffer == front => Span::new(Buffer::Scratch, span.start, span.length),
        _ => span,
    };
    if !is_alone {
        let first = nodes.within(leader(node.rank)).rank;
        let part = within(position, count, first, in_place && rank == root);
        builder.append(
            part,
            |index| ranks[index],
            |span| if in_scratch { shifted(span, Buffer::Output) } else { span },
        );
    }
    if is_leader {
        let in_place = rank == root && (in_place || !is_alone);
        builder.append(among(node, count, nodes.among(root).rank, in_place), leader, |span| {
            if in_scratch { shifted(span, Buffer::Input) } else { span }
        });
    }
    builder.finish()
}

/// Builds a reduction within each node, an all-reduce among the leaders, and a broadcast within
/// each node. `reduce` takes the member, the number of elements, the root, and whether the member
/// works in place; `among` takes the same without the root; `broadcast` takes the first three.
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
    let (position, ranks) = (nodes.within(rank), nodes.ranks_on_node(rank));
    let is_alone = position.size == 1;
    if !is_alone {
        // For a rank that only sends, `reduce` builds the same schedule whether or not the rank
        // works in place, so spans of its Input are translated here.
        let output = |span: Span| match span.buffer {
            Buffer::Input if in_place => Span::new(Buffer::Output, span.start, span.length),
            _ => span,
        };
        builder.append(reduce(position, count, 0, in_place), |index| ranks[index], output);
    }
    if position.rank == 0 {
        let leaders = among(nodes.among(rank), count, in_place || !is_alone);
        builder.append(leaders, |node| nodes.leader(node, None), |span| span);
    }
    builder.append(broadcast(position, count, 0), |index| ranks[index], |span| span);
    builder.finish()
}
