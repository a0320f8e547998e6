//! Ports of two hosts that are paired, and messages if no two ports can be.

use crate::support::{ALL, Field, PATIENT, list, text};
use serde_json::Value;

/// Returns the rank table of a job on all guests.
fn table(field: &Field, options: &str) -> Value {
    let words = format!("-H {ALL} --mesh off {options} --show rank-table=json true");
    serde_json::from_str(&field.rlaunch(&words, &[]).succeeded().out).unwrap()
}

/// Returns the devices of a node that have an address in `network`, which is written like
/// `10.0.0.0/24`.
fn devices_in(table: &Value, node: usize, network: &str) -> Vec<String> {
    let nics = list(&table["nodes"][node]["nics"]);
    let is_in = |nic: &&Value| list(&nic["networks"]).iter().any(|own| own == network);
    nics.iter().filter(is_in).map(|nic| text(&nic["device"])).collect()
}

#[test]
fn each_cable_is_a_network_of_two_nodes() {
    let field = Field::new();
    let table = table(&field, "");
    assert_eq!(table["rule"], "shared_memory_then_rdma_then_tcp");
    assert_eq!(list(&table["exceptions"]), &[] as &[Value]);
    for (network, ends) in [
        ("192.168.101.0/24", [(0, "rxe0"), (1, "rxe0")]),
        ("192.168.100.0/24", [(0, "rxe1"), (2, "rxe0")]),
        ("192.168.102.0/24", [(1, "rxe1"), (2, "rxe1")]),
    ] {
        for (node, device) in ends {
            let devices = devices_in(&table, node, network);
            let soft_iwarp = device.replace("rxe", "siw");
            assert_eq!(devices, [device, &soft_iwarp], "{network} on node {node}");
        }
        let others = (0..3).filter(|node| ends.iter().all(|(end, _)| end != node));
        assert!(others.into_iter().all(|node| devices_in(&table, node, network).is_empty()));
    }
    for nic in table["nodes"].as_array().unwrap().iter().flat_map(|node| list(&node["nics"])) {
        let is_rxe = text(&nic["device"]).starts_with("rxe");
        assert_eq!(nic["transport"], if is_rxe { "roce" } else { "iwarp" });
        assert_eq!(nic["software"], true);
        assert_eq!(nic["gid_index"].is_u64(), is_rxe, "{nic}");
    }
}

#[test]
fn people_see_which_ports_meet() {
    let field = Field::new();
    let ran = field.rlaunch(&format!("-H {ALL} --mesh off --show mesh true"), &[]);
    let wanted = "\
ranks  hosts  by           from                        to                          mtu
0-1    n1-n2  RoCE v2 oob  rxe0/1 GID 1 192.168.101.2  rxe0/1 GID 1 192.168.101.3  4096
0-2    n1-n3  RoCE v2 oob  rxe1/1 GID 1 192.168.100.2  rxe0/1 GID 1 192.168.100.3  4096
1-2    n2-n3  RoCE v2 oob  rxe1/1 GID 1 192.168.102.2  rxe1/1 GID 1 192.168.102.3  4096
";
    assert_eq!(ran.succeeded().out, wanted, "{ran}");
    ran.does_not_say("mesh: ");
}

#[test]
fn what_cannot_be_as_it_was_asked_is_said() {
    let field = Field::new();
    let words = "-H n1,n2 --connect oob --hca siw --transport rdma true";
    field.rlaunch(words, &[]).refused().says("siw0/1 takes RDMA_CM only (node type RNIC)");
    let words = "-H n1,n2 --hca rxe --gid-index 3 --transport rdma true";
    field.rlaunch(words, &[]).refused().says("rxe0/1: entry 3 of its GID table is empty");
}

#[test]
fn nccl_is_told_of_the_mesh() {
    let field = Field::new();
    let script =
        "echo $NCCL_IB_HCA $NCCL_CROSS_NIC $NCCL_IB_SUBNET_AWARE_ROUTING $NCCL_IB_GID_INDEX";
    let ran = field.rlaunch(&format!("-H {ALL} {PATIENT} --require-rdma sh -c"), &[script]);
    assert_eq!(ran.succeeded().sorted(), ["=rxe0:1,rxe1:1 1 1 1"; 3], "{ran}");
}
