//! Gather algorithms. Input has `count` elements. Output exists only at the root, with `size`
//! blocks of `count` elements. Only the root can work in place: its own block is then already at
//! its position in Output, and the root has no Input.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span, tree};

/// Sends each rank's block to the root directly.
pub fn linear(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    if me.rank == root {
        let blocks = Blocks::equal(count, me.size);
        copy_own(&mut builder, me, &blocks, in_place);
        for from in (1..me.size).map(|steps| me.ahead(steps)) {
            builder.receive(from, blocks.one(Buffer::Output, from));
        }
    } else {
        builder.send(root, Span::first(Buffer::Input, count));
    }
    builder.finish()
}

/// Collects blocks up a binomial tree, so that the root receives from only ⌈log₂ size⌉ ranks.
pub fn binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let relative = me.relative_to(root).rank;
    let rank = |relative| (relative + root) % me.size;
    let subtree_size = |relative| tree::subtree_size(relative, me.size);
    let Some(parent) = tree::parent(relative) else {
        copy_own(&mut builder, me, &blocks, in_place);
        for child in tree::children(relative, me.size).rev() {
            for span in blocks.arc(Buffer::Output, rank(child), subtree_size(child)) {
                builder.receive(rank(child), span);
            }
        }
        return builder.finish();
    };
    let mut collected = Buffer::Input;
    if subtree_size(relative) > 1 {
        collected = builder.scratch(count * subtree_size(relative)).buffer;
        builder.copy(Span::first(Buffer::Input, count), Span::first(collected, count));
        for child in tree::children(relative, me.size).rev() {
            let span = blocks.run(collected, child - relative, subtree_size(child));
            builder.receive(rank(child), span);
        }
        builder.begin_step();
    }
    for span in pieces(&blocks, collected, relative, subtree_size(relative), root) {
        builder.send(rank(parent), span);
    }
    builder.finish()
}

/// Splits a subtree's blocks into the one or two messages that its top rank exchanges with the top
/// rank's parent. `buffer` is the top rank's buffer with these blocks, and `relative` is the top
/// rank's number relative to the root. Two messages are needed only if the parent is the root and
/// the blocks wrap around the end of the root's buffer; otherwise the second span is empty.
pub(super) fn pieces(
    blocks: &Blocks,
    buffer: Buffer,
    relative: usize,
    subtree_size: usize,
    root: usize,
) -> [Span; 2] {
    let whole = blocks.run(buffer, 0, subtree_size);
    let to_root = tree::parent(relative) == Some(0);
    let ahead = if to_root {
        blocks.arc(buffer, relative + root, subtree_size)[0].length
    } else {
        whole.length
    };
    [Span::first(buffer, ahead), Span::new(buffer, ahead, whole.length - ahead)]
}

fn copy_own(builder: &mut ScheduleBuilder, me: Member, blocks: &Blocks, in_place: bool) {
    if !in_place {
        let own = blocks.one(Buffer::Output, me.rank);
        builder.copy(Span::first(Buffer::Input, own.length), own);
    }
}
