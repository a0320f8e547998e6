//! What all have, reduced to one at the root. Input: `count` elements; Output, at the root alone,
//! the same. In place is said by the root only: its Input is its Output.

use super::blocks::Blocks;
use super::plan::Plan;
use super::{Member, Place, Schedule, Span, reduce_scatter, tree};

/// Up a tree. ⌈log₂ size⌉ times the time of a message and of reducing it.
pub fn binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let seat = me.seat(root);
    let rank = |seat| (seat + root) % me.size;
    let (input, result) = places(me, root, in_place);
    let (input, result) = (Span::first(input, count), Span::first(result, count));
    let mut sum = input;
    // Who has least below it is ready first.
    for child in tree::children(seat.rank, me.size).rev() {
        plan.receive_fold(rank(child), sum, result);
        plan.then();
        sum = result;
    }
    match tree::parent(seat.rank) {
        Some(parent) => {
            if sum.place == Place::Scratch {
                plan.scratch(count);
            }
            plan.send(rank(parent), sum);
        }
        None => plan.copy(sum, result),
    }
    plan.finish()
}

/// Everyone reduces a block, and the root collects them: each element is sent about twice and
/// reduced `size` - 1 times in all, evenly by all.
pub fn scatter_gather(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let (input, result) = places(me, root, in_place);
    if me.size == 1 {
        plan.copy(Span::first(input, count), Span::first(result, count));
        return plan.finish();
    }
    if me.rank != root {
        plan.scratch(count);
    }
    let blocks = Blocks::divide(count, me.size);
    let own = blocks.one(result, me.rank);
    reduce_scatter::halve(&mut plan, me, &blocks, input, result, own);
    plan.then();
    if me.rank == root {
        for from in (1..me.size).map(|steps| me.ahead(steps)) {
            plan.receive(from, blocks.one(result, from));
        }
    } else {
        plan.send(root, own);
    }
    plan.finish()
}

/// Where this rank's contribution is, and where it reduces to.
fn places(me: Member, root: usize, in_place: bool) -> (Place, Place) {
    match (me.rank == root, in_place) {
        (true, true) => (Place::Output, Place::Output),
        (true, false) => (Place::Input, Place::Output),
        (false, _) => (Place::Input, Place::Scratch),
    }
}
