//! Tests that run the schedules of all ranks against each other, for many numbers of ranks and
//! elements.

mod cost;
mod grouped;

use super::model::{Memory, run};
use super::{
    Exchange, Member, Schedule, all_gather, all_reduce, all_to_all, barrier, broadcast, gather,
    reduce, reduce_scatter, scatter,
};
use std::ops::Range;

/// Element that records from which ranks' elements it was computed, and in which tree of
/// operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Made {
    /// Ranks that have contributed, as a bit set; empty if the element was never written.
    ranks: u64,
    /// Index of the element in the vectors of the contributing ranks.
    element: usize,
    /// Hash of the tree of operations, independent of the order of operands.
    tree: u64,
}

fn made(rank: usize, element: usize) -> Made {
    Made { ranks: 1 << rank, element, tree: mix(rank as u64) }
}

/// Combines two elements of the same index. Panics if a rank has contributed to both.
fn combine(a: &Made, b: &Made) -> Made {
    assert_eq!(a.element, b.element, "unlike elements are combined");
    assert_eq!(a.ranks & b.ranks, 0, "a contribution counts twice");
    assert!(a.ranks != 0 && b.ranks != 0, "nothing is combined");
    Made {
        ranks: a.ranks | b.ranks,
        element: a.element,
        tree: mix(mix(a.tree.min(b.tree)) ^ a.tree.max(b.tree)),
    }
}

/// Computes one step of `SplitMix64`.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

fn all_ranks(size: usize) -> u64 {
    u64::MAX >> (64 - size)
}

/// Returns the contributions of a rank to a range of elements.
fn own(rank: usize, elements: Range<usize>) -> Vec<Made> {
    elements.map(|element| made(rank, element)).collect()
}

/// Functions that select the ranks that work in place: none, all, or every third.
const IN_PLACE: [fn(usize) -> bool; 3] = [|_| false, |_| true, |rank| rank % 3 == 1];

fn sizes() -> impl Iterator<Item = usize> {
    1..=64
}

fn counts(size: usize) -> Vec<usize> {
    let mut counts = vec![0, 1, 2, size - 1, size, size + 1, 7, 100];
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Block lengths to test, in elements.
const EACH: [usize; 4] = [0, 1, 2, 7];

/// Returns the roots to test: all ranks, or four of them if there are more than nine.
fn roots(size: usize) -> Vec<usize> {
    if size <= 9 {
        return (0..size).collect();
    }
    vec![0, 1, size / 2, size - 1]
}

fn members(size: usize) -> impl Iterator<Item = Member> {
    (0..size).map(move |rank| Member { rank, size })
}

/// Executes the schedules of all ranks, and checks that no input has changed. A panic names the
/// algorithm and the number of ranks.
fn play(name: &str, schedules: &[Schedule], memories: &mut [Memory<Made>]) {
    let before: Vec<Vec<Made>> = memories.iter().map(|memory| memory.input.clone()).collect();
    let size = schedules.len();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        run(schedules, memories, combine);
    }));
    assert!(result.is_ok(), "{name} of {size} ranks: see above");
    for (before, memory) in before.iter().zip(memories.iter()) {
        assert_eq!(before, &memory.input, "{name} of {size}: the input has changed");
    }
}

fn expect(name: &str, size: usize, rank: usize, is: &[Made], wanted: &[Made]) {
    assert_eq!(is, wanted, "{name} of {size}: what rank {rank} has");
}

/// Checks that each result has the contributions of all ranks to all `elements`, and that all
/// results are reduced by the same tree of operations.
fn expect_reduced(name: &str, size: usize, elements: Range<usize>, results: &[&[Made]]) {
    for (rank, result) in results.iter().enumerate() {
        assert_eq!(result.len(), elements.len());
        for (element, is) in elements.clone().zip(*result) {
            assert_eq!(is.element, element, "{name} of {size} at {rank}");
            assert_eq!(is.ranks, all_ranks(size), "{name} of {size} at {rank}: {element}");
        }
        assert!(*result == results[0], "{name} of {size}: {rank} reduces by another tree than 0");
    }
}

