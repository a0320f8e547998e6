//! Soft-iWARP, which supports RDMA_CM only, as eRDMA does in standard mode. Soft RoCE, which has the same
//! addresses, is removed first: rlaunch fails a path on which the kernel takes it.

use crate::background::Background;
use crate::bench::{is_sane, rows};
use crate::communicator::{self, LATER};
use crate::mesh_watch;
use crate::prover::{PROVER, passes};
use crate::support::{ALL, Field, PATIENT, Undo, soft_iwarp};
use rlaunch_lab::Cut;

const IWARP: &str = "--hca siw";

#[test]
fn a_device_whose_address_another_one_has_as_well_is_named_with_that() {
    let field = Field::new();
    let ran = field.rlaunch(&format!("-H n1,n2 {PATIENT} {IWARP} hostname"), &[]);
    assert_eq!(ran.succeeded().sorted(), ["n1", "n2"], "{ran}");
    let line = ran.line_with(
        "no RDMA between n1 siw0/1 192.168.101.2 and n2 siw0/1 192.168.101.3 (ranks 0 and 1): ",
    );
    let chosen = ": the connection manager chose rxe0 instead of siw0: both have that address";
    assert!(line.contains(chosen) && line.ends_with(": TCP is used"), "{line}");
    ran.says("or remove the other: rdma link delete rxe0");
}

#[test]
fn its_mesh_is_proved_and_watched() {
    let field = mesh_watch::field();
    let _alone = soft_iwarp(&field, ALL);
    // NCCL does not support RDMA_CM.
    let script = "echo ${NCCL_IB_HCA-none} $NCCL_IB_DISABLE";
    let words = format!("-H {ALL} {PATIENT} {IWARP} --transport rdma sh -c");
    let ran = field.rlaunch(&words, &[script]);
    assert_eq!(ran.succeeded().sorted(), ["none 1"; 3], "{ran}");
    ran.says("mesh: 6/6 paths up, iWARP by RDMA_CM, 3 subnets, tested in ");
    ran.does_not_say("warning");

    let job = Background::start(&field, &mesh_watch::job("siw", ""));
    job.says("2/2 paths up");
    let _heal = Undo(|| field.lab.heal("n1", "eth1"));
    mesh_watch::loses_packets(&field, &job, ("n1", "eth1"), "link down: n1 siw0 ↔ n2 siw0");
}

/// Apart from the above: a device that has lost a connection lets a new prover wait until the kernel has given it up.
#[test]
fn a_dead_link_of_it_is_found_out() {
    let field = Field::new();
    let _alone = soft_iwarp(&field, ALL);
    let _heal = Undo(|| field.lab.heal("n1", "eth1"));
    field.lab.cut("n1", "eth1", Cut::Silent).unwrap();
    let ran = field.rlaunch(&format!("-H {ALL} {PATIENT} {IWARP} hostname"), &[]);
    assert_eq!(ran.succeeded().sorted(), ["n1", "n2", "n3"], "{ran}");
    ran.says("mesh: 4/6 paths up, iWARP by RDMA_CM, 2 subnets, tested in ");
    let line = ran.line_with(
        "no RDMA between n1 siw0/1 192.168.101.2 and n2 siw0/1 192.168.101.3 (ranks 0 and 1): ",
    );
    assert!(line.contains(": connect: n") && line.ends_with(": TCP is used"), "{line}");
    ran.says("ping -c 3 -I eth1 192.168.101.");
}

#[test]
fn ranks_talk_over_it_and_are_missed() {
    let field = Field::new();
    let _alone = soft_iwarp(&field, ALL);
    // Several starts: whether a first message comes before its receive is a matter of moments.
    for part in ["cover 3/3", "cover 8/8", "cover 8/8", "cover 8/8"] {
        communicator::holds(&field, ("n1:2,n2", 3), IWARP, part);
    }
    communicator::speak_later(&field, IWARP);
    communicator::is_killed(&field, &format!("{IWARP} {LATER}"));
    communicator::leaves(&field, IWARP);
}

/// Soft-iWARP closes a connection if a message comes before its receive, and there are 512 receives.
#[test]
fn sends_are_measured_over_it_and_no_stranger_is_let_in() {
    let field = Field::new();
    let _alone = soft_iwarp(&field, "n1,n2");
    let words = "--hca siw0 --sizes 8,4K --iterations 600 --qps 2 --bidirectional";
    let sent = rows(&field, "send", words);
    sent.iter().for_each(|row| is_sane(row, (600, 2 * 2 * 600)));

    let line =
        format!("ssh n2 'cat > /run/rlaunch-prover && chmod +x /run/rlaunch-prover' < {PROVER}");
    field.on("n1", &line);
    let ends = "siw0@192.168.101.2,siw0@192.168.101.3";
    let peer = "RLAUNCH_PROVER_PEER='ssh n2 /run/rlaunch-prover'";
    passes(&field, "who_was_not_told_the_secret_is_not_let_in", ends, peer);
}
