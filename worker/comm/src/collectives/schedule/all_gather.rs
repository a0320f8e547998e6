//! All-gather algorithms. Input has `count` elements, and Output has `size` blocks of `count`
//! elements. In place there is no Input; the rank's own block is already at its position in Output.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span};

/// Sends and receives blocks at their final positions in Output, in ⌈log₂ size⌉ rounds. Each round
/// about doubles the number of blocks that a rank has.
pub fn doubling(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    copy_own(&mut builder, me, &blocks, in_place);
    double(&mut builder, me, &blocks);
    builder.finish()
}

/// Sends one message in each of ⌈log₂ size⌉ rounds (Bruck's algorithm), and finally copies all
/// blocks to their positions.
pub fn bruck(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    // Blocks are collected in rank order, beginning with this rank's own block; for rank 0 that is
    // their final order.
    let buffer = if me.rank == 0 || me.size == 1 {
        Buffer::Output
    } else {
        builder.scratch(blocks.count()).buffer
    };
    let own = if in_place {
        blocks.one(Buffer::Output, me.rank)
    } else {
        Span::first(Buffer::Input, count)
    };
    builder.copy(own, blocks.one(buffer, 0));
    for round in 0..me.rounds() {
        let has = 1 << round;
        let more = has.min(me.size - has);
        builder.send(me.behind(has), blocks.run(buffer, 0, more));
        builder.receive(me.ahead(has), blocks.run(buffer, has, more));
        builder.begin_step();
    }
    if buffer == Buffer::Scratch {
        let ahead = me.size - me.rank;
        builder.copy(blocks.run(buffer, 0, ahead), blocks.run(Buffer::Output, me.rank, ahead));
        builder.copy(blocks.run(buffer, ahead, me.rank), blocks.run(Buffer::Output, 0, me.rank));
    }
    builder.finish()
}

/// Passes every block once around a ring of ranks. Takes `size` - 1 rounds.
pub fn ring(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    copy_own(&mut builder, me, &blocks, in_place);
    pass_around(&mut builder, me, &blocks);
    builder.finish()
}

fn copy_own(builder: &mut ScheduleBuilder, me: Member, blocks: &Blocks, in_place: bool) {
    if !in_place {
        let own = blocks.one(Buffer::Output, me.rank);
        builder.copy(Span::first(Buffer::Input, own.length), own);
    }
}

/// Adds an all-gather to the schedule. At first, only this rank's own block is in Output; each
/// round about doubles the number of blocks there.
pub(super) fn double(builder: &mut ScheduleBuilder, me: Member, blocks: &Blocks) {
    let power_of_two = me.size.is_power_of_two();
    for round in (0..me.rounds()).rev() {
        let wanted = me.size.div_ceil(1 << round);
        let has = wanted.div_ceil(2);
        if power_of_two {
            // Pairs of ranks exchange blocks, in the reverse order of recursive halving.
            let (peer, mine) = (me.rank ^ has, me.rank & !(has - 1));
            builder.send(peer, blocks.run(Buffer::Output, mine, has));
            builder.receive(peer, blocks.run(Buffer::Output, mine ^ has, has));
        } else {
            let more = wanted - has;
            for span in blocks.arc(Buffer::Output, me.rank, more) {
                builder.send(me.behind(has), span);
            }
            for span in blocks.arc(Buffer::Output, me.rank + has, more) {
                builder.receive(me.ahead(has), span);
            }
        }
        builder.begin_step();
    }
}

/// Adds an all-gather to the schedule. At first, only this rank's own block is in Output; every
/// block is passed once around a ring of ranks.
pub(super) fn pass_around(builder: &mut ScheduleBuilder, me: Member, blocks: &Blocks) {
    for steps in 0..me.size - 1 {
        let (out, come) = (me.behind(steps), me.behind(steps + 1));
        builder.send(me.ahead(1), blocks.one(Buffer::Output, out));
        builder.receive(me.behind(1), blocks.one(Buffer::Output, come));
        builder.begin_step();
    }
}
