//! Tests of two provers, with the test in place of both agents.
//!
//! Without an RDMA device, the provers' faults are checked. Virtual machines of the lab run the
//! ignored tests with devices (`tests/vm/prover.rs`):
//!
//! ```text
//! RLAUNCH_PROVER_ENDS=rxe0:1,rxe0:1 two_provers --ignored paths_are
//! RLAUNCH_PROVER_PEER='ssh n2 /run/rlaunch-prover' \
//!     RLAUNCH_PROVER_ENDS=siw0@192.168.101.2,siw0@192.168.101.3 two_provers --ignored who_was
//! ```
//!
//! An end is `DEVICE:GID_INDEX`, or `DEVICE@ADDRESS` for the connection manager.
//! `RLAUNCH_PROVER_PATHS` is the number of paths, by default 8; `RLAUNCH_PROVER` is the path of
//! another prover binary, and `RLAUNCH_PROVER_PEER` a command that starts the second prover.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::control::{FrameReader, encode};
use rlaunch_bootstrap::protocol::mesh::{
    FromProver, LocalPort, MeshPath, NodeEndpoints, PathEvent, PathOutcome, ProofRound, ProofStep,
    QpSettings, RoundCost, RoundTimeouts, ToProver,
};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{env, thread};

const TIMEOUT: Duration = Duration::from_secs(30);

struct Prover {
    child: Child,
    stdin: Option<ChildStdin>,
    frames: Receiver<FromProver>,
}

