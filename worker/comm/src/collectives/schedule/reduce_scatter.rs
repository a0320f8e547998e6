//! Reduce-scatter algorithms. Input has `size` blocks of `count` elements; Output has `count`
//! elements. In place there is only Output, with all `size` blocks at first. Afterwards the result
//! is in its first `count` elements, as with `MPI_IN_PLACE`, and its other elements are undefined.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span};

/// Reduces in ⌈log₂ size⌉ rounds, each of which about halves the number of blocks that a rank still
/// has to reduce.
pub fn halving(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let front = Span::first(Buffer::Output, count);
    if !in_place {
        if me.size == 1 {
            builder.copy(Span::first(Buffer::Input, count), front);
            return builder.finish();
        }
        builder.scratch(blocks.count());
        halve(&mut builder, me, &blocks, Buffer::Input, Buffer::Scratch, front);
        return builder.finish();
    }
    let own = blocks.one(Buffer::Output, me.rank);
    let last_sent = if me.size.is_power_of_two() { me.rank ^ 1 } else { me.ahead(1) };
    let result = if last_sent == 0 { own } else { front };
    halve(&mut builder, me, &blocks, Buffer::Output, Buffer::Output, result);
    builder.copy(result, front);
    builder.finish()
}

/// Sends each block directly to the rank that reduces it. Takes `size` - 1 rounds and needs no
/// scratch memory.
pub fn pairwise(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let input = if in_place { Buffer::Output } else { Buffer::Input };
    let front = Span::first(Buffer::Output, count);
    let mut sum = blocks.one(input, me.rank);
    for steps in 1..me.size {
        let (to, from) = (me.ahead(steps), me.behind(steps));
        // The front of the buffer is block 0, which must not be overwritten before it is sent.
        let keep = in_place && (to == 0 || steps < me.size - 1);
        let result = if keep { sum } else { front };
        builder.send(to, blocks.one(input, to));
        builder.receive_reduce(from, sum, result);
        builder.begin_step();
        sum = result;
    }
    builder.copy(sum, front);
    builder.finish()
}

/// Adds a reduce-scatter to the schedule: reduces this rank's block of all ranks' `input` buffers
/// into `result`. Intermediate results of other blocks are stored at the blocks' positions in the
/// buffer `sums`, which may be `input` itself.
pub(super) fn halve(
    builder: &mut ScheduleBuilder,
    me: Member,
    blocks: &Blocks,
    input: Buffer,
    sums: Buffer,
    result: Span,
) {
    if me.size.is_power_of_two() {
        halve_pairs(builder, me, blocks, input, sums, result);
    } else {
        halve_circle(builder, me, blocks, input, sums, result);
    }
}

/// Implements [`halve`] by recursive halving, for numbers of ranks that are powers of two. In each
/// round, a rank sends its peer the half of its remaining blocks that contains the peer's block,
/// and reduces the other half.
fn halve_pairs(
    builder: &mut ScheduleBuilder,
    me: Member,
    blocks: &Blocks,
    input: Buffer,
    sums: Buffer,
    result: Span,
) {
    let mut from = input;
    let mut half = me.size / 2;
    while half > 0 {
        let peer = me.rank ^ half;
        let (mine, theirs) = (me.rank & !(half - 1), peer & !(half - 1));
        let to = if half == 1 { result } else { blocks.run(sums, mine, half) };
        builder.send(peer, blocks.run(from, theirs, half));
        builder.receive_reduce(peer, blocks.run(from, mine, half), to);
        builder.begin_step();
        from = sums;
        half /= 2;
    }
}

/// Implements [`halve`] by halving in a circle, for any number of ranks (Träff's algorithm). At the
/// start of each round, each rank still has `left` blocks: its own block and those that follow in
/// the circle of ranks. The rank sends the farther half of these blocks to the rank `half` ahead.
fn halve_circle(
    builder: &mut ScheduleBuilder,
    me: Member,
    blocks: &Blocks,
    input: Buffer,
    sums: Buffer,
    result: Span,
) {
    // Number of blocks, counted from this rank's own block, that have intermediate results in
    // `sums`. With an odd number of ranks, one more block remains without any; it is sent from
    // `input`.
    let mut reduced = 0;
    for round in 0..me.rounds() {
        let left = me.size.div_ceil(1 << round);
        let half = left.div_ceil(2);
        let (to, from) = (me.ahead(half), me.behind(half));
        let middle = reduced.clamp(half, left);
        for (first, end, buffer) in [(half, middle, sums), (middle, left, input)] {
            for span in blocks.arc(buffer, me.rank + first, end - first) {
                builder.send(to, span);
            }
            let buffer = if reduced == 0 { input } else { sums };
            let with = blocks.arc(buffer, from + first, end - first);
            let into = blocks.arc(sums, from + first, end - first);
            for (with, into) in with.into_iter().zip(into).filter(|(_, into)| into.length > 0) {
                builder.receive_reduce(from, with, if left == 2 { result } else { into });
            }
        }
        builder.begin_step();
        reduced = me.size / 2;
    }
}

/// Adds a reduce-scatter to the schedule. Each block is passed once around a ring of ranks, and
/// each rank reduces it with its own input. Takes `size` - 1 rounds. Afterwards the result of this
/// rank's block is at the block's position in `sums`.
pub(super) fn pass_around(
    builder: &mut ScheduleBuilder,
    me: Member,
    blocks: &Blocks,
    input: Buffer,
    sums: Buffer,
) {
    let (next, previous) = (me.ahead(1), me.behind(1));
    for steps in 1..me.size {
        let (out, come) = (me.behind(steps), me.behind(steps + 1));
        let from = if steps == 1 { input } else { sums };
        builder.send(next, blocks.one(from, out));
        builder.receive_reduce(previous, blocks.one(input, come), blocks.one(sums, come));
        builder.begin_step();
    }
}
