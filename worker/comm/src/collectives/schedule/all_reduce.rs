//! Reduction algorithms with the result at all ranks. Input and Output have `count` elements each.
//! In place there is no Input; Output contains the rank's input at first.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span, all_gather, reduce_scatter};

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
        reduce_scatter::halve(builder, me, blocks, input(in_place), Buffer::Output, own);
        all_gather::double(builder, me, blocks);
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
        reduce_scatter::pass_around(builder, me, blocks, input(in_place), Buffer::Output);
        all_gather::pass_around(builder, me, blocks);
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
