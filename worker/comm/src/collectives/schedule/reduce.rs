//! Reduction algorithms with the result at the root. Input has `count` elements. Output exists only
//! at the root, and also has `count` elements. Only the root can work in place: its Output then
//! contains its input at first, and the root has no Input.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span, reduce_scatter, tree};

/// Reduces vectors up a binomial tree, in ⌈log₂ size⌉ rounds. Every message is a whole vector of
/// `count` elements.
pub fn binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let relative = me.relative_to(root);
    let rank = |relative| (relative + root) % me.size;
    let (input, result) = buffers(me, root, in_place);
    let (input, result) = (Span::first(input, count), Span::first(result, count));
    let mut sum = input;
    // The child with the smallest subtree is ready first.
    for child in tree::children(relative.rank, me.size).rev() {
        builder.receive_reduce(rank(child), sum, result);
        builder.begin_step();
        sum = result;
    }
    match tree::parent(relative.rank) {
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
pub fn scatter_gather(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let (input, result) = buffers(me, root, in_place);
    if me.size == 1 {
        builder.copy(Span::first(input, count), Span::first(result, count));
        return builder.finish();
    }
    if me.rank != root {
        builder.scratch(count);
    }
    let blocks = Blocks::divide(count, me.size);
    let own = blocks.one(result, me.rank);
    reduce_scatter::halve(&mut builder, me, &blocks, input, result, own);
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
fn buffers(me: Member, root: usize, in_place: bool) -> (Buffer, Buffer) {
    match (me.rank == root, in_place) {
        (true, true) => (Buffer::Output, Buffer::Output),
        (true, false) => (Buffer::Input, Buffer::Output),
        (false, _) => (Buffer::Input, Buffer::Scratch),
    }
}
