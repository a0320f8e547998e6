use super::*;
use crate::types::{Cause, CommError, Op};
use std::cell::Cell;

fn settings(seed: u64, ranks: usize) -> Settings {
    let (per_node, faults, timeout) = (2, Faults::default(), Duration::from_secs(60));
    Settings { seed, ranks, per_node, faults, timeout }
}

/// Returns the message with this number from a rank. Its bytes differ from those of other ranks and
/// numbers.
fn message(from: usize, number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + from * 31 + number * 13) as u8).collect()
}

const LENGTHS: [usize; 8] = [0, 1, 48, 255, 257, 1024, 3000, 10_001];

#[test]
fn messages_arrive_whole_and_in_order() {
    for seed in 0..60 {
        run(&settings(seed, 2), |comm| {
            let peer = 1 - comm.rank();
            for round in 0..2 {
                for (number, length) in LENGTHS.into_iter().enumerate() {
                    let mut data = vec![0; length + round];
                    if comm.rank() == round {
                        comm.send(&message(peer, number, length), peer, 5).unwrap();
                    } else {
                        let received = comm.recv(&mut data, peer, 5).unwrap();
                        assert_eq!((received.from, received.length), (peer, length), "seed {seed}");
                        assert_eq!(data[..length], message(comm.rank(), number, length));
                    }
                }
            }
        });
    }
}

/// A simulated rank that misses a wake-up sleeps until it reports its wait, after 10 s of virtual
/// time. So all calls must end earlier.
#[test]
fn nobody_sleeps_on_a_message_that_has_come() {
    for seed in 0..60 {
        let ends = run(&settings(seed, 4), |comm| {
            let (right, left) = ((comm.rank() + 1) % 4, (comm.rank() + 3) % 4);
            let mut data = vec![0; 2000];
            for length in LENGTHS.map(|length| length.min(data.len())) {
                let own = message(comm.rank(), 0, length);
                comm.send(&own[..length.min(256)], right, 0).unwrap();
                comm.recv(&mut data, left, 0).unwrap();
                comm.sendrecv(&own, (left, 1), &mut data[..length], (right, 1)).unwrap();
                comm.barrier().unwrap();
                comm.all_reduce_in_place(&mut data[..length], Op::Max).unwrap();
            }
            comm.progress.idle.now()
        });
        assert!(ends.iter().all(|end| *end < Duration::from_secs(5)), "seed {seed}: {ends:?}");
    }
}

#[test]
fn tags_are_kept_apart_and_anybody_may_be_meant() {
    for seed in 0..60 {
        run(&settings(seed, 4), |comm| {
            if comm.rank() > 0 {
                comm.send(&message(comm.rank(), 1, 200), 0, 1).unwrap();
                comm.send(&message(comm.rank(), 2, 100), 0, 2).unwrap();
                return;
            }
            let mut data = vec![0; 2000];
            for tag in [2, 1] {
                let mut seen = [false; 4];
                for _ in 1..4 {
                    let received = comm.recv_any(&mut data, tag).unwrap();
                    let expected = message(received.from, tag as usize, received.length);
                    assert_eq!(data[..received.length], expected, "seed {seed}");
                    assert!(!std::mem::replace(&mut seen[received.from], true));
                }
            }
        });
    }
}

#[test]
fn a_receive_from_any_rank_takes_the_message_that_came_first() {
    for seed in 0..20 {
        run(&settings(seed, 4), |comm| match comm.rank() {
            0 => {
                let mut data = vec![0_u8; 2000];
                // The message with this tag arrives after the other one.
                comm.recv(&mut data, 3, 9).unwrap();
                comm.send(&[0_u8], 1, 9).unwrap();
                comm.recv(&mut data, 1, 9).unwrap();
                let from = [(); 2].map(|()| comm.recv_any(&mut data, 1).unwrap().from);
                assert_eq!(from, [3, 1], "seed {seed}");
            }
            rank @ (1 | 3) => {
                if rank == 1 {
                    comm.recv(&mut [0_u8], 0, 9).unwrap();
                }
                // The message of rank 3 is too long for the eager protocol.
                let data = vec![1_u8; rank * 500];
                comm.scope(|scope| {
                    let _ = scope.isend(&data, 0, 1)?;
                    scope.isend(&[1_u8], 0, 9).map(drop)
                })
                .unwrap();
            }
            _ => {}
        });
    }
}