fn check_nothing(name: &str, schedules: &[Schedule], count: usize) {
    for schedule in schedules {
        let nothing = schedule.steps.is_empty() && schedule.scratch == 0;
        assert!(count > 0 || nothing, "{name} of nothing: {schedule:?}");
        let is_alone = schedule.steps.iter().all(|step| step.exchange.is_empty());
        assert!(schedules.len() > 1 || is_alone, "{name} of one rank: {schedule:?}");
    }
}

/// Checks that no rank leaves a barrier before it knows from signals, received directly or passed
/// on by other ranks, that every rank has arrived.
fn check_barrier(name: &str, schedules: &[Schedule]) {
    let size = schedules.len();
    // A signal tells its receiver all ranks of which the sender knows that they have arrived.
    let mut knows: Vec<u64> = (0..size).map(|rank| 1 << rank).collect();
    let mut steps = vec![0; size];
    let mut sent: Vec<Vec<(usize, usize, u64)>> = vec![Vec::new(); size];
    let mut begun = vec![false; size];
    loop {
        let mut moved = false;
        for rank in 0..size {
            let Some(step) = schedules[rank].steps.get(steps[rank]) else { continue };
            if !begun[rank] {
                for exchange in &step.exchange {
                    if let Exchange::Signal { to } = exchange {
                        sent[*to].push((rank, steps[rank], knows[rank]));
                    }
                }
                begun[rank] = true;
            }
            let awaited: Vec<usize> = step
                .exchange
                .iter()
                .filter_map(|exchange| match exchange {
                    Exchange::Await { from } => Some(*from),
                    _ => None,
                })
                .collect();
            let there = |from: &usize| sent[rank].iter().any(|(sender, ..)| sender == from);
            if awaited.iter().all(there) {
                for from in awaited {
                    let first = sent[rank].iter().position(|(sender, ..)| *sender == from);
                    knows[rank] |= sent[rank].remove(first.expect("it is there")).2;
                }
                steps[rank] += 1;
                begun[rank] = false;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    for (rank, knows) in knows.iter().enumerate() {
        assert_eq!(*knows, all_ranks(size), "{name} of {size}: what rank {rank} has heard of");
    }
    assert!(sent.iter().all(Vec::is_empty), "{name} of {size}: a signal is left");
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for size in sizes() {
        let schedules: Vec<Schedule> = members(size).map(barrier::dissemination).collect();
        check_barrier("dissemination", &schedules);
        let mut memories = vec![Memory::apart(Vec::new(), 0); size];
        play("dissemination", &schedules, &mut memories);
    }
}

fn check_broadcast(name: &str, schedules: &[Schedule], count: usize, root: usize) {
    let size = schedules.len();
    let mut memories = memories(size, |rank| match rank == root {
        true => Memory::in_place(own(root, 0..count)),
        false => Memory::in_place(vec![Made::default(); count]),
    });
    play(name, schedules, &mut memories);
    for (rank, memory) in memories.iter().enumerate() {
        expect(name, size, rank, &memory.output, &own(root, 0..count));
    }
}

/// Algorithm with a root: builds a schedule from the member, the count, the root, and whether the
/// rank works in place.
type Rooted = fn(Member, usize, usize, bool) -> Schedule;
type CheckRooted = fn(&str, &[Schedule], (usize, usize), bool);

/// Checks algorithms with a root for every size, root and count.
fn rooted(algorithms: &[(&str, Rooted)], counts: fn(usize) -> Vec<usize>, check: CheckRooted) {
    for (name, algorithm) in algorithms {
        for size in sizes() {
            for count in counts(size) {
                for (root, in_place) in
                    roots(size).into_iter().flat_map(|r| [(r, false), (r, true)])
                {
                    let own = |me| algorithm(me, count, root, in_place);
                    let schedules: Vec<Schedule> = members(size).map(own).collect();
                    check_nothing(name, &schedules, count);
                    check(name, &schedules, (count, root), in_place);
                }
            }
        }
    }
}

/// Algorithm without a root: builds a schedule from the member, the count, and whether the rank
/// works in place.
type Alike = fn(Member, usize, bool) -> Schedule;
type CheckAlike = fn(&str, &[Schedule], usize, fn(usize) -> bool);

/// Checks algorithms without a root for every size and count.
fn alike(algorithms: &[(&str, Alike)], counts: fn(usize) -> Vec<usize>, check: CheckAlike) {
    for (name, algorithm) in algorithms {
        // Algorithms with many messages are checked with fewer ranks.
        let most = match *name {
            "direct" | "scattered" => 17,
            "pieces" => 2,
            _ => 64,
        };
        for size in sizes().filter(|size| *size <= most) {
            for (count, in_place) in
                counts(size).into_iter().flat_map(|count| IN_PLACE.map(|how| (count, how)))
            {
                let own = |me: Member| algorithm(me, count, in_place(me.rank));
                let schedules: Vec<Schedule> = members(size).map(own).collect();
                check_nothing(name, &schedules, count);
                check(name, &schedules, count, in_place);
            }
        }
    }
}

fn memories(size: usize, of: impl Fn(usize) -> Memory<Made>) -> Vec<Memory<Made>> {
    (0..size).map(of).collect()
}

fn each(_: usize) -> Vec<usize> {
    EACH.to_vec()
}

#[test]
fn a_broadcast_brings_everyone_what_the_root_has() {
    let algorithms: [(&str, Rooted); 3] = [
        ("linear", |me, count, root, _| broadcast::linear(me, count, root)),
        ("binomial", |me, count, root, _| broadcast::binomial(me, count, root)),
        ("scatter, ring", |me, count, root, _| broadcast::scatter_ring(me, count, root)),
    ];
    rooted(&algorithms, counts, |name, schedules, (count, root), _| {
        check_broadcast(name, schedules, count, root);
    });
}

fn check_reduce(name: &str, schedules: &[Schedule], (count, root): (usize, usize), in_place: bool) {
    let memory = |rank| match (rank == root, in_place) {
        (true, true) => Memory::in_place(own(rank, 0..count)),
        (true, false) => Memory::apart(own(rank, 0..count), count),
        (false, _) => Memory::apart(own(rank, 0..count), 0),
    };
    let mut memories = memories(schedules.len(), memory);
    play(name, schedules, &mut memories);
    expect_reduced(name, schedules.len(), 0..count, &[&memories[root].output]);
}

#[test]
fn a_reduction_counts_every_contribution_once() {
    let algorithms: [(&str, Rooted); 2] =
        [("binomial", reduce::binomial), ("scatter, gather", reduce::scatter_gather)];
    rooted(&algorithms, counts, check_reduce);
}

fn check_all_reduce(name: &str, schedules: &[Schedule], count: usize, in_place: fn(usize) -> bool) {
    let memory = |rank| match in_place(rank) {
        true => Memory::in_place(own(rank, 0..count)),
        false => Memory::apart(own(rank, 0..count), count),
    };
    let mut memories = memories(schedules.len(), memory);
    play(name, schedules, &mut memories);
    let results: Vec<&[Made]> = memories.iter().map(|memory| &memory.output[..]).collect();
    expect_reduced(name, schedules.len(), 0..count, &results);
}

const ALL_REDUCE: [(&str, Alike); 5] = [
    ("direct", all_reduce::direct),
    ("scattered", all_reduce::scattered),
    ("recursive doubling", all_reduce::recursive_doubling),
    ("Rabenseifner", all_reduce::rabenseifner),
    ("ring", all_reduce::ring),
];

#[test]
fn an_all_reduce_gives_everyone_the_same_bits() {
    alike(&ALL_REDUCE, counts, check_all_reduce);
    alike(&[("pieces", all_reduce::pieces)], counts, check_all_reduce);
}

#[test]
fn a_gather_brings_all_blocks_to_the_root() {
    let algorithms: [(&str, Rooted); 2] =
        [("linear", gather::linear), ("binomial", gather::binomial)];
    rooted(&algorithms, each, |name, schedules, (count, root), in_place| {
        let size = schedules.len();
        let memory = |rank| match (rank == root, in_place) {
            (true, true) => Memory::in_place(with_own_block(rank, size, count)),
            (true, false) => Memory::apart(own(rank, 0..count), size * count),
            (false, _) => Memory::apart(own(rank, 0..count), 0),
        };
        let mut memories = memories(size, memory);
        play(name, schedules, &mut memories);
        expect(name, size, root, &memories[root].output, &all_blocks(size, count));
    });
}

/// Returns an output of `size` blocks in which only the rank's own block is set.
fn with_own_block(rank: usize, size: usize, count: usize) -> Vec<Made> {
    let mut all = vec![Made::default(); size * count];
    all[rank * count..(rank + 1) * count].copy_from_slice(&own(rank, 0..count));
    all
}

fn all_blocks(size: usize, count: usize) -> Vec<Made> {
    (0..size).flat_map(|rank| own(rank, 0..count)).collect()
}

#[test]
fn a_scatter_brings_everyone_its_block() {
    let algorithms: [(&str, Rooted); 2] =
        [("linear", scatter::linear), ("binomial", scatter::binomial)];
    rooted(&algorithms, each, |name, schedules, (count, root), in_place| {
        let size = schedules.len();
        let memory = |rank| match (rank == root, in_place) {
            (true, true) => Memory::apart(own(root, 0..size * count), 0),
            (true, false) => Memory::apart(own(root, 0..size * count), count),
            (false, _) => Memory::apart(Vec::new(), count),
        };
        let mut memories = memories(size, memory);
        play(name, schedules, &mut memories);
        for (rank, memory) in memories.iter().enumerate() {
            if rank != root || !in_place {
                let wanted = own(root, rank * count..(rank + 1) * count);
                expect(name, size, rank, &memory.output, &wanted);
            }
        }
    });
}

#[test]
fn an_all_gather_brings_all_blocks_to_everyone() {
    let algorithms: [(&str, Alike); 3] = [
        ("doubling", all_gather::doubling),
        ("Bruck", all_gather::bruck),
        ("ring", all_gather::ring),
    ];
    alike(&algorithms, each, |name, schedules, count, in_place| {
        let size = schedules.len();
        let memory = |rank| match in_place(rank) {
            true => Memory::in_place(with_own_block(rank, size, count)),
            false => Memory::apart(own(rank, 0..count), size * count),
        };
        let mut memories = memories(size, memory);
        play(name, schedules, &mut memories);
        for (rank, memory) in memories.iter().enumerate() {
            expect(name, size, rank, &memory.output, &all_blocks(size, count));
        }
    });
}

/// Returns the buffers of all ranks: inputs with one block for each rank, and outputs of `room`
/// elements unless the rank works in place.
fn blocks_for_all(
    (size, count): (usize, usize),
    room: usize,
    in_place: fn(usize) -> bool,
) -> Vec<Memory<Made>> {
    memories(size, |rank| match in_place(rank) {
        true => Memory::in_place(own(rank, 0..size * count)),
        false => Memory::apart(own(rank, 0..size * count), room),
    })
}

#[test]
fn a_reduce_scatter_reduces_a_block_for_each() {
    let algorithms: [(&str, Alike); 2] =
        [("halving", reduce_scatter::halving), ("pairwise", reduce_scatter::pairwise)];
    alike(&algorithms, each, |name, schedules, count, in_place| {
        let size = schedules.len();
        let mut memories = blocks_for_all((size, count), count, in_place);
        play(name, schedules, &mut memories);
        for (rank, memory) in memories.iter().enumerate() {
            let block = rank * count..(rank + 1) * count;
            expect_reduced(name, size, block, &[&memory.output[..count]]);
        }
    });
}

#[test]
fn an_all_to_all_brings_each_block_to_whom_it_is_for() {
    let algorithms: [(&str, Alike); 3] = [
        ("pairwise", all_to_all::pairwise),
        ("scattered", all_to_all::scattered),
        ("Bruck", all_to_all::bruck),
    ];
    alike(&algorithms, each, |name, schedules, count, in_place| {
        let size = schedules.len();
        let mut memories = blocks_for_all((size, count), size * count, in_place);
        play(name, schedules, &mut memories);
        for (rank, memory) in memories.iter().enumerate() {
            let block = rank * count..(rank + 1) * count;
            let wanted: Vec<Made> = (0..size).flat_map(|from| own(from, block.clone())).collect();
            expect(name, size, rank, &memory.output, &wanted);
        }
    });
}
