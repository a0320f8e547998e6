//! Tests that run the schedules of all ranks against each other, for many numbers of ranks and
//! elements: results, what the algorithms cost (messages, copies and rounds), and hierarchical
//! schedules, for ranks that share nodes.

use super::model::{Memory, run};
use super::{Exchange, Member, Schedule, all_reduce, by_node, exchange, rooted, *};
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
        let schedules: Vec<Schedule> = members(size).map(exchange::dissemination).collect();
        check_barrier("dissemination", &schedules);
        let mut memories = vec![Memory::apart(Vec::new(), 0); size];
        play("dissemination", &schedules, &mut memories);
    }
}

fn check_broadcast(name: &str, schedules: &[Schedule], count: usize, root: usize) {
    let size = schedules.len();
    let mut memories = memories(size, |rank| {
        if rank == root {
            Memory::in_place(own(root, 0..count))
        } else {
            Memory::in_place(vec![Made::default(); count])
        }
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
        ("linear", |me, count, root, _| rooted::broadcast_linear(me, count, root)),
        ("binomial", |me, count, root, _| rooted::broadcast_binomial(me, count, root)),
        ("scatter, ring", |me, count, root, _| rooted::broadcast_scatter_ring(me, count, root)),
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
        [("binomial", rooted::reduce_binomial), ("scatter, gather", rooted::reduce_scatter_gather)];
    rooted(&algorithms, counts, check_reduce);
}

fn check_all_reduce(name: &str, schedules: &[Schedule], count: usize, in_place: fn(usize) -> bool) {
    let memory = |rank| {
        if in_place(rank) {
            Memory::in_place(own(rank, 0..count))
        } else {
            Memory::apart(own(rank, 0..count), count)
        }
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
        [("linear", rooted::gather_linear), ("binomial", rooted::gather_binomial)];
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
        [("linear", rooted::scatter_linear), ("binomial", rooted::scatter_binomial)];
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
        ("doubling", exchange::all_gather_doubling),
        ("Bruck", exchange::all_gather_bruck),
        ("ring", exchange::all_gather_ring),
    ];
    alike(&algorithms, each, |name, schedules, count, in_place| {
        let size = schedules.len();
        let memory = |rank| {
            if in_place(rank) {
                Memory::in_place(with_own_block(rank, size, count))
            } else {
                Memory::apart(own(rank, 0..count), size * count)
            }
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
    memories(size, |rank| {
        if in_place(rank) {
            Memory::in_place(own(rank, 0..size * count))
        } else {
            Memory::apart(own(rank, 0..size * count), room)
        }
    })
}

#[test]
fn a_reduce_scatter_reduces_a_block_for_each() {
    let algorithms: [(&str, Alike); 2] = [
        ("halving", all_reduce::reduce_scatter_halving),
        ("pairwise", all_reduce::reduce_scatter_pairwise),
    ];
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
        ("pairwise", exchange::all_to_all_pairwise),
        ("scattered", exchange::all_to_all_scattered),
        ("Bruck", exchange::all_to_all_bruck),
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

#[test]
fn an_all_reduce_of_two_copies_nothing_it_need_not() {
    for me in members(2) {
        for (name, algorithm) in ALL_REDUCE {
            let schedule = algorithm(me, 4096, false);
            let copies = schedule.steps.iter().flat_map(|step| &step.local);
            assert!(!copies.clone().any(|local| matches!(local, Local::Copy { .. })), "{name}");
            let keeps = ["direct", "scattered"].contains(&name);
            assert!(keeps || schedule.scratch == 0, "{name}: {schedule:?}");
        }
        let halves = all_reduce::rabenseifner(me, 4096, true);
        assert_eq!(halves.scratch, 0);
        assert!(halves.steps.iter().all(|step| step.local.is_empty()));
    }
}

/// Counts the elements that the rank with this schedule receives.
fn received(schedule: &Schedule) -> usize {
    let exchanges = schedule.steps.iter().flat_map(|step| &step.exchange);
    exchanges
        .map(|exchange| match exchange {
            Exchange::Receive { span, .. } | Exchange::ReceiveReduce { span, .. } => span.length,
            _ => 0,
        })
        .sum()
}

#[test]
fn many_elements_are_received_as_rarely_as_can_be() {
    for size in sizes() {
        let (each, count) = (3, 3 * size);
        for me in members(size) {
            let is = received(&rooted::broadcast_scatter_ring(me, count, 1 % size));
            assert_eq!(is, if me.rank == 1 % size { 0 } else { count }, "{me:?}");
            let others = each * (size - 1);
            for schedule in [
                exchange::all_gather_doubling(me, each, false),
                exchange::all_gather_bruck(me, each, false),
                exchange::all_gather_ring(me, each, false),
                all_reduce::reduce_scatter_halving(me, each, false),
                all_reduce::reduce_scatter_pairwise(me, each, false),
                exchange::all_to_all_pairwise(me, each, false),
                exchange::all_to_all_scattered(me, each, false),
            ] {
                assert_eq!(received(&schedule), others, "{me:?}: {schedule:?}");
            }
            let rabenseifner = all_reduce::rabenseifner(me, count, false);
            let ring = all_reduce::ring(me, count, false);
            let scattered = all_reduce::scattered(me, count, false);
            assert_eq!(received(&scattered), 2 * others, "{me:?}");
            assert_eq!(received(&rabenseifner), 2 * others, "{me:?}");
            assert_eq!(received(&ring), 2 * others, "{me:?}");
        }
    }
}

#[test]
fn few_elements_take_as_few_rounds_as_can_be() {
    for size in sizes() {
        for me in members(size) {
            let least = size.next_power_of_two().ilog2() as usize;
            let rounds = |schedule: Schedule| {
                let exchanges = schedule.steps.iter().filter(|step| !step.exchange.is_empty());
                exchanges.count()
            };
            assert_eq!(rounds(exchange::dissemination(me)), least, "{me:?}");
            assert_eq!(rounds(exchange::all_gather_bruck(me, 3, false)), least, "{me:?}");
            assert_eq!(rounds(exchange::all_gather_doubling(me, 3, false)), least, "{me:?}");
            assert_eq!(rounds(all_reduce::reduce_scatter_halving(me, 3, false)), least, "{me:?}");
            assert_eq!(rounds(exchange::all_to_all_bruck(me, 3, false)), least, "{me:?}");
            let rabenseifner = all_reduce::rabenseifner(me, size, false);
            assert_eq!(rounds(rabenseifner), 2 * least, "{me:?}");
            let direct = all_reduce::direct(me, 3, false);
            assert_eq!(rounds(direct), usize::from(size > 1), "{me:?}");
            let scattered = all_reduce::scattered(me, size, false);
            assert_eq!(rounds(scattered), if size > 1 { 2 } else { 0 }, "{me:?}");
        }
    }
}

#[test]
fn recursive_doubling_copies_in_place_only_where_rounds_are_odd() {
    for size in sizes() {
        for me in members(size) {
            let copies = |in_place| {
                let schedule = all_reduce::recursive_doubling(me, 1, in_place);
                schedule.steps.iter().map(|step| step.local.len()).sum::<usize>()
            };
            assert!(copies(true) <= 1, "{me:?}");
            assert!(size == 1 || copies(false) == 0, "{me:?}");
        }
    }
}

/// Returns assignments of ranks to nodes: node by node, round robin, and irregular.
fn groupings() -> Vec<Vec<usize>> {
    let mut groupings = Vec::new();
    for (size, nodes) in [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (5, 5), (8, 3), (12, 4), (64, 8)]
    {
        groupings.push((0..size).map(|rank| rank * nodes / size).collect());
        groupings.push((0..size).map(|rank| rank % nodes).collect());
    }
    for seed in 0..60 {
        let mut state = mix(seed);
        let mut below = |limit: usize| {
            state = mix(state);
            (state >> 33) as usize % limit
        };
        let (size, nodes) = (1 + below(40), 1 + below(9));
        groupings.push((0..size).map(|_| 100 + below(nodes)).collect());
    }
    groupings
}

#[test]
fn by_node_nobody_leaves_a_barrier_before_all_have_come() {
    for grouping in groupings() {
        let nodes = by_node::Nodes::new(&grouping);
        let schedules: Vec<Schedule> = (0..nodes.size())
            .map(|rank| by_node::barrier(rank, &nodes, exchange::dissemination))
            .collect();
        check_barrier("by node", &schedules);
        let mut memories = vec![Memory::apart(Vec::new(), 0); nodes.size()];
        play(&format!("by node {grouping:?}"), &schedules, &mut memories);
    }
}

#[test]
fn by_node_all_get_what_they_get_without() {
    for (index, grouping) in groupings().iter().enumerate() {
        let nodes = by_node::Nodes::new(grouping);
        let size = nodes.size();
        let name = format!("by node {grouping:?}");
        for (count, root) in [0, 1, 7, 33]
            .into_iter()
            .flat_map(|count| [0, size / 2, size - 1].map(|root| (count, root)))
        {
            let schedules: Vec<Schedule> = (0..size)
                .map(|rank| {
                    let (among, within) =
                        (rooted::broadcast_scatter_ring, rooted::broadcast_binomial);
                    by_node::broadcast(rank, &nodes, count, root, among, within)
                })
                .collect();
            check_nothing(&name, &schedules, count);
            check_broadcast(&name, &schedules, count, root);
            for in_place in [false, true] {
                let (one, other) = match index % 2 {
                    0 => (
                        rooted::reduce_binomial as fn(_, _, _, _) -> _,
                        rooted::reduce_scatter_gather as _,
                    ),
                    _ => (
                        rooted::reduce_scatter_gather as _,
                        rooted::reduce_binomial as fn(_, _, _, _) -> _,
                    ),
                };
                let schedules: Vec<Schedule> = (0..size)
                    .map(|rank| by_node::reduce(rank, &nodes, count, root, in_place, one, other))
                    .collect();
                check_nothing(&name, &schedules, count);
                check_reduce(&name, &schedules, (count, root), in_place);
            }
        }
        for count in [0, 1, 7, 33] {
            for (in_place, (_, among)) in
                IN_PLACE.into_iter().flat_map(|in_place| ALL_REDUCE.map(|among| (in_place, among)))
            {
                let schedules: Vec<Schedule> = (0..size)
                    .map(|rank| {
                        let (up, down) = (rooted::reduce_binomial, rooted::broadcast_binomial);
                        by_node::all_reduce(rank, &nodes, count, in_place(rank), up, among, down)
                    })
                    .collect();
                check_nothing(&name, &schedules, count);
                check_all_reduce(&name, &schedules, count, in_place);
                let schedules: Vec<Schedule> = (0..size)
                    .map(|rank| {
                        by_node::in_order(rank, &nodes, |me| among(me, count, in_place(rank)))
                    })
                    .collect();
                check_nothing(&name, &schedules, count);
                check_all_reduce(&name, &schedules, count, in_place);
            }
        }
    }
}
