//! Guests at one switch: one subnet, with one port of each guest.

use crate::bench::{is_sane, rows};
use crate::support::{ALL, Field, PATIENT, Undo};
use std::net::Ipv4Addr;

#[test]
fn every_pair_meets_in_one_subnet() {
    let field = Field::new();
    let ran = field
        .rlaunch(&format!("-H {ALL} {PATIENT} --hca rxe --transport rdma --show mesh true"), &[]);
    ran.succeeded().says("mesh: 6/6 paths up, RoCE v2, 1 subnet, proved in");
    assert_eq!(ran.out.matches("RoCE v2 oob").count(), 3, "{ran}");
}

/// One port carries a queue pair from each of 8 local ranks to each of 16 remote ranks. Each queue
/// pair takes little memory.
#[test]
fn every_pair_of_24_ranks_is_proved() {
    let field = Field::new();
    let patient = PATIENT.replace("40", "80");
    let words = format!("-v -H n1:8,n2:8,n3:8 -np 24 {patient} --hca rxe --mesh full");
    let ran = field.rlaunch(&format!("{words} --transport rdma true"), &[]);
    ran.succeeded().says("mesh: 384/384 paths up, RoCE v2, 1 subnet, proved in ");
    for guest in ALL.split(',') {
        let begin = format!("mesh: {guest}: 128 queue pairs, ");
        let cost = ran.line_with(&begin).split_once(&begin).unwrap().1;
        let bytes = cost.split_once(" and ").unwrap().1.split_once(" B each").unwrap().0;
        assert!(bytes.parse::<u64>().unwrap() <= 16 << 10, "{cost}");
    }
}

/// Removes soft RoCE from a guest until the guard is dropped. Otherwise the connection manager finds
/// it at the address of Soft-iWARP.
fn without_roce(field: &Field, number: u8) -> impl Drop + '_ {
    let guest = format!("n{number}");
    field.on(&guest, "rdma link delete rxe0");
    Undo(move || {
        field.restore(&guest, "rdma link add rxe0 type rxe netdev eth1")?;
        let address = Ipv4Addr::new(10, 88, 0, number).into();
        field.await_gid(&guest, ("rxe0", 1), Some(address))
    })
}

/// Soft-iWARP closes a connection if a message comes before its receive, and there are 512 receives.
#[test]
fn sends_are_measured_over_soft_iwarp() {
    let field = Field::new();
    let _iwarp = [1, 2].map(|number| without_roce(&field, number));
    let words = "--hca siw0 --sizes 8,4K --iterations 600 --qps 2 --bidirectional";
    let sent = rows(&field, "send", words);
    sent.iter().for_each(|row| is_sane(row, (600, 2 * 2 * 600)));
}
