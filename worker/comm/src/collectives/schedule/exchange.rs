//! All-gather algorithms. Input has `count` elements, and Output has `size` blocks of `count`
//! elements. In place there is no Input; the rank's own block is already at its position in Output.
//!
//! Barrier algorithms: no rank continues before all ranks have arrived.
//!
//! All-to-all algorithms. Input has `size` blocks of `count` elements in the order of destination
//! ranks. Output has `size` blocks in the order of source ranks. In place, Output contains the
//! input at first.

use super::builder::{Blocks, ScheduleBuilder};
use super::{Buffer, Member, Schedule, Span};

/// Sends and receives blocks at their final positions in Output, in ⌈log₂ size⌉ rounds. Each round
/// about doubles the number of blocks that a rank has.
pub fn all_gather_doubling(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    copy_own(&mut builder, me, &blocks, in_place);
    double(&mut builder, me, &blocks);
    builder.finish()
}

/// Sends one message in each of ⌈log₂ size⌉ rounds (Bruck's algorithm), and finally copies all
/// blocks to their positions.
pub fn all_gather_bruck(me: Member, count: usize, in_place: bool) -> Schedule {
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
pub fn all_gather_ring(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    copy_own(&mut builder, me, &blocks, in_place);
    pass_around(&mut builder, me, &blocks);
    builder.finish()
}

pub(super) fn copy_own(builder: &mut ScheduleBuilder, me: Member, blocks: &Blocks, in_place: bool) {
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

/// Builds a barrier of ⌈log₂ size⌉ rounds. The distance is 1 in the first round and doubles in each
/// further round; each rank signals the rank at this distance ahead, and awaits a signal from the
/// rank at this distance behind.
pub fn dissemination(me: Member) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    for round in 0..me.rounds() {
        let distance = 1 << round;
        builder.signal(me.ahead(distance));
        builder.await_signal(me.behind(distance));
        builder.begin_step();
    }
    builder.finish()
}

/// Exchanges blocks with one rank after the other. Takes at most `size` rounds.
pub fn all_to_all_pairwise(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    if !in_place {
        copy_own_block(&mut builder, me, &blocks);
    } else if me.size > 1 {
        builder.scratch(count);
    }
    for round in 0..me.size {
        let peer = if me.size.is_power_of_two() {
            me.rank ^ round
        } else {
            (round + me.size - me.rank) % me.size
        };
        if peer == me.rank {
            continue;
        }
        let received = blocks.one(Buffer::Output, peer);
        let sent = if in_place {
            // The received block overwrites the sent one.
            let saved = Span::first(Buffer::Scratch, count);
            builder.copy(received, saved);
            saved
        } else {
            blocks.one(Buffer::Input, peer)
        };
        builder.send(peer, sent);
        builder.receive(peer, received);
        builder.begin_step();
    }
    builder.finish()
}

/// Exchanges blocks with all ranks at the same time, in one round.
pub fn all_to_all_scattered(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let mut from = Buffer::Input;
    if !in_place {
        copy_own_block(&mut builder, me, &blocks);
    } else if me.size > 1 {
        let saved = builder.scratch(blocks.count());
        builder.copy(Span::first(Buffer::Output, saved.length), saved);
        from = Buffer::Scratch;
    }
    for steps in 1..me.size {
        let (to, peer) = (me.ahead(steps), me.behind(steps));
        builder.send(to, blocks.one(from, to));
        builder.receive(peer, blocks.one(Buffer::Output, peer));
    }
    builder.finish()
}

/// Exchanges blocks in ⌈log₂ size⌉ rounds (Bruck's algorithm). In round `k`, each rank sends one
/// message to the rank 2^`k` ahead. The message has all blocks, original and forwarded ones, whose
/// distance from source to destination has bit `k` set.
pub fn all_to_all_bruck(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let input = if in_place { Buffer::Output } else { Buffer::Input };
    // A received block stays in its part of the scratch buffer until it is forwarded or, at its
    // destination, copied to Output.
    let rounds = me.rounds();
    let received: usize = (0..rounds).map(|round| count_with_bit(round, me.size)).sum();
    let most = (0..rounds).map(|round| count_with_bit(round, me.size)).max();
    builder.scratch(count * (received + most.unwrap_or(0)));
    let packed = |length| Span::new(Buffer::Scratch, count * received, count * length);
    let block = |distance: usize, before: u32| {
        let travelled = distance & ((1 << before) - 1);
        if travelled == 0 {
            return blocks.one(input, me.ahead(distance));
        }
        let round = travelled.ilog2();
        let earlier: usize = (0..round).map(|round| count_with_bit(round, me.size)).sum();
        let index = earlier + count_with_bit(round, distance);
        Span::new(Buffer::Scratch, index * count, count)
    };
    let mut start = 0;
    for round in 0..rounds {
        let far = 1 << round;
        let number = count_with_bit(round, me.size);
        let mut sent = block(far, round);
        if number > 1 {
            sent = packed(number);
            let distances = (far..me.size).filter(|distance| distance & far != 0);
            for (index, distance) in distances.enumerate() {
                let to = Span::new(Buffer::Scratch, sent.start + index * count, count);
                builder.copy(block(distance, round), to);
            }
        }
        builder.send(me.ahead(far), sent);
        let arriving = Span::new(Buffer::Scratch, start, count * number);
        builder.receive(me.behind(far), arriving);
        builder.begin_step();
        start += arriving.length;
    }
    for distance in 0..me.size {
        let to = blocks.one(Buffer::Output, me.behind(distance));
        builder.copy(block(distance, rounds), to);
    }
    builder.finish()
}

/// Counts the numbers below `distance` that have bit `round` set.
fn count_with_bit(round: u32, distance: usize) -> usize {
    let far = 1 << round;
    (distance >> (round + 1) << round) + (distance & (2 * far - 1)).saturating_sub(far)
}

fn copy_own_block(builder: &mut ScheduleBuilder, me: Member, blocks: &Blocks) {
    builder.copy(blocks.one(Buffer::Input, me.rank), blocks.one(Buffer::Output, me.rank));
}
