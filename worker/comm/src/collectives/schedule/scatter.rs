//! A block to each of what the root has. Input, at the root alone: `size` blocks of `count`
//! elements; Output: `count`. In place is said by the root only: its own block stays in its Input,
//! and it has no Output.

use super::blocks::Blocks;
use super::gather::pieces;
use super::plan::Plan;
use super::{Member, Place, Schedule, Span, tree};

/// The root sends to each by itself: no byte is passed on.
pub fn linear(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let own = Span::first(Place::Output, count);
    if me.rank == root {
        let blocks = Blocks::equal(count, me.size);
        if !in_place {
            plan.copy(blocks.one(Place::Input, me.rank), own);
        }
        for to in (1..me.size).map(|steps| me.ahead(steps)) {
            plan.send(to, blocks.one(Place::Input, to));
        }
    } else {
        plan.receive(root, own);
    }
    plan.finish()
}

/// Down a tree: the root speaks to ⌈log₂ size⌉ others only.
pub fn binomial(me: Member, count: usize, root: usize, in_place: bool) -> Schedule {
    let mut plan = Plan::default();
    let blocks = Blocks::equal(count, me.size);
    let own = Span::first(Place::Output, count);
    let seat = me.seat(root).rank;
    let rank = |seat| (seat + root) % me.size;
    let breadth = |seat| tree::breadth(seat, me.size);
    let Some(parent) = tree::parent(seat) else {
        if !in_place {
            plan.copy(blocks.one(Place::Input, me.rank), own);
        }
        for child in tree::children(seat, me.size) {
            for span in blocks.arc(Place::Input, rank(child), breadth(child)) {
                plan.send(rank(child), span);
            }
        }
        return plan.finish();
    };
    if breadth(seat) == 1 {
        plan.receive(rank(parent), own);
        return plan.finish();
    }
    let passed = plan.scratch(count * breadth(seat)).place;
    for span in pieces(&blocks, passed, seat, breadth(seat), root) {
        plan.receive(rank(parent), span);
    }
    plan.copy(Span::first(passed, count), own);
    for child in tree::children(seat, me.size) {
        plan.send(rank(child), blocks.run(passed, child - seat, breadth(child)));
    }
    plan.finish()
}
