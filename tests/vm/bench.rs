//! `rlaunch bench mesh` over soft RoCE: a slow cable is told from a slow host.

use crate::support::{ALL, Field, PATIENT, SILENCE, Undo, list, text};
use serde_json::Value;

/// Rate to which links are slowed down. Emulated computers manage ten times as much.
const SLOW: [&str; 2] = ["rate", "8mbit"];

/// Measures all pairs, and returns what is slow.
fn slow(field: &Field) -> Vec<String> {
    let words = "--hca rxe --transport rdma --size 64K --duration 0.3 --json";
    let ran = field.verb(&format!("bench mesh -H {ALL} {PATIENT} {SILENCE} {words}"), &[]);
    let said: Value = serde_json::from_str(&ran.succeeded().out).unwrap();
    assert_eq!(list(&said["over"]), ["RDMA"], "{ran}");
    list(&said["slow"]).iter().map(text).collect()
}

/// Slows down what these interfaces of a guest send, until the guard is dropped.
fn slowed<'a>(field: &'a Field, guest: &'a str, interfaces: &'a [&str]) -> impl Drop + use<'a> {
    for interface in interfaces {
        field.lab.netem(guest, interface, &SLOW).unwrap();
    }
    Undo(move || interfaces.iter().try_for_each(|interface| field.lab.netem(guest, interface, &[])))
}

#[test]
fn a_slow_cable_is_told_from_a_slow_host() {
    let field = Field::new();
    {
        let _ends = (slowed(&field, "n1", &["eth1"]), slowed(&field, "n2", &["eth1"]));
        let slow = slow(&field);
        let cable = "link n1 rxe0/1 (eth1) – n2 rxe0/1 (eth1): ";
        assert!(matches!(&slow[..], [only] if only.starts_with(cable)), "{slow:?}");
    }
    let _host = slowed(&field, "n3", &["eth1", "eth2"]);
    let slow = slow(&field);
    assert!(matches!(&slow[..], [only] if only.starts_with("host n3: ")), "{slow:?}");
}