#[test]
fn all_may_send_to_all_at_once() {
    for seed in 0..60 {
        run(&settings(seed, 4), |comm| {
            let own: Vec<_> = (0..4).map(|to| message(comm.rank(), to, LENGTHS[to + 4])).collect();
            let mut theirs: Vec<_> = (0..4).map(|_| vec![0; LENGTHS[comm.rank() + 4]]).collect();
            comm.scope(|scope| {
                for (to, data) in own.iter().enumerate() {
                    let _ = scope.isend(data, to, 0)?;
                }
                for (from, data) in theirs.iter_mut().enumerate() {
                    let _ = scope.irecv(data, from, 0)?;
                }
                Ok(())
            })
            .unwrap();
            for (from, data) in theirs.iter().enumerate() {
                assert_eq!(*data, message(from, comm.rank(), data.len()), "seed {seed}");
            }
        });
    }
}

#[test]
fn a_message_too_long_is_said_and_the_next_one_comes() {
    for (seed, length) in [(1, 100), (2, 5000)] {
        run(&settings(seed, 2), |comm| {
            if comm.rank() == 0 {
                comm.send(&vec![1_u8; length], 1, 0).unwrap();
                return comm.send(&[2_u8], 1, 0).unwrap();
            }
            let error = comm.recv(&mut [0_u8; 10], 0, 0).unwrap_err();
            let expected = format!(
                "receive from rank 0 (tag 0): a message of {length} bytes from rank 0 on n0 does not fit into a buffer of 10"
            );
            assert_eq!(error.to_string(), expected);
            let mut next = [0_u8];
            comm.recv(&mut next, 0, 0).unwrap();
            assert_eq!(next, [2]);
        });
    }
}

/// Covers collectives whose messages fit on the caller's stack, and collectives with longer
/// messages.
#[test]
fn ranks_that_call_with_different_counts_are_told() {
    for (seed, counts) in (0..).zip([[1, 2], [8, 300], [20, 9000], [700, 600], [9000, 9001]]) {
        let results = run(&settings(seed, 2), |comm| {
            let mut elements = vec![1_u8; counts[comm.rank()]];
            comm.all_reduce_in_place(&mut elements, Op::Sum).map_err(|error| error.to_string())
        });
        let is_told = |results: &Result<(), String>| {
            results.as_ref().is_err_and(|error| error.contains("called it with a different count"))
        };
        assert!(results.iter().any(is_told), "{counts:?}: {results:?}");
        assert!(results.iter().all(Result::is_err), "{counts:?}: {results:?}");
    }
}

#[test]
fn a_rank_that_dies_is_named_to_all_who_wait() {
    for seed in 0..40 {
        let dies = Some((2, 20 + seed * 3));
        let faults = Faults { dies, ..Faults::default() };
        let results = run(&Settings { faults, ..settings(seed, 4) }, |comm| {
            let (own, mut theirs) = (vec![1_u8; 700], vec![0_u8; 700]);
            loop {
                let (right, left) = ((comm.rank() + 1) % 4, (comm.rank() + 3) % 4);
                if let Err(error) = comm.sendrecv(&own, (right, 0), &mut theirs, (left, 0)) {
                    return error;
                }
            }
        });
        for (rank, error) in results.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let names = matches!(&error.cause, Cause::Lost { .. } | Cause::Left(_));
            assert!(names, "seed {seed}: rank {rank}: {error}");
        }
    }
}

#[test]
fn a_wait_that_takes_too_long_says_for_whom() {
    let results = run(&settings(3, 2), |comm| {
        comm.recv(&mut [0_u8], 1 - comm.rank(), 7).unwrap_err().to_string()
    });
    // The rank that times out first leaves, so the other rank may report that instead.
    let is_told = |(rank, results): (usize, &String)| {
        let peer = 1 - rank;
        let of_peer = format!("receive from rank {peer} (tag 7)");
        *results == format!("{of_peer}: timed out after 60 s: waiting for rank {peer} on n0")
    };
    assert!(results.iter().enumerate().any(is_told), "{results:?}");
}

/// Returns integers as floats: their sums are exact in any order.
fn numbers(rank: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| ((rank * 5 + at * 3) % 11) as f32).collect()
}

fn sums(size: usize, count: usize) -> Vec<f32> {
    (0..count).map(|at| (0..size).map(|rank| numbers(rank, count)[at]).sum()).collect()
}

