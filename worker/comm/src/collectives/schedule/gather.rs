//! What each has, to the root. Input: `count` elements; Output, at the root alone: `size` blocks of
//! them. In place is said by the root only: its own block is in its Output already.

use super::blocks::Blocks;
use super::plan::Plan;
use super::{Member, Place, Schedule, Span, tree};

/// Each to the root by itself: no byte is passed on.
pub fn linear(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    if me.rank == root {
        let blocks = Blocks::equal(count, me.size);
        copy_own(&mut plan, me, &blocks, in_place);
        for from in (1..me.size).map(|steps| me.ahead(steps)) {
            plan.receive(from, blocks.one(Place::Output, from));
        }
    } else {
        plan.send(root, Span::first(Place::Input, count));
    }
    plan.finish()
}

/// Up a tree: the root hears from ⌈log₂ size⌉ others only.
pub fn binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::equal(count, me.size);
    let seat = me.seat(root).rank;
    let rank = |seat| (seat + root) % me.size;
    let breadth = |seat| tree::breadth(seat, me.size);
    let Some(parent) = tree::parent(seat) else {
        copy_own(&mut plan, me, &blocks, in_place);
        for child in tree::children(seat, me.size).rev() {
            for span in blocks.arc(Place::Output, rank(child), breadth(child)) {
                plan.receive(rank(child), span);
            }
        }
        return plan.finish();
    };
    let mut collected = Place::Input;
    if breadth(seat) > 1 {
        collected = plan.scratch(count * breadth(seat)).place;
        plan.copy(Span::first(Place::Input, count), Span::first(collected, count));
        for child in tree::children(seat, me.size).rev() {
            let span = blocks.run(collected, child - seat, breadth(child));
            plan.receive(rank(child), span);
        }
        plan.then();
    }
    for span in pieces(&blocks, collected, seat, breadth(seat), root) {
        plan.send(rank(parent), span);
    }
    plan.finish()
}

/// What a seat of the tree collects, from the front of `place` on, as it goes to its parent: in two
/// pieces where it lies around the end of the root's memory.
pub(super) fn pieces(
    blocks: &Blocks,
    place: Place,
    seat: usize,
    breadth: usize,
    root: usize,
) -> [Span; 2] {
    let whole = blocks.run(place, 0, breadth);
    let to_root = tree::parent(seat) == Some(0);
    let ahead =
        if to_root { blocks.arc(place, seat + root, breadth)[0].length } else { whole.length };
    [Span::first(place, ahead), Span::new(place, ahead, whole.length - ahead)]
}

fn copy_own(plan: &mut Plan, me: Member, blocks: &Blocks, in_place: bool) {
    if !in_place {
        let own = blocks.one(Place::Output, me.rank);
        plan.copy(Span::first(Place::Input, own.length), own);
    }
}
