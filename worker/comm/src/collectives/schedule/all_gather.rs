//! What each has, to everyone. Input: `count` elements; Output: `size` blocks of them. In place the
//! own block is in the Output already.

use super::blocks::Blocks;
use super::plan::Plan;
use super::{Member, Place, Schedule, Span};

/// Whole blocks straight to their place, twice as many in each round. ⌈log₂ size⌉ rounds.
pub fn doubling(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::equal(count, me.size);
    copy_own(&mut plan, me, &blocks, in_place);
    double(&mut plan, me, &blocks);
    plan.finish()
}

/// One message in each of ⌈log₂ size⌉ rounds (Bruck), at the price of copying everything.
pub fn bruck(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::equal(count, me.size);
    // Collected from the own block on; for rank 0 that is where it belongs.
    let place = if me.rank == 0 || me.size == 1 {
        Place::Output
    } else {
        plan.scratch(blocks.count()).place
    };
    let own = if in_place {
        blocks.one(Place::Output, me.rank)
    } else {
        Span::first(Place::Input, count)
    };
    plan.copy(own, blocks.one(place, 0));
    for round in 0..me.rounds() {
        let has = 1 << round;
        let more = has.min(me.size - has);
        plan.send(me.behind(has), blocks.run(place, 0, more));
        plan.receive(me.ahead(has), blocks.run(place, has, more));
        plan.then();
    }
    if place == Place::Scratch {
        let ahead = me.size - me.rank;
        plan.copy(blocks.run(place, 0, ahead), blocks.run(Place::Output, me.rank, ahead));
        plan.copy(blocks.run(place, ahead, me.rank), blocks.run(Place::Output, 0, me.rank));
    }
    plan.finish()
}

/// Every block goes once around, between neighbours. `size` - 1 rounds.
pub fn ring(me: Member, count: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::equal(count, me.size);
    copy_own(&mut plan, me, &blocks, in_place);
    pass_around(&mut plan, me, &blocks);
    plan.finish()
}

fn copy_own(plan: &mut Plan, me: Member, blocks: &Blocks, in_place: bool) {
    if !in_place {
        let own = blocks.one(Place::Output, me.rank);
        plan.copy(Span::first(Place::Input, own.length), own);
    }
}

/// From the own block in the Output to all blocks.
pub(super) fn double(plan: &mut Plan, me: Member, blocks: &Blocks) {
    let power_of_two = me.size.is_power_of_two();
    for round in (0..me.rounds()).rev() {
        let wanted = me.size.div_ceil(1 << round);
        let has = wanted.div_ceil(2);
        if power_of_two {
            // Between pairs, the mirror image of recursive halving.
            let (peer, mine) = (me.rank ^ has, me.rank & !(has - 1));
            plan.send(peer, blocks.run(Place::Output, mine, has));
            plan.receive(peer, blocks.run(Place::Output, mine ^ has, has));
        } else {
            let more = wanted - has;
            for span in blocks.arc(Place::Output, me.rank, more) {
                plan.send(me.behind(has), span);
            }
            for span in blocks.arc(Place::Output, me.rank + has, more) {
                plan.receive(me.ahead(has), span);
            }
        }
        plan.then();
    }
}

/// The same between neighbours.
pub(super) fn pass_around(plan: &mut Plan, me: Member, blocks: &Blocks) {
    for steps in 0..me.size - 1 {
        let (out, come) = (me.behind(steps), me.behind(steps + 1));
        plan.send(me.ahead(1), blocks.one(Place::Output, out));
        plan.receive(me.behind(1), blocks.one(Place::Output, come));
        plan.then();
    }
}
