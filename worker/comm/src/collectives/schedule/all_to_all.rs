//! All-to-all algorithms. Input has `size` blocks of `count` elements in the order of destination
//! ranks. Output has `size` blocks in the order of source ranks. In place, Output contains the
//! input at first.

use super::blocks::Blocks;
use super::builder::ScheduleBuilder;
use super::{Buffer, Member, Schedule, Span};

/// Exchanges blocks with one rank after the other. Takes at most `size` rounds.
pub fn pairwise(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    if !in_place {
        copy_own(&mut builder, me, &blocks);
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
pub fn scattered(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut builder = ScheduleBuilder::default();
    let blocks = Blocks::equal(count, me.size);
    let mut from = Buffer::Input;
    if !in_place {
        copy_own(&mut builder, me, &blocks);
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
pub fn bruck(me: Member, count: usize, in_place: bool) -> Schedule {
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

fn copy_own(builder: &mut ScheduleBuilder, me: Member, blocks: &Blocks) {
    builder.copy(blocks.one(Buffer::Input, me.rank), blocks.one(Buffer::Output, me.rank));
}
