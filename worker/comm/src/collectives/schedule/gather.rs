//! Gather algorithms. Input has `count` elements. Output exists only at the root, with `size`
//! blocks of this length. Only the root works in place, with its own block already in its Output.

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

/// Returns the spans in which the blocks of a subtree travel between its top rank and that rank's
/// parent. `buffer` is that of the top rank. The second span is empty, unless the parent is the
/// root and the blocks wrap around the end of the root's buffer.
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
