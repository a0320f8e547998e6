//! `rlaunch doctor --fix` on emulated computers with soft RoCE: faults of RDMA are seen, fixed, proved gone, and back after
//! `rlaunch down`.
//!
//! An examination takes seconds there, so that one is of several faults.

use crate::support::{Field, Undo, list, text};
use serde_json::Value;

/// Guests with a cable between them, of which the second has faults.
const PAIR: &str = "n1,n2";

/// Fault that rlaunch fixes.
struct Fault {
    id: &'static str,
    /// Lines that make it and take it back.
    make: &'static str,
    restore: &'static str,
    /// Line that prints what it is about.
    print: &'static str,
}

const SHARED_MEMORY: &str = "findmnt -no OPTIONS /dev/shm | tail -n 1 | tr , '\\n' | grep -E '^(ro|rw|size=.*|nr_inodes=.*)$' | sort";

/// Makes faults on `n2`, fixes them, and undoes that. `others` are faults that are there as well, and stay. Returns what came of
/// each fix.
fn are_fixed_and_undone(
    field: &Field,
    hosts: &str,
    faults: &[Fault],
    others: &[&str],
) -> Vec<String> {
    let _healthy = Undo(|| faults.iter().try_for_each(|fault| field.restore("n2", fault.restore)));
    faults.iter().for_each(|fault| drop(field.on("n2", fault.make)));
    let print = || faults.iter().map(|fault| field.on("n2", fault.print)).collect::<Vec<_>>();
    let before = print();
    let ids: Vec<&str> =
        faults.iter().map(|fault| fault.id).chain(others.iter().copied()).collect();
    let words = format!("--probe=never --json --fix {} --yes", ids.join(","));
    let ran = field.verb(&format!("doctor -H {hosts} {words}"), &[]);
    let report: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran}"));
    let fixes = list(&report["fixes"]).iter();
    let mut outcomes: Vec<String> =
        fixes.map(|fix| text(&fix["id"]) + " " + &text(&fix["outcome"])).collect();
    outcomes.sort_unstable();
    let left = list(&report["findings"]).iter().map(|finding| text(&finding["id"]));
    let left: Vec<String> = left.filter(|id| ids.contains(&id.as_str())).collect();
    assert_eq!(left, others, "{ran}");
    for ((fault, before), after) in faults.iter().zip(&before).zip(print()) {
        assert_ne!(after, *before, "{}: {ran}", fault.id);
    }
    let undone = field.verb(&format!("down -H {hosts}"), &[]);
    undone.succeeded();
    assert_eq!(print(), before, "{ran}{undone}");
    outcomes
}

/// A clock is left to the time service, which guests do not have. The other faults are none of its business.
#[test]
fn faults_of_one_host_are_fixed_beside_one_that_cannot_be() {
    let field = Field::new();
    let _clock = Undo(|| field.restore("n2", "date -s @$(($(date +%s) - 90))"));
    field.on("n2", "date -s @$(($(date +%s) + 90))");
    let faults = [
        // The other cable has the usual MTU.
        Fault {
            id: "mtu.mismatch",
            make: "ip link set eth1 mtu 1500",
            restore: "ip link set eth1 mtu $(cat /sys/class/net/eth2/mtu)",
            print: "cat /sys/class/net/eth1/mtu",
        },
        // An interface keeps its IPv4 address while it is down.
        Fault {
            id: "link.down",
            make: "ip link set eth2 down",
            restore: "ip link set eth2 up",
            print: "ip -o link show eth2 | grep -o '[<,]UP[,>]' || echo down",
        },
        Fault {
            id: "fw.roce",
            make: "iptables -I INPUT -i eth1 -p udp --dport 4791 -j DROP",
            restore: "iptables -D INPUT -i eth1 -p udp --dport 4791 -j DROP",
            print: "iptables -S INPUT",
        },
        Fault {
            id: "lim.shm",
            make: "mount -o remount,size=1m /dev/shm",
            restore: "mount -o remount,size=50% /dev/shm",
            print: SHARED_MEMORY,
        },
    ];
    let outcomes = are_fixed_and_undone(&field, PAIR, &faults, &["clock.offset"]);
    let expected = [
        "clock.offset failed", "fw.roce fixed", "lim.shm fixed", "link.down fixed",
        "mtu.mismatch fixed",
    ];
    assert_eq!(outcomes, expected);
}

/// The other faults of /dev/shm.
#[test]
fn shared_memory_takes_files_again() {
    let field = Field::new();
    let faults = [
        ("mount -o remount,ro /dev/shm", "mount -o remount,rw /dev/shm"),
        // As many files as there are.
        (
            "mount -o remount,nr_inodes=$(df --output=iused /dev/shm | tail -n 1 | tr -d ' ') /dev/shm",
            "mount -o remount,nr_inodes=1m /dev/shm",
        ),
    ];
    for (make, restore) in faults {
        let fault = Fault { id: "lim.shm", make, restore, print: SHARED_MEMORY };
        assert_eq!(are_fixed_and_undone(&field, "n2", &[fault], &[]), ["lim.shm fixed"], "{make}");
    }
}
