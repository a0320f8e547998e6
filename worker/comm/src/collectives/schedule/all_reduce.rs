//! Reduction algorithms with the result at all ranks. Input and Output have `count` elements each.
//! In place there is no Input; Output contains the rank's input at first.
//!
//! Reduce-scatter algorithms. Input has `size` blocks of `count` elements; Output has `count`
//! elements. In place there is only Output, with all `size` blocks at first. Afterwards the result
//! is in its first `count` elements, as with `MPI_IN_PLACE`, and its other elements are undefined.

use super::builder::{Blocks, ScheduleBuilder};
use super::{Buffer, Member, Schedule, Span, exchange};

/// Sends every input to every rank, and reduces all inputs at each rank, in rank order. Takes one
/// round; suits few ranks and few bytes.
pub fn direct(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let own = Span::first(input(in_place), count);
    let result = Span::first(Buffer::Output, count);
    if me.size == 1 {
        builder.copy(own, result);
        return builder.finish();
    }
    let blocks = Blocks::equal(count, me.size);
    builder.scratch(blocks.count());
    for steps in 1..me.size {
        builder.send(me.ahead(steps), own);
    }
    for steps in 1..me.size {
        let from = me.behind(steps);
        builder.receive(from, blocks.one(Buffer::Scratch, from));
    }
    reduce_in_order(&mut builder, me, &blocks, own, result);
    builder.finish()
}

/// Reduces one block of each rank into `result`, in rank order. This rank's block is `own`; the
/// other ranks' blocks are in the scratch buffer.
fn reduce_in_order(
    builder: &mut ScheduleBuilder,
    me: Member,
    blocks: &Blocks,
    own: Span,
    result: Span,
) {
    let of = |rank| {
        if rank == me.rank { own } else { blocks.one(Buffer::Scratch, rank) }
    };
    // This rank's own block of the scratch buffer is unused, so it holds intermediate results.
    let spare = blocks.one(Buffer::Scratch, me.rank);
    let mut sum = of(0);
    for rank in 1..me.size {
        let into = if rank == me.size - 1 { result } else { spare };
        let (from, with) = if sum == into { (of(rank), sum) } else { (sum, of(rank)) };
        builder.reduce(from, with, into);
        sum = into;
    }
}

/// Divides the vectors into one block for each rank: each rank reduces its block of all vectors,
/// and then sends the result to all ranks. In each of the two rounds, every rank sends to every
/// other rank at the same time. Suits few ranks, and blocks short enough to be sent eagerly,
/// without an answer from the receiver.
pub fn scattered(me: Member, count: usize, in_place: bool) -> Schedule {
    in_blocks(me, count, in_place, |builder, blocks| {
        let input = input(in_place);
        let mine = blocks.one(Buffer::Output, me.rank);
        let inputs = Blocks::equal(mine.length, me.size);
        builder.scratch(inputs.count());
        for steps in 1..me.size {
            builder.send(me.ahead(steps), blocks.one(input, me.ahead(steps)));
        }
        for steps in 1..me.size {
            builder.receive(me.behind(steps), inputs.one(Buffer::Scratch, me.behind(steps)));
        }
        // Begin the second round explicitly: reducing an empty block adds no operation and would
        // not begin it.
        builder.begin_step();
        reduce_in_order(builder, me, &inputs, blocks.one(input, me.rank), mine);
        for steps in 1..me.size {
            builder.send(me.ahead(steps), mine);
        }
        for steps in 1..me.size {
            builder.receive(me.behind(steps), blocks.one(Buffer::Output, me.behind(steps)));
        }
    })
}

/// Exchanges the whole partial result with another rank in each of ⌊log₂ size⌋ rounds. If `size` is
/// not a power of two, there are two more rounds, and some ranks take part in these two only: they
/// send their input to a neighbour in the first round, and receive the result in the last.
pub fn recursive_doubling(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let own = Span::first(input(in_place), count);
    let result = Span::first(Buffer::Output, count);
    if me.size == 1 {
        builder.copy(own, result);
        return builder.finish();
    }
    let rounds = me.size.ilog2();
    let paired = 2 * (me.size - (1 << rounds));
    if me.rank < paired && me.rank % 2 == 1 {
        builder.send(me.rank - 1, own);
        builder.begin_step();
        builder.receive(me.rank - 1, result);
        return builder.finish();
    }
    // A span must not be written while it is sent, so rounds alternate between two buffers, and the
    // last round writes the output.
    let scratch = Span::first(Buffer::Scratch, count);
    let written_before = |left: u32| if left.is_multiple_of(2) { result } else { scratch };
    if rounds > 1 || in_place || me.rank < paired {
        builder.scratch(count);
    }
    let mut sum = own;
    if me.rank < paired {
        sum = written_before(rounds);
        builder.receive_reduce(me.rank + 1, own, sum);
        builder.begin_step();
    } else if in_place && rounds % 2 == 1 {
        sum = scratch;
        builder.copy(own, sum);
    }
    // The ranks that take part in the rounds are renumbered; those that represent a neighbour come
    // first.
    let representative = if me.rank < paired { me.rank / 2 } else { me.rank - paired / 2 };
    for round in 0..rounds {
        let peer = representative ^ 1 << round;
        let peer = if peer < paired / 2 { peer * 2 } else { peer + paired / 2 };
        let into = written_before(rounds - 1 - round);
        builder.send(peer, sum);
        builder.receive_reduce(peer, sum, into);
        builder.begin_step();
        sum = into;
    }
    if me.rank < paired {
        builder.send(me.rank + 1, result);
    }
    builder.finish()
}