#[test]
fn collectives_do_what_they_say() {
    for ranks in [1, 2, 3, 4, 7, 8] {
        for (seed, count) in [(1, 0), (2, 1), (3, 7), (4, 3000)] {
            run(&settings(seed, ranks), |comm| {
                let (me, size) = (comm.rank(), comm.size());
                let own = numbers(me, count);
                let mut sum = vec![0.0; count];
                comm.all_reduce(&own, &mut sum, Op::Sum).unwrap();
                assert_eq!(sum, sums(size, count), "{ranks} ranks, {count}");
                let mut data = own.clone();
                comm.all_reduce_in_place(&mut data, Op::Sum).unwrap();
                assert_eq!(data, sum);
                let mut all = vec![0.0; count * size];
                comm.all_gather(&own, &mut all).unwrap();
                let expected: Vec<f32> = (0..size).flat_map(|rank| numbers(rank, count)).collect();
                assert_eq!(all, expected);
                let root = size - 1;
                let mut theirs = if me == root { own.clone() } else { vec![0.0; count] };
                comm.broadcast(&mut theirs, root).unwrap();
                assert_eq!(theirs, numbers(root, count));
                let mut scattered = vec![0.0; count];
                comm.scatter(if me == root { &all } else { &[] }, &mut scattered, root).unwrap();
                assert_eq!(scattered, own);
                let mut exchanged = vec![0.0; count * size];
                comm.all_to_all(&all, &mut exchanged).unwrap();
                assert_eq!(exchanged, own.repeat(size));
                let mut block = vec![0.0; count];
                comm.reduce_scatter(&all, &mut block, Op::Sum).unwrap();
                assert_eq!(block, own.iter().map(|x| x * size as f32).collect::<Vec<_>>());
                let mut reduced = data.clone();
                comm.reduce_in_place(&mut reduced, Op::Max, root).unwrap();
                comm.barrier().unwrap();
            });
        }
    }
}

/// Reduces a message that is longer than one fetch. The kernel refuses the fetch after the first
/// part, and the rest of the message arrives as packets.
#[test]
fn what_was_fetched_before_a_refusal_is_reduced_once() {
    let count = 3000;
    for seed in 0..20 {
        run(&settings(seed, 3), |comm| {
            let mut data = numbers(comm.rank(), count);
            comm.reduce_in_place(&mut data, Op::Sum, 0).unwrap();
            assert!(comm.rank() != 0 || data == sums(3, count), "seed {seed}");
        });
    }
}

#[test]
fn a_communicator_splits_and_its_parts_do_not_hear_each_other() {
    for seed in 0..20 {
        run(&settings(seed, 7), |comm| {
            let part = comm.split(comm.rank() as u32 % 2, -(comm.rank() as i64)).unwrap();
            let members: Vec<usize> = (0..7).rev().filter(|r| r % 2 == comm.rank() % 2).collect();
            assert_eq!(members[part.rank()], comm.rank());
            let mut ranks = vec![0_u64; part.size()];
            part.all_gather(&[comm.rank() as u64], &mut ranks).unwrap();
            assert_eq!(ranks, members.iter().map(|r| *r as u64).collect::<Vec<_>>(), "seed {seed}");
            let mut all = [0_u64];
            comm.all_reduce(&[1], &mut all, Op::Sum).unwrap();
            assert_eq!(all, [7]);
        });
    }
}

#[test]
fn collectives_go_on_beside_each_other() {
    for seed in 0..30 {
        run(&settings(seed, 4), |comm| {
            let (a, b) = (numbers(comm.rank(), 500), numbers(comm.rank(), 1));
            let (mut sum_a, mut sum_b) = (vec![0.0; 500], vec![0.0]);
            comm.scope(|scope| {
                let first = scope.iall_reduce(&a, &mut sum_a, Op::Sum)?;
                let second = scope.iall_reduce(&b, &mut sum_b, Op::Sum)?;
                let third = scope.ibarrier()?;
                scope.wait(third)?;
                scope.wait(second)?;
                scope.wait(first)
            })
            .unwrap();
            assert_eq!((sum_a, sum_b), (sums(4, 500), sums(4, 1)), "seed {seed}");
        });
    }
}

#[test]
fn buffers_that_do_not_fit_are_said() {
    run(&settings(1, 2), |comm| {
        let error = comm.all_reduce(&[1.0_f32], &mut [0.0; 2], Op::Sum).unwrap_err();
        assert_eq!(error.to_string(), "all_reduce: output has 2 elements but should have 1");
        let error = comm.broadcast(&mut [0_u8], 2).unwrap_err();
        assert_eq!(error.to_string(), "broadcast: there is no rank 2 in a communicator of 2");
    });
}

#[test]
fn an_abort_says_why() {
    run(&settings(1, 1), |comm| {
        let error = comm.abort("no data");
        assert_eq!(error.to_string(), "abort: no data");
    });
}

