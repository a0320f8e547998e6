//! Hierarchical algorithms: only one rank of each node, its leader, exchanges messages with other
//! nodes.
//!
//! Each algorithm is composed of flat schedules, which ignore nodes: a flat schedule among the
//! leaders, and flat schedules within each node before it, after it, or both. The exception is
//! [`in_order`], which only renumbers the ranks of one flat schedule.

use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span, builder};
use std::collections::HashMap;

/// Grouping of ranks into nodes.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// All ranks, node by node, in ascending order within a node.
    ranks: Vec<usize>,
    /// Index in `ranks` of each node's first rank, and at the end the number of ranks.
    starts: Vec<usize>,
    /// For each rank, the number of its node, and the rank's position among the ranks of that node.
    positions: Vec<(usize, usize)>,
}

impl Nodes {
    /// Groups ranks by node. `node_of[rank]` identifies the rank's node by any number; nodes are
    /// renumbered from 0 in the order of their first ranks.
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

    /// Returns the number of ranks on the node that has the most ranks.
    pub fn largest(&self) -> usize {
        let sizes = self.starts.windows(2).map(|ends| ends[1] - ends[0]);
        sizes.max().unwrap_or(0)
    }

    /// Returns a rank's position among the ranks of its node, and the number of ranks on that node.
    pub fn within(&self, rank: usize) -> Member {
        Member { rank: self.positions[rank].1, size: self.ranks_on_node(rank).len() }
    }

    /// Returns the number of a rank's node, and the number of nodes: the node's leader as a member
    /// of the group of all leaders.
    pub fn among(&self, rank: usize) -> Member {
        Member { rank: self.positions[rank].0, size: self.count() }
    }

    /// Returns the ranks on the node of `rank`, including `rank`, in ascending order.
    fn ranks_on_node(&self, rank: usize) -> &[usize] {
        let node = self.positions[rank].0;
        &self.ranks[self.starts[node]..self.starts[node + 1]]
    }

    /// Returns the leader of a node: `root` if the root is on the node, or else the node's first
    /// rank.
    fn leader(&self, node: usize, root: Option<usize>) -> usize {
        match root {
            Some(root) if self.positions[root].0 == node => root,
            _ => self.ranks[self.starts[node]],
        }
    }
}

/// Builds a flat schedule with the ranks renumbered node by node, so that most neighbours share a
/// node. `flat` builds the schedule of a renumbered rank. Suits collectives whose result does not
/// depend on the order of ranks.
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
    let parent = builder::tree_parent(position.rank).map(|parent| ranks[parent]);
    for child in builder::tree_children(position.rank, position.size) {
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
    for child in builder::tree_children(position.rank, position.size) {
        builder.signal(ranks[child]);
    }
    builder.finish()
}

/// Builds a broadcast among the leaders, followed by a broadcast within each node.
///
/// `among` builds the flat schedule among the leaders, and `within` the flat schedule among the
/// ranks of a node. Their arguments are this rank as a member of that group, the number of
/// elements, and the root's number in that group.
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

/// Builds a reduction within each node, followed by a reduction among the leaders.
///
/// `within` builds the flat schedule among the ranks of a node, and `among` the flat schedule among
/// the leaders. Their arguments are this rank as a member of that group, the number of elements,
/// the root's number in that group, and whether this rank works in place.
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
    // A leader other than the root has no Output, so the result of its node is stored at the start
    // of its scratch buffer.
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
/// each node.
///
/// `reduce`, `among` and `broadcast` build the flat schedules of these three parts. Their arguments
/// are this rank as a member of the group (the node's ranks, or the leaders), the number of
/// elements, the root's number in the group (except for `among`), and whether this rank works in
/// place (except for `broadcast`).
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
        // `reduce` ignores `in_place` for ranks other than its root and returns spans of Input. If
        // such a rank works in place, its input is in Output, so these spans are translated.
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
