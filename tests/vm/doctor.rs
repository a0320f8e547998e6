//! `rlaunch doctor` on emulated computers with soft RoCE: each fault is found first, with its cure.

use crate::support::{ALL, Field, Undo};
use rlaunch_lab::Cut;
use serde_json::Value;

/// Returns the report of all guests with these options, and the exit code.
fn report(field: &Field, options: &str) -> (Option<i32>, Value) {
    let ran = field.verb(&format!("doctor -H {ALL} --json {options}"), &[]);
    let json = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran}"));
    (ran.code, json)
}

/// Asserts that the first finding has this id and severity, and that no other finding has it as well.
fn assert_first(field: &Field, options: &str, severity: &str, id: &str) -> Value {
    let (_, json) = report(field, options);
    let findings = json["findings"].as_array().unwrap();
    let first = findings.first().unwrap_or_else(|| panic!("no finding: {json:#}")).clone();
    assert_eq!((&first["id"], &first["severity"]), (&id.into(), &severity.into()), "{json:#}");
    let of_severity = findings.iter().filter(|finding| finding["severity"] == severity);
    assert!(of_severity.clone().all(|finding| finding["id"] == id), "{json:#}");
    first
}

#[test]
fn healthy_guests_have_no_fault() {
    let field = Field::new();
    let (code, json) = report(&field, "--probe");
    assert_eq!((&json["errors"], &json["warnings"]), (&0.into(), &0.into()), "{json:#}");
    assert_eq!((code, &json["paths_tested"]), (Some(0), &6.into()), "{json:#}");
    let checks = json["checks"].as_array().unwrap();
    for id in ["mesh.proof", "mesh.silent", "mtu.path", "net.pair"] {
        let check = checks.iter().find(|check| check["id"] == id).unwrap();
        assert_eq!(check["state"], "ran", "{check}");
    }
}

#[test]
fn a_pulled_cable_is_a_link_that_is_down() {
    let field = Field::new();
    let _heal = Undo(|| field.lab.heal("n1", "eth1"));
    field.lab.cut("n1", "eth1", Cut::Carrier).unwrap();
    assert_first(&field, "--probe", "error", "link.down");
}

#[test]
fn a_filter_that_drops_roce_is_named() {
    let field = Field::new();
    let rule = "INPUT -i eth1 -p udp --dport 4791 -j DROP";
    let _open = Undo(|| field.restore("n2", &format!("iptables -D {rule}")));
    field.on("n2", &format!("iptables -I {rule}"));
    let found = assert_first(&field, "--probe", "error", "fw.roce");
    assert_eq!(found["hosts"][0], "n2", "{found:#}");
}

#[test]
fn a_smaller_mtu_at_one_end_is_a_mismatch() {
    let field = Field::new();
    let before = field.on("n2", "cat /sys/class/net/eth1/mtu");
    let _restore = Undo(|| field.restore("n2", &format!("ip link set eth1 mtu {}", before.trim())));
    field.on("n2", "ip link set eth1 mtu 1500");
    assert_first(&field, "", "warning", "mtu.mismatch");
}
