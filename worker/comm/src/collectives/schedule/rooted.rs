//! Broadcast algorithms. There is no Input. Output has `count` elements at every rank; the root's
//! Output contains the message at first.
//!
//! Gather algorithms. Input has `count` elements. Output exists only at the root, with `size`
//! blocks of `count` elements. Only the root can work in place: its own block is then already at
//! its position in Output, and the root has no Input.
//!
//! Scatter algorithms. Input exists only at the root, with `size` blocks of `count` elements.
//! Output has `count` elements. Only the root can work in place: its own block then stays in its
//! Input, and the root has no Output.
//!
//! Reduction algorithms with the result at the root. Input has `count` elements. Output exists only
//! at the root, and also has `count` elements. Only the root can work in place: its Output then
//! contains its input at first, and the root has no Input.

use super::builder::{self, Blocks, ScheduleBuilder};
use super::exchange::copy_own;
use super::{Buffer, Member, Schedule, Span, all_reduce};

/// Sends the message from the root to each rank directly. Suits ranks that can all read from the
/// root's memory at the same time.
pub fn broadcast_linear(me: Member, count: usize, root: usize) -> Schedule {
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
pub fn broadcast_binomial(me: Member, count: usize, root: usize) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let all = Span::first(Buffer::Output, count);
    let relative = me.relative_to(root);
    let rank = |relative| (relative + root) % me.size;
    if let Some(parent) = builder::tree_parent(relative.rank) {
        builder.receive(rank(parent), all);
        builder.begin_step();
    }
    for child in builder::tree_children(relative.rank, me.size) {
        builder.send(rank(child), all);
    }
    builder.finish()
}

/// Scatters blocks of the message down a tree, then passes all blocks around a ring (van de Geijn's
/// algorithm). Each rank receives each element at most once, and sends at most twice as many
/// elements as the message has.
pub fn broadcast_scatter_ring(me: Member, count: usize, root: usize) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::divide(count, me.size);
    let relative = me.relative_to(root);
    let rank = |relative| (relative + root) % me.size;
    // A rank's parent in the tree sends the rank the blocks of its whole subtree.
    let tree_run =
        |relative| blocks.run(Buffer::Output, relative, builder::subtree_size(relative, me.size));
    if let Some(parent) = builder::tree_parent(relative.rank) {
        builder.receive(rank(parent), tree_run(relative.rank));
        builder.begin_step();
    }
    for child in builder::tree_children(relative.rank, me.size) {
        // Children are served one after the other, so that the child with the largest subtree does
        // not wait for the rest.
        builder.send(rank(child), tree_run(child));
        builder.begin_step();
    }
    let has = |relative, block| {
        (relative..relative + builder::subtree_size(relative, me.size)).contains(&block)
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

/// Sends each rank's block to the root directly.
pub fn gather_linear(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
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
pub fn gather_binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let relative = me.relative_to(root).rank;
    let rank = |relative| (relative + root) % me.size;
    let subtree_size = |relative| builder::subtree_size(relative, me.size);
    let Some(parent) = builder::tree_parent(relative) else {
        copy_own(&mut builder, me, &blocks, in_place);
        for child in builder::tree_children(relative, me.size).rev() {
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
        for child in builder::tree_children(relative, me.size).rev() {
            let span = blocks.run(collected, child - relative, subtree_size(child));
            builder.receive(rank(child), span);
        }
        builder.begin_step();
    }
    for span in gather_pieces(&blocks, collected, relative, subtree_size(relative), root) {
        builder.send(rank(parent), span);
    }
    builder.finish()
}

/// Splits a subtree's blocks into the one or two messages that its top rank exchanges with the top
/// rank's parent. `buffer` is the top rank's buffer with these blocks, and `relative` is the top
/// rank's number relative to the root. Two messages are needed only if the parent is the root and
/// the blocks wrap around the end of the root's buffer; otherwise the second span is empty.
pub(super) fn gather_pieces(
    blocks: &Blocks,
    buffer: Buffer,
    relative: usize,
    subtree_size: usize,
    root: usize,
) -> [Span; 2] {
    let whole = blocks.run(buffer, 0, subtree_size);
    let to_root = builder::tree_parent(relative) == Some(0);
    let ahead = if to_root {
        blocks.arc(buffer, relative + root, subtree_size)[0].length
    } else {
        whole.length
    };
    [Span::first(buffer, ahead), Span::new(buffer, ahead, whole.length - ahead)]
}

/// Sends each rank's block from the root to the rank directly.
pub fn scatter_linear(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
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
pub fn scatter_binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let own = Span::first(Buffer::Output, count);
    let relative = me.relative_to(root).rank;
    let rank = |relative| (relative + root) % me.size;
    let subtree_size = |relative| builder::subtree_size(relative, me.size);
    let Some(parent) = builder::tree_parent(relative) else {
        if !in_place {
            builder.copy(blocks.one(Buffer::Input, me.rank), own);
        }
        for child in builder::tree_children(relative, me.size) {
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
    for span in gather_pieces(&blocks, passed, relative, subtree_size(relative), root) {
        builder.receive(rank(parent), span);
    }
    builder.copy(Span::first(passed, count), own);
    for child in builder::tree_children(relative, me.size) {
        builder.send(rank(child), blocks.run(passed, child - relative, subtree_size(child)));
    }
    builder.finish()
}

/// Reduces vectors up a binomial tree, in ⌈log₂ size⌉ rounds. Every message is a whole vector of
/// `count` elements.
pub fn reduce_binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let relative = me.relative_to(root);
    let rank = |relative| (relative + root) % me.size;
    let (input, result) = reduce_buffers(me, root, in_place);
    let (input, result) = (Span::first(input, count), Span::first(result, count));
    let mut sum = input;
    // The child with the smallest subtree is ready first.
    for child in builder::tree_children(relative.rank, me.size).rev() {
        builder.receive_reduce(rank(child), sum, result);
        builder.begin_step();
        sum = result;
    }
    match builder::tree_parent(relative.rank) {
        Some(parent) => {
            if sum.buffer == Buffer::Scratch {
                builder.scratch(count);
            }
            builder.send(rank(parent), sum);
        }
        None => builder.copy(sum, result),
    }
    builder.finish()
}

/// Divides the vectors into one block for each rank: each rank reduces its block of all vectors,
/// and then the reduced blocks are gathered at the root. Each rank sends about `count` elements,
/// and all ranks share the work of reducing evenly.
pub fn reduce_scatter_gather(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let (input, result) = reduce_buffers(me, root, in_place);
    if me.size == 1 {
        builder.copy(Span::first(input, count), Span::first(result, count));
        return builder.finish();
    }
    if me.rank != root {
        builder.scratch(count);
    }
    let blocks = Blocks::divide(count, me.size);
    let own = blocks.one(result, me.rank);
    all_reduce::halve(&mut builder, me, &blocks, input, result, own);
    builder.begin_step();
    if me.rank == root {
        for from in (1..me.size).map(|steps| me.ahead(steps)) {
            builder.receive(from, blocks.one(result, from));
        }
    } else {
        builder.send(root, own);
    }
    builder.finish()
}

/// Returns the buffer with this rank's input, and the buffer for its partial result.
fn reduce_buffers(me: Member, root: usize, in_place: bool) -> (Buffer, Buffer) {
    match (me.rank == root, in_place) {
        (true, true) => (Buffer::Output, Buffer::Output),
        (true, false) => (Buffer::Input, Buffer::Output),
        (false, _) => (Buffer::Input, Buffer::Scratch),
    }
}