/// Divides the vectors into one block for each rank: each rank reduces its block of all vectors,
/// and then the reduced blocks are gathered at all ranks. Each of these two parts takes ⌈log₂ size⌉
/// rounds.
pub fn rabenseifner(me: Member, count: usize, in_place: bool) -> Schedule {
    in_blocks(me, count, in_place, |builder, blocks| {
        let own = blocks.one(Buffer::Output, me.rank);
        halve(builder, me, blocks, input(in_place), Buffer::Output, own);
        exchange::double(builder, me, blocks);
    })
}

/// Works like [`rabenseifner`], but divides each block into two pieces, so that the result of the
/// first piece is sent while the second piece is reduced. Only for one or two ranks. Suits pieces
/// short enough to be sent eagerly, without an answer from the receiver.
pub fn pieces(me: Member, count: usize, in_place: bool) -> Schedule {
    const PIECES: usize = 2;
    debug_assert!(me.size <= 2, "{me:?}");
    let mut builder = ScheduleBuilder::default();
    if me.size == 1 {
        builder.copy(Span::first(input(in_place), count), Span::first(Buffer::Output, count));
        return builder.finish();
    }
    let peer = me.ahead(1);
    let blocks = Blocks::divide(count, me.size * PIECES);
    let of = |buffer, rank, piece| blocks.one(buffer, rank * PIECES + piece);
    // Both ranks exchange the matching pieces in the same step, so that a piece too long for the
    // eager protocol does not wait for a later step.
    for step in 0..=PIECES {
        if step < PIECES {
            builder.send(peer, of(input(in_place), peer, step));
        }
        if step > 0 {
            builder.send(peer, of(Buffer::Output, me.rank, step - 1));
        }
        if step < PIECES {
            let own = of(input(in_place), me.rank, step);
            builder.receive_reduce(peer, own, of(Buffer::Output, me.rank, step));
        }
        if step > 0 {
            builder.receive(peer, of(Buffer::Output, peer, step - 1));
        }
        builder.begin_step();
    }
    builder.finish()
}

/// Passes blocks around a ring of ranks to reduce them, and once more to gather the results at all
/// ranks. Takes 2·(`size` - 1) rounds.
pub fn ring(me: Member, count: usize, in_place: bool) -> Schedule {
    in_blocks(me, count, in_place, |builder, blocks| {
        pass_around(builder, me, blocks, input(in_place), Buffer::Output);
        exchange::pass_around(builder, me, blocks);
    })
}

fn in_blocks(
    me: Member,
    count: usize,
    in_place: bool,
    write: impl FnOnce(&mut ScheduleBuilder, &Blocks),
) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    if me.size == 1 {
        let own = Span::first(input(in_place), count);
        builder.copy(own, Span::first(Buffer::Output, count));
    } else {
        write(&mut builder, &Blocks::divide(count, me.size));
    }
    builder.finish()
}

fn input(in_place: bool) -> Buffer {
    if in_place { Buffer::Output } else { Buffer::Input }
}

/// Reduces in ⌈log₂ size⌉ rounds, each of which about halves the number of blocks that a rank still
/// has to reduce.
pub fn reduce_scatter_halving(me: Member, count: usize, in_place: bool) -> Schedule {
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
pub fn reduce_scatter_pairwise(me: Member, count: usize, in_place: bool) -> Schedule {
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
    if !me.size.is_power_of_two() {
        return halve_circle(builder, me, blocks, input, sums, result);
    }
    // Recursive halving: in each round, a rank sends its peer the half of its remaining blocks that
    // contains the peer's block, and reduces the other half.
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
