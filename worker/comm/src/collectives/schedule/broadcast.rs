//! Broadcast algorithms. There is no Input. Output has `count` elements at every rank; the root's
//! Output contains the message at first.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span, tree};

/// Sends the message from the root to each rank directly. Suits ranks that can all read from the
/// root's memory at the same time.
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

/// Passes the message down a binomial tree. Takes about ⌈log₂ size⌉ times as long as one message.
pub fn binomial(me: Member, count: usize, root: usize) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let all = Span::first(Buffer::Output, count);
    let relative = me.relative_to(root);
    let rank = |relative| (relative + root) % me.size;
    if let Some(parent) = tree::parent(relative.rank) {
        builder.receive(rank(parent), all);
        builder.begin_step();
    }
    for child in tree::children(relative.rank, me.size) {
        builder.send(rank(child), all);
    }
    builder.finish()
}

/// Scatters blocks of the message down a tree, then passes all blocks around a ring (van de Geijn's
/// algorithm). Each rank receives each element at most once, and sends at most twice as many
/// elements as the message has.
pub fn scatter_ring(me: Member, count: usize, root: usize) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::divide(count, me.size);
    let relative = me.relative_to(root);
    let rank = |relative| (relative + root) % me.size;
    // A rank's parent in the tree sends the rank the blocks of its whole subtree.
    let tree_run =
        |relative| blocks.run(Buffer::Output, relative, tree::subtree_size(relative, me.size));
    if let Some(parent) = tree::parent(relative.rank) {
        builder.receive(rank(parent), tree_run(relative.rank));
        builder.begin_step();
    }
    for child in tree::children(relative.rank, me.size) {
        // Children are served one after the other, so that the child with the largest subtree does
        // not wait for the rest.
        builder.send(rank(child), tree_run(child));
        builder.begin_step();
    }
    let has = |relative, block| {
        (relative..relative + tree::subtree_size(relative, me.size)).contains(&block)
    };
    let next = relative.ahead(1);
    for steps in 0..me.size - 1 {
        let (out, come) = (relative.behind(steps), relative.behind(steps + 1));
        if !has(next, out) {
            builder.send(rank(next), blocks.one(Buffer::Output, out));
        }
        if !has(relative.rank, come) {
            builder.receive(rank(relative.behind(1)), blocks.one(Buffer::Output, come));
        }
        builder.begin_step();
    }
    builder.finish()
}
