//! What the root has, to everyone. Output: `count` elements, at the root what is sent.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span, tree};

/// The root sends to each by itself: right where they can all fetch at the same time.
pub fn linear(me: Member, count: usize, root: usize) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let all = Span::first(Buffer::Output, count);
    if me.rank == root {
        for steps in 1..me.size {
            builder.send(me.ahead(steps), all);
        }
    } else {
        builder.receive(root, all);
    }
    builder.finish()
}

/// Whoever has it passes it on. ⌈log₂ size⌉ times the time of a message.
pub fn binomial(me: Member, count: usize, root: usize) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let all = Span::first(Buffer::Output, count);
    let seat = me.seat(root);
    let rank = |seat| (seat + root) % me.size;
    if let Some(parent) = tree::parent(seat.rank) {
        builder.receive(rank(parent), all);
        builder.then();
    }
    for child in tree::children(seat.rank, me.size) {
        builder.send(rank(child), all);
    }
    builder.finish()
}

/// Everyone gets a block, by a tree, then all blocks go around (van de Geijn). Each element is
/// received once by each, and sent little more than once by anyone.
pub fn scatter_ring(me: Member, count: usize, root: usize) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::divide(count, me.size);
    let seat = me.seat(root);
    let rank = |seat| (seat + root) % me.size;
    // What comes by the tree: seat's own block and those of the seats below.
    let tree_run = |seat| blocks.run(Buffer::Output, seat, tree::breadth(seat, me.size));
    if let Some(parent) = tree::parent(seat.rank) {
        builder.receive(rank(parent), tree_run(seat.rank));
        builder.then();
    }
    for child in tree::children(seat.rank, me.size) {
        // One after the other: who has most to pass on is not to wait for the rest.
        builder.send(rank(child), tree_run(child));
        builder.then();
    }
    let has = |seat, block| (seat..seat + tree::breadth(seat, me.size)).contains(&block);
    let next = seat.ahead(1);
    for steps in 0..me.size - 1 {
        let (out, come) = (seat.behind(steps), seat.behind(steps + 1));
        if !has(next, out) {
            builder.send(rank(next), blocks.one(Buffer::Output, out));
        }
        if !has(seat.rank, come) {
            builder.receive(rank(seat.behind(1)), blocks.one(Buffer::Output, come));
        }
        builder.then();
    }
    builder.finish()
}