impl Prover {
    fn start(node: u32) -> Prover {
        let built = env!("CARGO_BIN_EXE_rlaunch-prover").to_owned();
        let own = env::var("RLAUNCH_PROVER").unwrap_or(built);
        let command = match env::var("RLAUNCH_PROVER_PEER") {
            Ok(peer) if node == 1 => peer,
            _ => own,
        };
        let mut words = command.split_whitespace();
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .arg(node.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = child.stdout.take().unwrap();
        let (sender, frames) = channel();
        thread::spawn(move || {
            let (mut reader, mut chunk) = (FrameReader::default(), [0; 4096]);
            while let Ok(length @ 1..) = output.read(&mut chunk) {
                reader.push(&chunk[..length]);
                while let Some(frame) = reader.next_frame().unwrap() {
                    let _ = sender.send(frame);
                }
            }
        });
        Prover { stdin: child.stdin.take(), child, frames }
    }

    fn send(&mut self, frame: &ToProver) {
        self.stdin.as_mut().unwrap().write_all(&encode(frame).unwrap()).unwrap();
    }

    fn receive(&self) -> FromProver {
        self.frames.recv_timeout(TIMEOUT).unwrap()
    }

    fn end(mut self) -> Option<i32> {
        drop(self.stdin.take());
        self.child.wait().unwrap().code()
    }
}

/// Runs one round in the place of both agents. Returns the outcomes and cost of each prover.
fn prove(provers: &mut [Prover; 2], rounds: [ProofRound; 2]) -> [(Vec<PathOutcome>, RoundCost); 2] {
    prove_with_adverts(provers, rounds, |_| {})
}

/// Runs one round like [`prove`], with adverts that `change` has modified.
fn prove_with_adverts(
    provers: &mut [Prover; 2],
    rounds: [ProofRound; 2],
    change: impl Fn(&mut NodeEndpoints),
) -> [(Vec<PathOutcome>, RoundCost); 2] {
    let begin = Instant::now();
    let mut adverts = Vec::new();
    for (prover, round) in provers.iter_mut().zip(rounds) {
        prover.send(&ToProver::Prove(round));
    }
    for prover in &*provers {
        let FromProver::Prepared(parts) = prover.receive() else { panic!("prepared") };
        for part in parts {
            let mut endpoints = NodeEndpoints::decode(&part).unwrap();
            change(&mut endpoints);
            adverts.push(endpoints.encode().unwrap());
        }
    }
    let prepared = begin.elapsed();
    for prover in &mut *provers {
        prover.send(&ToProver::Connect(adverts.clone()));
    }
    for prover in &*provers {
        assert_eq!(prover.receive(), FromProver::Connected);
    }
    let connected = begin.elapsed();
    for prover in &mut *provers {
        prover.send(&ToProver::Go);
    }
    let ended = provers.each_ref().map(|prover| {
        loop {
            match prover.receive() {
                FromProver::RoundDone { outcomes, cost } => return (outcomes, cost),
                FromProver::PathEvent(news) => println!("meanwhile: {news:?}"),
                other => panic!("{other:?}"),
            }
        }
    });
    println!("prepared {prepared:?}, connected {connected:?}, proved {:?}", begin.elapsed());
    ended
}

fn rounds(ends: &[LocalPort; 2], ids: std::ops::Range<u32>) -> [ProofRound; 2] {
    [(0, 1), (1, 0)].map(|(node, peer)| ProofRound {
        number: 0,
        ports: vec![ends[node as usize].clone()],
        paths: ids
            .clone()
            .map(|id| MeshPath {
                id,
                port_index: 0,
                peer: NodeId(peer),
                dials: id % 2 == node,
                mtu: None,
            })
            .collect(),
        // More retries than usual: virtual machines have one emulated processor.
        settings: QpSettings { retries: 4, ..QpSettings::default() },
        limits: RoundTimeouts::within(Duration::from_secs(20), Duration::from_secs(20)),
        through_launcher: false,
    })
}

fn end(word: &str) -> LocalPort {
    if let Some((device, address)) = word.split_once('@') {
        let manager = Some(address.parse().unwrap());
        return LocalPort {
            device: device.to_owned(),
            port: 1,
            gid_index: None,
            cm_address: manager,
        };
    }
    let (device, index) = word.split_once(':').unwrap();
    let gid_index = Some(index.parse().unwrap());
    LocalPort { device: device.to_owned(), port: 1, gid_index, cm_address: None }
}

fn ends_of_this_machine() -> [LocalPort; 2] {
    let words = env::var("RLAUNCH_PROVER_ENDS").expect("RLAUNCH_PROVER_ENDS=rxe0:1,rxe0:1");
    let (one, other) = words.split_once(',').unwrap();
    [end(one), end(other)]
}

fn paths() -> u32 {
    env::var("RLAUNCH_PROVER_PATHS").map_or(8, |count| count.parse().unwrap())
}

fn report(outcomes: &[PathOutcome], cost: &RoundCost) {
    let mut trips: Vec<u32> = Vec::new();
    for outcome in outcomes {
        match &outcome.result {
            Ok(proved) => trips.push(proved.round_trip_ns),
            Err(fault) => println!("{}: {fault:?}", outcome.id),
        }
    }
    trips.sort_unstable();
    let each = cost.memory / u64::from(cost.queue_pairs.max(1));
    println!(
        "{} of {} carry, round trips {:?} to {:?} ns, {cost:?}: {each} bytes per queue pair",
        trips.len(),
        outcomes.len(),
        trips.first(),
        trips.last()
    );
}

#[test]
fn without_a_device_every_path_says_so() {
    let mut provers = [Prover::start(0), Prover::start(1)];
    let ended = prove(&mut provers, rounds(&[end("none0:1"), end("none1@192.0.2.1")], 0..3));
    for (outcomes, cost) in ended {
        assert_eq!((outcomes.len(), cost.queue_pairs), (3, 0));
        for outcome in outcomes {
            let fault = outcome.result.unwrap_err();
            assert_eq!((fault.step, fault.awaited_peer), (ProofStep::Prepare, false), "{fault:?}");
            assert!(!fault.cause.is_empty());
        }
    }
    for mut prover in provers {
        prover.send(&ToProver::Watch { ids: Vec::new(), beat_ms: 2000 });
        assert_eq!(prover.end(), Some(0), "it ends with its stdin");
    }
}

#[test]
fn a_frame_out_of_order_ends_it() {
    for frame in [ToProver::Go, ToProver::Connect(Vec::new())] {
        let mut prover = Prover::start(0);
        prover.send(&frame);
        assert_eq!(prover.child.wait().unwrap().code(), Some(1));
    }
}

#[test]
#[ignore = "needs an RDMA device: guests run it in stage vm"]
fn paths_are_proved_watched_and_proved_again() {
    let ends = ends_of_this_machine();
    let mut provers = [Prover::start(0), Prover::start(1)];
    for (outcomes, cost) in prove(&mut provers, rounds(&ends, 0..paths())) {
        report(&outcomes, &cost);
        assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()));
    }
    for prover in &mut provers {
        prover.send(&ToProver::Watch { ids: vec![0], beat_ms: 1000 });
    }
    for (outcomes, cost) in prove(&mut provers, rounds(&ends, 1000..1001)) {
        report(&outcomes, &cost);
        assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()));
    }
    for prover in &mut provers {
        prover.send(&ToProver::Watch { ids: vec![0, 1000], beat_ms: 1000 });
    }
    let quiet = provers[0].frames.recv_timeout(Duration::from_secs(7));
    assert!(quiet.is_err(), "nothing becomes of paths that carry: {quiet:?}");
    let [one, other] = provers;
    let begin = Instant::now();
    assert_eq!(other.end(), Some(0));
    let mut gone = Vec::new();
    while gone.len() < 2 {
        let FromProver::PathEvent(PathEvent::Down { id, how }) = one.receive() else {
            panic!("down")
        };
        println!("{:?} after its peer: path {id}: {how}", begin.elapsed());
        gone.push(id);
    }
    gone.sort_unstable();
    assert_eq!(gone, [0, 1000]);
    assert_eq!(one.end(), Some(0));
}

