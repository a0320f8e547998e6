//! Scatter algorithms. Input exists only at the root, with `size` blocks of `count` elements.
//! Output has `count` elements. Only the root can work in place: its own block then stays in its
//! Input, and the root has no Output.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::gather::pieces;
use super::{Buffer, Member, Schedule, Span, tree};

/// Sends each rank's block from the root to the rank directly.
pub fn linear(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let own = Span::first(Buffer::Output, count);
    if me.rank == root {
        let blocks = Blocks::equal(count, me.size);
        if !in_place {
            builder.copy(blocks.one(Buffer::Input, me.rank), own);
        }
        for to in (1..me.size).map(|steps| me.ahead(steps)) {
            builder.send(to, blocks.one(Buffer::Input, to));
        }
    } else {
        builder.receive(root, own);
    }
    builder.finish()
}

/// Distributes blocks down a binomial tree, so that the root sends to only ⌈log₂ size⌉ ranks.
pub fn binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let own = Span::first(Buffer::Output, count);
    let relative = me.relative_to(root).rank;
    let rank = |relative| (relative + root) % me.size;
    let subtree_size = |relative| tree::subtree_size(relative, me.size);
    let Some(parent) = tree::parent(relative) else {
        if !in_place {
            builder.copy(blocks.one(Buffer::Input, me.rank), own);
        }
        for child in tree::children(relative, me.size) {
            for span in blocks.arc(Buffer::Input, rank(child), subtree_size(child)) {
                builder.send(rank(child), span);
            }
        }
        return builder.finish();
    };
    if subtree_size(relative) == 1 {
        builder.receive(rank(parent), own);
        return builder.finish();
    }
    let passed = builder.scratch(count * subtree_size(relative)).buffer;
    for span in pieces(&blocks, passed, relative, subtree_size(relative), root) {
        builder.receive(rank(parent), span);
    }
    builder.copy(Span::first(passed, count), own);
    for child in tree::children(relative, me.size) {
        builder.send(rank(child), blocks.run(passed, child - relative, subtree_size(child)));
    }
    builder.finish()
}
