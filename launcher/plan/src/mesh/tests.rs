//! Proofs of jobs on recorded machines, with faults on chosen paths.

use super::*;
use crate::testing::{MeshJob, inventory, triangle};
use rlaunch_bootstrap::protocol::mesh::ProofStep;

/// Tells whether a path is between ranks 0 and 1.
fn is_first_cable(proof: &Proof) -> bool {
    (proof.a, proof.b) == (Rank(0), Rank(1))
}

#[test]
fn a_mesh_that_works_is_one_line() {
    let mut job = MeshJob::on(triangle().to_vec(), 1);
    let table = job.prove(MeshMode::Auto, |_| None);
    let summary = job.mesh.summary(&table, MeshMode::Auto);
    assert_eq!(summary, "mesh: 6/6 paths up, RoCE v2, 3 subnets, tested in 1 ms");
    assert_eq!((job.mesh.rounds, job.mesh.failures().len()), (1, 0));
    let shown = format_table(&table, &job.mesh);
    assert!(shown.lines().nth(1).is_some_and(|line| line.ends_with("41 us")), "{shown}");
}

#[test]
fn a_pair_that_nothing_connects_goes_by_tcp() {
    let mut job = MeshJob::on(triangle().to_vec(), 1);
    let table =
        job.prove(MeshMode::Auto, |proof| is_first_cable(proof).then_some(ProofStep::Token));
    assert_eq!(table.pair(Rank(0), Rank(1)).unwrap().connect, PairTransport::Tcp);
    assert!(is_rdma(table.pair(Rank(0), Rank(2)).unwrap().connect));
    assert_eq!(job.mesh.rounds, 2, "once more, then never again");
    let summary = job.mesh.summary(&table, MeshMode::Auto);
    assert!(summary.starts_with("mesh: 4/6 paths up, RoCE v2, 2 subnets"), "{summary}");
    let [(result, failure)] = job.mesh.failures()[..] else { panic!("one line") };
    let (line, hint) = job.mesh.failure_line(&table, result, failure);
    assert_eq!(
        line,
        "no RDMA between a rocep1s0f0/1 GID 3 192.168.100.2 and b rocep1s0f0/1 GID 3 192.168.100.3 \
         (ranks 0 and 1): token: b: transport retry counter exceeded (status 12): TCP is used"
    );
    assert!(hint.is_some_and(|hint| hint.contains("UDP port 4791")));
    let refused = job.mesh.conclude(&table, Transport::Rdma, MeshMode::Auto).unwrap_err();
    assert!(refused.message.starts_with("mesh: 4/6 paths up"), "{refused:?}");
}

/// Each node has two ranks, so four pairs of ranks share each cable.
#[test]
fn what_worked_between_nics_that_are_left_is_not_counted() {
    let mut job = MeshJob::on(triangle().to_vec(), 2);
    let table = job.prove(MeshMode::Auto, |proof| {
        ((proof.a, proof.b) == (Rank(0), Rank(2))).then_some(ProofStep::Connect)
    });
    let summary = job.mesh.summary(&table, MeshMode::Auto);
    assert!(summary.starts_with("mesh: 16/24 paths up"), "{summary}");
    assert_eq!(job.mesh.watched(&table).len(), 2);
}

#[test]
fn a_moment_of_silence_is_forgiven() {
    let mut job = MeshJob::on(triangle().to_vec(), 1);
    let once = std::cell::Cell::new(true);
    let table = job.prove(MeshMode::Auto, |proof| {
        (is_first_cable(proof) && once.replace(false)).then_some(ProofStep::Token)
    });
    assert!(is_rdma(table.pair(Rank(0), Rank(1)).unwrap().connect));
    assert_eq!(job.mesh.failures().len(), 0);
    assert!(job.mesh.conclude(&table, Transport::Rdma, MeshMode::Auto).is_ok());
}

/// Four paths share the cable, and the others carry large packets.
#[test]
fn a_large_packet_that_is_lost_once_makes_none_smaller() {
    let mut job = MeshJob::on(triangle().to_vec(), 2);
    let once = std::cell::Cell::new(true);
    let table = job.prove(MeshMode::Full, |proof| {
        let is_one = (proof.a, proof.b) == (Rank(0), Rank(2));
        (is_one && once.replace(false)).then_some(ProofStep::Block)
    });
    assert_eq!(table.pair(Rank(0), Rank(2)).unwrap().mtu, Some(4096));
    assert_eq!(job.mesh.failures().len(), 0);
}

#[test]
fn packets_are_made_smaller_where_only_large_ones_get_lost() {
    let mut job = MeshJob::on(triangle().to_vec(), 1);
    let table = job.prove(MeshMode::Auto, |proof| {
        (is_first_cable(proof) && proof.mtu.is_none()).then_some(ProofStep::Block)
    });
    assert_eq!(table.pair(Rank(0), Rank(1)).unwrap().mtu, Some(1024));
    assert_eq!(table.pair(Rank(0), Rank(2)).unwrap().mtu, Some(4096));
    let [(result, failure)] = job.mesh.failures()[..] else { panic!("one line") };
    let (line, hint) = job.mesh.failure_line(&table, result, failure);
    assert!(line.starts_with("only small packets pass between a "), "{line}");
    assert!(line.ends_with("MTU 1024 works and is used"), "{line}");
    assert!(hint.is_some_and(|hint| hint.starts_with("something between ")));
    assert!(job.mesh.conclude(&table, Transport::Rdma, MeshMode::Auto).is_ok());
}

#[test]
fn other_ports_are_tried_before_tcp() {
    let mut job = MeshJob::on(vec![inventory("dgx"), inventory("dgx")], 1);
    let first = job.table().pair(Rank(0), Rank(1)).unwrap();
    let nic = first.nic_a.unwrap();
    let table =
        job.prove(MeshMode::Auto, |proof| (proof.from.nic == nic).then_some(ProofStep::Connect));
    let pair = table.pair(Rank(0), Rank(1)).unwrap();
    assert!(is_rdma(pair.connect) && pair.nic_a != Some(nic), "{pair:?}");
    let (result, failure) = job.mesh.failures()[0];
    let (line, _) = job.mesh.failure_line(&table, result, failure);
    assert!(line.ends_with("other ports are used"), "{line}");
}

#[test]
fn large_jobs_prove_each_pair_of_ports_once() {
    let job = MeshJob::on(vec![inventory("dgx"), inventory("dgx")], 40);
    let table = job.table();
    let full = paths::wanted(&table, MeshMode::Full);
    let each: BTreeSet<(NicId, NicId)> = full.iter().map(Proof::nics).collect();
    let auto = paths::wanted(&table, MeshMode::Auto);
    assert_eq!((full.len(), auto.len()), (40 * 40, each.len()));
    assert_eq!(paths::wanted(&table, MeshMode::Off), []);
}
