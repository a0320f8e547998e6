//! `rlaunch network` on three computers that are cabled to each other and have no addresses.

use crate::support::{ADDRESSES, ALL, Field, PATIENT, Undo, without_addresses};

/// Options for emulated computers, which may be busy for a second.
const SLOW: &str = "--wait 4";

/// Returns guest, interface and address of all ends of cables that have an IPv4 address.
fn addresses(field: &Field) -> Vec<String> {
    let of_guest = |guest: &str| -> Vec<String> {
        let out =
            field.on(guest, "ip -o -4 address show | awk '$2 ~ /^eth[12]$/ { print $2, $4 }'");
        out.lines().map(|line| format!("{guest} {line}")).collect()
    };
    ALL.split(',').flat_map(of_guest).collect()
}

#[test]
fn three_cables_without_addresses_are_found_and_given_some_that_carry_the_whole_mesh() {
    let field = Field::new();
    let _addresses = without_addresses(&field);
    let apply = format!("network mesh -H {ALL} {SLOW} --apply");
    {
        // A plan with a silent link is rolled back.
        let rule = "INPUT -i eth1 -p udp --dport 40000 -j DROP";
        let _open = Undo(|| field.restore("n2", &format!("iptables -D {rule}")));
        field.on("n2", &format!("iptables -I {rule}"));
        let ran = field.verb(&apply, &[]);
        assert_eq!(ran.code, Some(204), "{ran}");
        ran.says("rolled back on n1, n2, n3");
        ran.says("n1 eth1 192.168.101.2 to n2 eth1 192.168.101.3");
        assert_eq!(addresses(&field), [""; 0], "{ran}");
    }
    let ran = field.verb(&format!("network discover -H {ALL} {SLOW}"), &[]);
    let out = &ran.succeeded().out;
    for cable in ["n1 eth1 ── n2 eth1 ", "n1 eth2 ── n3 eth1 ", "n2 eth2 ── n3 eth2 "] {
        assert!(out.lines().any(|line| line.starts_with(cable)), "{cable}: {ran}");
    }
    assert!(out.ends_with("\n3 hosts, 3 cables: a full mesh\n"), "{ran}");
    assert_eq!(addresses(&field), [""; 0], "{ran}");

    let ran = field.verb(&apply, &[]);
    ran.succeeded().says("6 changes made; 3 links answered, 6 directions");
    let planned =
        ADDRESSES.map(|(guest, interface, address)| format!("{guest} {interface} {address}/24"));
    assert_eq!(addresses(&field), planned, "{ran}");
    let words = format!("-H {ALL} {PATIENT} --hca rxe --transport rdma --show mesh true");
    field.rlaunch(&words, &[]).succeeded().says("mesh: 6/6 paths up, RoCE v2, 3 subnets");
}
