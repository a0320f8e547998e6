//! `rlaunch doctor` on emulated computers with soft RoCE: each fault is found first, with its cure.

use crate::support::{ALL, Field, Undo, list, text};
use rlaunch_lab::Cut;
use serde_json::Value;
use std::collections::BTreeSet;

/// Options for probes: soft RoCE answers by a guest's single processor, which may be busy for seconds.
const PROBE: &str = "--probe --mesh-timeout 20";

/// Returns the report of all guests with these options, and the exit code.
fn report(field: &Field, options: &str) -> (Option<i32>, Value) {
    let ran = field.verb(&format!("doctor -H {ALL} --json {options}"), &[]);
    let json = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran}"));
    (ran.code, json)
}

#[test]
fn healthy_guests_have_no_fault() {
    let field = Field::new();
    let (code, json) = report(&field, PROBE);
    assert_eq!((&json["errors"], &json["warnings"]), (&0.into(), &0.into()), "{json:#}");
    assert_eq!((code, &json["paths_tested"]), (Some(0), &6.into()), "{json:#}");
    let checks = json["checks"].as_array().unwrap();
    for id in ["mesh.proof", "mesh.silent", "mtu.path", "net.pair"] {
        let check = checks.iter().find(|check| check["id"] == id).unwrap();
        assert_eq!(check["state"], "ran", "{check}");
    }
}

#[test]
fn a_pulled_cable_and_a_filter_that_drops_roce_on_another_are_all_that_is_named() {
    let field = Field::new();
    let _heal = Undo(|| field.lab.heal("n1", "eth1"));
    field.lab.cut("n1", "eth1", Cut::Carrier).unwrap();
    let rule = "INPUT -i eth2 -p udp --dport 4791 -j DROP";
    let _open = Undo(|| field.restore("n2", &format!("iptables -D {rule}")));
    field.on("n2", &format!("iptables -I {rule}"));
    let (_, json) = report(&field, PROBE);
    let findings = list(&json["findings"]);
    assert_eq!(findings[0]["severity"], "error", "errors come first: {json:#}");
    let errors = findings.iter().filter(|finding| finding["severity"] == "error");
    let ids: BTreeSet<String> = errors.map(|finding| text(&finding["id"])).collect();
    assert_eq!(Vec::from_iter(ids), ["fw.roce", "link.down"], "{json:#}");
    let filter = findings.iter().find(|finding| finding["id"] == "fw.roce").unwrap();
    assert_eq!(filter["hosts"][0], "n2", "{json:#}");
}

#[test]
fn a_smaller_mtu_at_one_end_is_a_mismatch() {
    let field = Field::new();
    let before = field.on("n2", "cat /sys/class/net/eth1/mtu");
    let _restore = Undo(|| field.restore("n2", &format!("ip link set eth1 mtu {}", before.trim())));
    field.on("n2", "ip link set eth1 mtu 1500");
    let (_, json) = report(&field, "");
    let findings = list(&json["findings"]);
    let first = findings.first().unwrap_or_else(|| panic!("no finding: {json:#}"));
    assert_eq!(first["severity"], "warning", "{json:#}");
    let mut warnings = findings.iter().filter(|finding| finding["severity"] == "warning");
    assert!(warnings.all(|finding| finding["id"] == "mtu.mismatch"), "{json:#}");
}
