//! `rlaunch network` on three computers that are cabled to each other and have no addresses.

use crate::support::{ALL, Field, PATIENT, Undo};
use rlaunch_lab::LabError;

/// Addresses of the guests' ends of cables, which are also those that `rlaunch network` plans.
const ADDRESSES: [(&str, &str, &str); 6] = [
    ("n1", "eth1", "192.168.101.2"),
    ("n1", "eth2", "192.168.100.2"),
    ("n2", "eth1", "192.168.101.3"),
    ("n2", "eth2", "192.168.102.2"),
    ("n3", "eth1", "192.168.100.3"),
    ("n3", "eth2", "192.168.102.3"),
];
/// Options for emulated computers, which may be busy for a second.
const SLOW: &str = "--wait 4";

/// Takes all IPv4 addresses from the cables. They are given back when the guard is dropped.
fn without_addresses(field: &Field) -> Undo<impl FnMut() -> Result<(), LabError>> {
    let guard = Undo(|| {
        for (guest, interface, address) in ADDRESSES {
            field.restore(guest, &format!("ip address replace {address}/24 dev {interface}"))?;
        }
        for (guest, interface, address) in ADDRESSES {
            let device = if interface == "eth1" { "rxe0" } else { "rxe1" };
            field.await_gid(guest, (device, 1), address.parse().ok())?;
        }
        Ok(())
    });
    for (guest, interface, _) in ADDRESSES {
        field.on(guest, &format!("ip -4 address flush dev {interface}"));
    }
    guard
}

/// Returns the IPv4 address of an interface with its prefix length, or nothing.
fn address_of(field: &Field, guest: &str, interface: &str) -> String {
    let line = format!("ip -o -4 address show dev {interface} | awk '{{ print $4 }}'");
    field.on(guest, &line).trim().to_owned()
}

#[test]
fn three_cables_without_addresses_are_found() {
    let field = Field::new();
    let _addresses = without_addresses(&field);
    let ran = field.verb(&format!("network discover -H {ALL} {SLOW}"), &[]);
    let out = &ran.succeeded().out;
    for cable in ["n1 eth1 ── n2 eth1 ", "n1 eth2 ── n3 eth1 ", "n2 eth2 ── n3 eth2 "] {
        assert!(out.lines().any(|line| line.starts_with(cable)), "{cable}: {ran}");
    }
    assert!(out.ends_with("\n3 hosts, 3 cables: a full mesh\n"), "{ran}");
    for (guest, interface, _) in ADDRESSES {
        assert_eq!(address_of(&field, guest, interface), "", "{guest} {interface}");
    }
}

#[test]
fn given_addresses_carry_the_whole_mesh() {
    let field = Field::new();
    let _addresses = without_addresses(&field);
    let ran = field.verb(&format!("network mesh -H {ALL} {SLOW} --apply"), &[]);
    ran.succeeded().says("6 changes made; 3 links answered, 6 directions");
    for (guest, interface, address) in ADDRESSES {
        let found = address_of(&field, guest, interface);
        assert_eq!(found, format!("{address}/24"), "{guest} {interface}: {ran}");
    }
    let words = format!("-H {ALL} {PATIENT} --hca rxe --transport rdma --show mesh true");
    field.rlaunch(&words, &[]).succeeded().says("mesh: 6/6 paths up, RoCE v2, 3 subnets");
}

#[test]
fn a_plan_with_a_silent_link_is_rolled_back() {
    let field = Field::new();
    let _addresses = without_addresses(&field);
    let rule = "INPUT -i eth1 -p udp --dport 40000 -j DROP";
    let _open = Undo(|| field.restore("n2", &format!("iptables -D {rule}")));
    field.on("n2", &format!("iptables -I {rule}"));
    let ran = field.verb(&format!("network mesh -H {ALL} {SLOW} --apply"), &[]);
    assert_eq!(ran.code, Some(204), "{ran}");
    ran.says("rolled back on n1, n2, n3").says("n1 eth1 192.168.101.2 to n2 eth1 192.168.101.3");
    for (guest, interface, _) in ADDRESSES {
        assert_eq!(address_of(&field, guest, interface), "", "{guest} {interface}: {ran}");
    }
}
