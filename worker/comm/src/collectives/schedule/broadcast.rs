//! What the root has, to everyone. Output: `count` elements, at the root what is sent.

use super::blocks::Blocks;
use super::plan::Plan;
use super::{Member, Place, Schedule, Span, tree};

/// The root sends to each by itself: right where they can all fetch at the same time.
pub fn linear(me: Member, count: usize, root: usize) -> Schedule {
    let mut plan = Plan::default();
    let all = Span::first(Place::Output, count);
    if me.rank == root {
        for steps in 1..me.size {
            plan.send(me.ahead(steps), all);
        }
    } else {
        plan.receive(root, all);
    }
    plan.finish()
}

/// Whoever has it passes it on. ⌈log₂ size⌉ times the time of a message.
pub fn binomial(me: Member, count: usize, root: usize) -> Schedule {
    let mut plan = Plan::default();
    let all = Span::first(Place::Output, count);
    let seat = me.seat(root);
    let rank = |seat| (seat + root) % me.size;
    if let Some(parent) = tree::parent(seat.rank) {
        plan.receive(rank(parent), all);
        plan.then();
    }
    for child in tree::children(seat.rank, me.size) {
        plan.send(rank(child), all);
    }
    plan.finish()
}

/// Everyone gets a block, by a tree, then all blocks go around (van de Geijn). Each element is
/// received once by each, and sent little more than once by anyone.
pub fn scatter_ring(me: Member, count: usize, root: usize) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::divide(count, me.size);
    let seat = me.seat(root);
    let rank = |seat| (seat + root) % me.size;
    // What comes by the tree: seat's own block and those of the seats below.
    let tree_run = |seat| blocks.run(Place::Output, seat, tree::breadth(seat, me.size));
    if let Some(parent) = tree::parent(seat.rank) {
        plan.receive(rank(parent), tree_run(seat.rank));
        plan.then();
    }
    for child in tree::children(seat.rank, me.size) {
        // One after the other: who has most to pass on is not to wait for the rest.
        plan.send(rank(child), tree_run(child));
        plan.then();
    }
    let has = |seat, block| (seat..seat + tree::breadth(seat, me.size)).contains(&block);
    let next = seat.ahead(1);
    for steps in 0..me.size - 1 {
        let (out, come) = (seat.behind(steps), seat.behind(steps + 1));
        if !has(next, out) {
            plan.send(rank(next), blocks.one(Place::Output, out));
        }
        if !has(seat.rank, come) {
            plan.receive(rank(seat.behind(1)), blocks.one(Place::Output, come));
        }
        plan.then();
    }
    plan.finish()
}
