//! Checks that the guests are as the other tests assume.

use crate::support::{ALL, Field, Undo};
use crate::tools;
use rlaunch_lab::Cut;
use rlaunch_lab::command::wait_until;
use std::thread;
use std::time::Duration;

#[test]
fn every_guest_has_soft_roce_and_soft_iwarp() {
    let field = Field::new();
    for guest in ALL.split(',') {
        assert_eq!(field.on(guest, "hostname").trim(), guest);
        let links = tools::links(&field, guest);
        let names: Vec<&String> = links.keys().collect();
        assert_eq!(names, ["rxe0", "rxe1", "siw0", "siw1"], "{guest}");
        for link in links.values() {
            assert_eq!(link["state"], "ACTIVE", "{guest}: {link}");
        }
        let files = field.on(guest, "ls /dev/infiniband");
        for number in 0..4 {
            let file = format!("uverbs{number}");
            assert!(files.lines().any(|line| line == file), "{guest}: {files}");
        }
        assert_eq!(field.on(guest, "ulimit -l").trim(), "unlimited");
    }
}

#[test]
fn the_first_guest_alone_sees_the_binaries() {
    let field = Field::new();
    assert!(field.on("n1", "ls /share").contains("rlaunch"));
    for guest in ["n2", "n3"] {
        assert_eq!(field.on(guest, "ls /share"), "");
    }
}

#[test]
fn guests_reach_each_other_by_name() {
    let field = Field::new();
    for (from, to) in [("n1", "n2"), ("n2", "n3"), ("n3", "n1")] {
        assert_eq!(field.on(from, &format!("ssh {to} hostname")).trim(), to);
    }
}

#[test]
fn verbs_carry_data() {
    let field = Field::new();
    let words = "ibv_rc_pingpong -d rxe0 -g 1 -n 200";
    thread::scope(|scope| {
        let server = scope.spawn(|| field.on("n2", words));
        let listens = || Ok(field.on("n2", "ss -ltn").contains(":18515"));
        wait_until(Duration::from_secs(60), "the other end of the ping-pong", listens).unwrap();
        let client = field.on("n1", &format!("{words} n2"));
        assert!(client.contains("200 iters in"), "{client}");
        assert!(server.join().unwrap().contains("200 iters in"));
    });
}

/// Command on n1 that succeeds if n1's eth1 reaches n2's eth1.
const REACHES: &str = "ping -c 1 -W 20 192.168.101.3";
/// Command like [`REACHES`] with a shorter time limit, for a link that is expected to be cut.
const DOES_NOT: &str = "ping -c 1 -W 2 192.168.101.3";

#[test]
fn a_pulled_cable_is_seen_at_both_ends() {
    let field = Field::new();
    field.on("n1", REACHES);
    let heal = Undo(|| field.lab.heal("n1", "eth1"));
    field.lab.cut("n1", "eth1", Cut::Carrier).unwrap();
    for guest in ["n1", "n2"] {
        let links = tools::links(&field, guest);
        assert_eq!(links["rxe0"]["state"], "DOWN", "{guest}");
        assert_eq!(links["rxe1"]["state"], "ACTIVE", "{guest}");
    }
    assert_ne!(field.tries("n1", DOES_NOT).code, Some(0));
    let of_n1 = &field.inventories("n1")[0].1;
    let ports = |name: &str| {
        let mut devices = of_n1["rdma"].as_array().unwrap().iter();
        devices.find(|device| device["name"] == name).unwrap()["ports"][0].clone()
    };
    assert_eq!(ports("rxe0")["state"], "down");
    assert_eq!(ports("rxe1")["state"], "active");
    drop(heal);
    for guest in ["n1", "n2"] {
        assert_eq!(tools::links(&field, guest)["rxe0"]["state"], "ACTIVE", "{guest}");
    }
    field.on("n1", REACHES);
}

#[test]
fn a_silent_cut_is_not_seen() {
    let field = Field::new();
    let heal = Undo(|| field.lab.heal("n1", "eth1"));
    field.lab.cut("n1", "eth1", Cut::Silent).unwrap();
    assert_ne!(field.tries("n1", DOES_NOT).code, Some(0));
    assert_eq!(tools::links(&field, "n1")["rxe0"]["state"], "ACTIVE");
    drop(heal);
    field.on("n1", REACHES);
}

#[test]
fn links_drop_packets_when_told_to() {
    let field = Field::new();
    field.lab.netem("n1", "eth1", &["loss", "100%"]).unwrap();
    let end = Undo(|| field.lab.netem("n1", "eth1", &[]));
    assert_ne!(field.tries("n1", DOES_NOT).code, Some(0));
    drop(end);
    field.on("n1", REACHES);
}