thread_local! {
    /// Whether waits of the rank in this thread are interrupted.
    static QUITS: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call that is interrupted when it first sleeps, and returns its error.
fn quitting<R>(comm: &Communicator, body: impl FnOnce() -> Result<R, CommError>) -> CommError {
    comm.set_interrupt_check(|| QUITS.get());
    QUITS.set(true);
    let given_up = body().err().expect("it has to sleep");
    QUITS.set(false);
    assert!(matches!(given_up.cause, Cause::Interrupted), "{given_up}");
    given_up
}

/// Lets other ranks run for 20 ms of virtual time.
fn for_a_while(comm: &Communicator) {
    let until = comm.progress.idle.now() + Duration::from_millis(20);
    while comm.progress.idle.now() < until {
        comm.progress.idle.yield_now();
    }
}

#[test]
fn a_message_that_was_given_up_is_not_received() {
    // Lengths at which messages are fetched, written and sent, also when the kernel refuses to
    // fetch.
    for (seed, length) in (0..90).zip([700, 1024, 3000, 10_001].into_iter().cycle()) {
        let faults = Faults { no_fetch: seed % 3 == 0, ..Faults::default() };
        run(&Settings { faults, ..settings(seed, 3) }, |comm| {
            let (first, next) = (message(0, 1, length), message(0, 2, length));
            let mut data = vec![0; length];
            match comm.rank() {
                0 => {
                    for to in [1, 2] {
                        quitting(comm, || comm.send(&first, to, 5));
                    }
                    for to in [1, 2] {
                        comm.send(&next, to, 5).unwrap();
                    }
                }
                _ => {
                    for_a_while(comm);
                    let given_up = comm.recv(&mut data, 0, 5).unwrap_err().to_string();
                    let words = "rank 0 on n0 cancelled the message before it was received";
                    assert!(given_up.ends_with(words), "seed {seed}: {given_up}");
                    comm.recv(&mut data, 0, 5).unwrap();
                    assert_eq!(data, next, "seed {seed}");
                }
            }
        });
    }
}

#[test]
fn a_receive_that_is_given_up_leaves_the_message_for_the_next() {
    for (seed, length) in (0..60).zip([40, 1024, 3000, 10_001].into_iter().cycle()) {
        let faults = Faults { no_fetch: true, ..Faults::default() };
        run(&Settings { faults, ..settings(seed, 2) }, |comm| {
            if comm.rank() == 0 {
                for number in 0..4 {
                    comm.send(&message(0, number, length), 1, 5).unwrap();
                }
                return;
            }
            comm.set_interrupt_check(|| QUITS.get());
            let mut number = 0;
            while number < 4 {
                let mut data = vec![0; length];
                QUITS.set(!QUITS.get());
                match comm.recv(&mut data, 0, 5) {
                    Ok(_) => {
                        assert_eq!(data, message(0, number, length), "seed {seed}, {number}");
                        number += 1;
                    }
                    Err(error) => {
                        assert!(matches!(error.cause, Cause::Interrupted), "seed {seed}: {error}");
                    }
                }
            }
        });
    }
}

#[test]
fn all_ranks_are_told_of_a_collective_that_was_given_up() {
    let words = "rank 2 on n1 cancelled all_reduce, so the ranks of this communicator are at \
                 different calls: use another communicator";
    for (seed, count) in (0..60).zip([1, 100, 3000].into_iter().cycle()) {
        let results = run(&settings(seed, 4), |comm| {
            let other = comm.split(0, comm.rank() as i64).unwrap();
            let (own, mut sum) = (vec![1_u64; count], vec![0; count]);
            let mut call = || comm.all_reduce(&own, &mut sum, Op::Sum);
            let mut failed = Vec::new();
            if comm.rank() == 2 {
                quitting(comm, &mut call);
            } else {
                for_a_while(comm);
                // This call may succeed, if all messages that it needs were sent before.
                failed.extend(call().err().map(|error| error.to_string()));
            }
            failed.push(comm.barrier().unwrap_err().to_string());
            failed.push(comm.split(0, 0).unwrap_err().to_string());
            let mut all = [0_u64];
            other.all_reduce(&[1], &mut all, Op::Sum).unwrap();
            assert_eq!(all, [4]);
            // Messages from rank to rank still work.
            let (right, left) = ((comm.rank() + 1) % 4, (comm.rank() + 3) % 4);
            comm.sendrecv(&own, (right, 0), &mut sum, (left, 0)).unwrap();
            (failed, comm.progress.idle.now())
        });
        for (failed, now) in results {
            assert!(failed.iter().all(|failed| failed.ends_with(words)), "seed {seed}: {failed:?}");
            assert!(now < Duration::from_secs(30), "seed {seed}: {now:?}");
        }
    }
}

#[test]
fn a_collective_that_has_begun_and_is_dropped_is_given_up() {
    for seed in 0..20 {
        run(&settings(seed, 3), |comm| {
            let (own, mut sum) = (vec![1_u64; 2000], vec![0; 2000]);
            if comm.rank() == 1 {
                let dropped = comm.scope(|scope| {
                    let _ = scope.iall_reduce(&own, &mut sum, Op::Sum)?;
                    Err::<(), _>(comm.abort("no more"))
                });
                dropped.unwrap_err();
            }
            let failed = comm.all_reduce(&own, &mut sum, Op::Sum).unwrap_err().to_string();
            assert!(failed.contains("rank 1 on n0 cancelled all_reduce"), "seed {seed}: {failed}");
        });
    }
}
