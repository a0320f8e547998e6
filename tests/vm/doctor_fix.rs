//! `rlaunch doctor --fix` on emulated computers with soft RoCE: faults of RDMA are seen, fixed, proved gone, and back after
//! `rlaunch down`.

use crate::support::{ALL, Field, Undo, list, text};
use serde_json::Value;

fn report(field: &Field, words: &str) -> Value {
    let ran = field.verb(&format!("doctor -H {ALL} --json {words}"), &[]);
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran}"))
}

fn has(report: &Value, id: &str) -> bool {
    let of_finding = |finding: &Value| {
        finding["id"] == id || list(&finding["consequences"]).iter().any(|one| one["id"] == id)
    };
    list(&report["findings"]).iter().any(of_finding)
}

/// Makes a fault on `n2` by the line `make`, and takes it back by `undo` at last. `line` prints what the fault changes.
fn is_fixed_and_undone(field: &Field, id: &str, (make, undo): (&str, &str), line: &str) {
    let _healthy = Undo(|| field.restore("n2", undo));
    field.on("n2", make);
    let before = field.on("n2", line);
    assert!(has(&report(field, ""), id), "{id} is not seen");
    let fixed = report(field, &format!("--fix {id} --yes"));
    let fixes = list(&fixed["fixes"]);
    let outcomes: Vec<String> =
        fixes.iter().map(|fix| text(&fix["id"]) + " " + &text(&fix["outcome"])).collect();
    assert_eq!(outcomes, [format!("{id} fixed")], "{fixed:#}");
    assert!(!has(&fixed, id), "{fixed:#}");
    assert_ne!(field.on("n2", line), before, "{fixed:#}");
    field.verb(&format!("down -H {ALL}"), &[]).succeeded();
    assert_eq!(field.on("n2", line), before, "{id} is not undone");
}

#[test]
#[ignore = "takes minutes, and changes with fixes of RDMA alone: run before a release"]
fn a_smaller_mtu_at_one_end_is_raised() {
    let field = Field::new();
    let before = field.on("n2", "cat /sys/class/net/eth1/mtu");
    let undo = format!("ip link set eth1 mtu {}", before.trim());
    let lines = ("ip link set eth1 mtu 1500", &*undo);
    is_fixed_and_undone(&field, "mtu.mismatch", lines, "cat /sys/class/net/eth1/mtu");
}

/// An interface keeps its IPv4 address while it is down.
#[test]
#[ignore = "takes minutes, and changes with fixes of RDMA alone: run before a release"]
fn an_interface_that_is_down_is_set_up() {
    let field = Field::new();
    let lines = ("ip link set eth1 down", "ip link set eth1 up");
    let flags = "ip -o link show eth1 | grep -o '[<,]UP[,>]' || echo down";
    is_fixed_and_undone(&field, "link.down", lines, flags);
}

const SHARED_MEMORY: &str = "findmnt -no OPTIONS /dev/shm | tail -n 1 | tr , '\\n' | grep -E '^(ro|rw|size=.*|nr_inodes=.*)$' | sort";

/// Each kind of fault of /dev/shm, with what gives it back at last.
#[test]
#[ignore = "takes minutes, and changes with fixes of RDMA alone: run before a release"]
fn shared_memory_is_given_room_and_taken_back() {
    let field = Field::new();
    for (option, healthy) in
        [("size=1m", "size=50%"), ("ro", "rw"), ("nr_inodes=1", "nr_inodes=1m")]
    {
        let remount = |option: &str| format!("mount -o remount,{option} /dev/shm");
        let lines = (remount(option), remount(healthy));
        is_fixed_and_undone(&field, "lim.shm", (&lines.0, &lines.1), SHARED_MEMORY);
    }
}

#[test]
#[ignore = "takes minutes, and changes with fixes of RDMA alone: run before a release"]
fn soft_roce_is_let_through_the_packet_filter() {
    let field = Field::new();
    let rule = "INPUT -i eth1 -p udp --dport 4791 -j DROP";
    let (make, undo) = (format!("iptables -I {rule}"), format!("iptables -D {rule}"));
    is_fixed_and_undone(&field, "fw.roce", (&make, &undo), "iptables -S INPUT");
}

#[test]
#[ignore = "takes minutes, and changes with fixes of RDMA alone: run before a release"]
fn the_clock_waits_for_the_time_service() {
    let field = Field::new();
    let _back = Undo(|| field.restore("n2", "date -s @$(($(date +%s) - 90))"));
    field.on("n2", "date -s @$(($(date +%s) + 90))");
    let fixed = report(&field, "--fix clock.offset");
    let fix = &list(&fixed["fixes"])[0];
    let outcome = text(&fix["outcome"]);
    // A guest may have no time service at all, and that is said.
    assert!(outcome == "waits" || outcome == "failed", "{fix:#}");
    assert!(has(&fixed, "clock.offset") && fix["why"].is_string(), "{fixed:#}");
    field.verb(&format!("down -H {ALL}"), &[]);
}
