//! Tests that barriers keep their place among other collectives and messages of the same ranks, over
//! simulated links and over shared memory.

use super::sim::{self, Dice, Faults, Settings};
use crate::api::communicator::{Communicator, Group};
use crate::progress::engine::Engine;
use crate::progress::idle::{EpollIdle, LONGEST_SLEEP};
use crate::progress::wait::{Progress, SpinPolicy};
use crate::transport::shm::ShmNode;
use crate::transport::{Link, SelfLink};
use crate::types::{Op, PeerName};
use rlaunch_stopwatch::Stopwatch;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const CALLS: usize = 100;

/// Counts for each call the ranks that have begun it.
type Begun = [AtomicUsize; CALLS];

fn nobody() -> Begun {
    [const { AtomicUsize::new(0) }; CALLS]
}

/// Makes calls that `seed` chooses; they are the same on all ranks. Messages are received some calls
/// after they were sent.
fn call_in_turn(comm: &Communicator, seed: u64, begun: &Begun) {
    let (me, size) = (comm.rank(), comm.size());
    let mut dice = Dice::new(seed);
    // Sender, receiver and content of the messages that were sent and not received yet.
    let mut sent = VecDeque::new();
    let receive = |(from, to, content): (usize, usize, u64)| {
        let mut data = [0_u64];
        if me == to {
            comm.recv(&mut data, from, 0).unwrap();
            assert_eq!(data, [content], "seed {seed}: message from rank {from} to rank {to}");
        }
    };
    for (call, begun) in begun.iter().enumerate() {
        begun.fetch_add(1, Ordering::AcqRel);
        let content = call as u64;
        let (rank, other) = (dice.below(size), dice.below(size));
        match dice.below(6) {
            0 => {
                let mut sum = [0_u64];
                comm.all_reduce(&[content + me as u64], &mut sum, Op::Sum).unwrap();
                let expected: u64 = (0..size).map(|rank| content + rank as u64).sum();
                assert_eq!(sum, [expected], "seed {seed}: call {call}");
            }
            1 => {
                let mut data = [if me == rank { content } else { u64::MAX }];
                comm.broadcast(&mut data, rank).unwrap();
                assert_eq!(data, [content], "seed {seed}: call {call}");
            }
            2 => {
                if me == rank {
                    comm.send(&[content], other, 0).unwrap();
                }
                sent.push_back((rank, other, content));
            }
            3 => sent.pop_front().into_iter().for_each(receive),
            _ => {
                comm.barrier().unwrap();
                assert_eq!(begun.load(Ordering::Acquire), size, "seed {seed}: call {call}");
            }
        }
    }
    sent.into_iter().for_each(receive);
    comm.barrier().unwrap();
}

#[test]
fn barriers_keep_their_place_whatever_the_links_do() {
    for (seed, ranks) in (0..40).zip([2, 3, 4, 5].into_iter().cycle()) {
        let (per_node, faults) = (2, Faults::default());
        let timeout = Duration::from_secs(60);
        let begun = nobody();
        sim::run(&Settings { seed, ranks, per_node, faults, timeout }, |comm| {
            call_in_turn(comm, seed, &begun);
        });
    }
}

/// Creates communicators of ranks of one host, all in this process.
fn on_one_host(name: &str, ranks: usize, spin_policy: SpinPolicy) -> Vec<Communicator> {
    let name = format!("rlaunch-order-{name}-{}", std::process::id());
    let attach = |rank| ShmNode::attach(&name, rank, ranks, false, None).unwrap();
    let nodes: Vec<Arc<ShmNode>> = (0..ranks).map(attach).collect();
    let link = |me: usize, peer: usize| -> Box<dyn Link> {
        if me == peer {
            return Box::new(SelfLink::default());
        }
        Box::new(nodes[me].link(peer).unwrap().unwrap())
    };
    let name = |rank| PeerName { rank, host: "n0".into() };
    let communicator = |me| {
        let links = (0..ranks).map(|peer| link(me, peer)).collect();
        let engine = Engine::new(me, links, (0..ranks as u32).map(name).collect());
        let idle = Arc::new(EpollIdle::new().unwrap());
        let progress = Progress::new(engine, idle, spin_policy, Some(Duration::from_secs(60)));
        Communicator::new(Arc::new(progress), Group::world(me, vec![0; ranks].into()))
    };
    (0..ranks).map(communicator).collect()
}

/// Waits that sleep miss no wake-up: each would cost up to [`LONGEST_SLEEP`].
#[test]
fn barriers_over_shared_memory_keep_their_place_and_wake_whoever_sleeps() {
    let begin = Stopwatch::start();
    let spin = Duration::from_micros(50);
    let policies = [SpinPolicy::none(), SpinPolicy::new(spin, true), SpinPolicy::new(spin, false)];
    for (number, policy) in (0..).zip(policies) {
        for ranks in [2, 3, 4] {
            let comms = on_one_host(&format!("{number}-{ranks}"), ranks, policy);
            for seed in 0..5 {
                let begun = nobody();
                thread::scope(|scope| {
                    for comm in &comms {
                        let begun = &begun;
                        scope.spawn(move || call_in_turn(comm, seed, begun));
                    }
                });
            }
        }
    }
    assert!(begin.elapsed() < 20 * LONGEST_SLEEP, "{:?}", begin.elapsed());
}