#[test]
#[ignore = "needs an RDMA device: guests run it in stage vm"]
fn the_dialling_end_of_each_path_measures_it() {
    let ends = ends_of_this_machine();
    let mut provers = [Prover::start(0), Prover::start(1)];
    let mut rounds = rounds(&ends, 0..2);
    rounds.iter_mut().for_each(|round| round.limits.measure_ms = 500);
    for ((outcomes, cost), node) in prove(&mut provers, rounds).into_iter().zip(0..) {
        report(&outcomes, &cost);
        for outcome in outcomes {
            let measured = outcome.result.unwrap().write_mbps;
            println!("path {}: {measured:?} Mb/s", outcome.id);
            assert_eq!(measured.is_some_and(|rate| rate > 0), outcome.id % 2 == node);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: guests run it in stage vm"]
fn what_a_peer_cannot_prepare_is_waited_for_by_the_other_end() {
    let [mine, _] = ends_of_this_machine();
    let mut provers = [Prover::start(0), Prover::start(1)];
    let [(here, _), _] = prove(&mut provers, rounds(&[mine, end("none0:1")], 0..2));
    for outcome in here {
        let fault = outcome.result.unwrap_err();
        assert_eq!((fault.step, fault.awaited_peer), (ProofStep::Exchange, true), "{fault:?}");
    }
}

#[test]
#[ignore = "needs RDMA devices of two hosts: guests run it in stage vm"]
fn who_was_not_told_the_secret_is_not_let_in() {
    let mut provers = [Prover::start(0), Prover::start(1)];
    let lie = |adverts: &mut NodeEndpoints| adverts.paths.iter_mut().for_each(|path| path.psn ^= 1);
    for (outcomes, cost) in
        prove_with_adverts(&mut provers, rounds(&ends_of_this_machine(), 0..2), lie)
    {
        report(&outcomes, &cost);
        for outcome in outcomes {
            assert_eq!(outcome.result.unwrap_err().step, ProofStep::Connect);
        }
    }
}

#[test]
fn what_is_told_is_read_by_others() {
    let adverts = NodeEndpoints { node: NodeId(1), ports: Vec::new(), paths: Vec::new() };
    assert_eq!(NodeEndpoints::decode(&adverts.encode().unwrap()).unwrap(), adverts);
}
