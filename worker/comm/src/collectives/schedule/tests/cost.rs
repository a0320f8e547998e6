//! Tests of what the algorithms cost: messages, copies and rounds.

use super::super::*;
use super::{ALL_REDUCE, members, sizes};

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
            let is = received(&broadcast::scatter_ring(me, count, 1 % size));
            assert_eq!(is, if me.rank == 1 % size { 0 } else { count }, "{me:?}");
            let others = each * (size - 1);
            for schedule in [
                all_gather::doubling(me, each, false),
                all_gather::bruck(me, each, false),
                all_gather::ring(me, each, false),
                reduce_scatter::halving(me, each, false),
                reduce_scatter::pairwise(me, each, false),
                all_to_all::pairwise(me, each, false),
                all_to_all::scattered(me, each, false),
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
            assert_eq!(rounds(barrier::dissemination(me)), least, "{me:?}");
            assert_eq!(rounds(all_gather::bruck(me, 3, false)), least, "{me:?}");
            assert_eq!(rounds(all_gather::doubling(me, 3, false)), least, "{me:?}");
            assert_eq!(rounds(reduce_scatter::halving(me, 3, false)), least, "{me:?}");
            assert_eq!(rounds(all_to_all::bruck(me, 3, false)), least, "{me:?}");
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
