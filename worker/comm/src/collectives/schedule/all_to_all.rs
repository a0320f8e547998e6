//! A block from each to each. Input and Output: `size` blocks of `count` elements, by the rank that
//! they are for or from; in place they are the same.

use super::blocks::Blocks;
use super::plan::Plan;
use super::{Member, Place, Schedule, Span};

/// With one rank after the other, both ways. `size` rounds at most.
pub fn pairwise(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::equal(count, me.size);
    if !in_place {
        copy_own(&mut plan, me, &blocks);
    } else if me.size > 1 {
        plan.scratch(count);
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
        let received = blocks.one(Place::Output, peer);
        let sent = if in_place {
            // What comes takes its place.
            let aside = Span::first(Place::Scratch, count);
            plan.copy(received, aside);
            aside
        } else {
            blocks.one(Place::Input, peer)
        };
        plan.send(peer, sent);
        plan.receive(peer, received);
        plan.then();
    }
    plan.finish()
}

/// With all at once.
pub fn scattered(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::equal(count, me.size);
    let mut from = Place::Input;
    if !in_place {
        copy_own(&mut plan, me, &blocks);
    } else if me.size > 1 {
        let aside = plan.scratch(blocks.count());
        plan.copy(Span::first(Place::Output, aside.length), aside);
        from = Place::Scratch;
    }
    for steps in 1..me.size {
        let (to, peer) = (me.ahead(steps), me.behind(steps));
        plan.send(to, blocks.one(from, to));
        plan.receive(peer, blocks.one(Place::Output, peer));
    }
    plan.finish()
}

/// In ⌈log₂ size⌉ rounds (Bruck): a block that has to go `distance` ranks ahead goes by the powers
/// of two that make it, together with all others that go as far in that round.
pub fn bruck(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::equal(count, me.size);
    let input = if in_place { Place::Output } else { Place::Input };
    // What comes in a round stays where it is received until it is passed on, or has arrived.
    let rounds = me.rounds();
    let received: usize = (0..rounds).map(|round| travelling(round, me.size)).sum();
    let most = (0..rounds).map(|round| travelling(round, me.size)).max();
    plan.scratch(count * (received + most.unwrap_or(0)));
    let packed = |length| Span::new(Place::Scratch, count * received, count * length);
    let block = |distance: usize, before: u32| {
        let travelled = distance & ((1 << before) - 1);
        if travelled == 0 {
            return blocks.one(input, me.ahead(distance));
        }
        let round = travelled.ilog2();
        let earlier: usize = (0..round).map(|round| travelling(round, me.size)).sum();
        let index = earlier + travelling(round, distance);
        Span::new(Place::Scratch, index * count, count)
    };
    let mut start = 0;
    for round in 0..rounds {
        let far = 1 << round;
        let number = travelling(round, me.size);
        let mut sent = block(far, round);
        if number > 1 {
            sent = packed(number);
            let distances = (far..me.size).filter(|distance| distance & far != 0);
            for (index, distance) in distances.enumerate() {
                let to = Span::new(Place::Scratch, sent.start + index * count, count);
                plan.copy(block(distance, round), to);
            }
        }
        plan.send(me.ahead(far), sent);
        let came = Span::new(Place::Scratch, start, count * number);
        plan.receive(me.behind(far), came);
        plan.then();
        start += came.length;
    }
    for distance in 0..me.size {
        let to = blocks.one(Place::Output, me.behind(distance));
        plan.copy(block(distance, rounds), to);
    }
    plan.finish()
}

/// How many of the distances less than `distance` need a step of 2^round.
fn travelling(round: u32, distance: usize) -> usize {
    let far = 1 << round;
    (distance >> (round + 1) << round) + (distance & (2 * far - 1)).saturating_sub(far)
}

fn copy_own(plan: &mut Plan, me: Member, blocks: &Blocks) {
    plan.copy(blocks.one(Place::Input, me.rank), blocks.one(Place::Output, me.rank));
}
