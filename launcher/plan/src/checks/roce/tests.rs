use super::super::Cluster;
use super::super::testing::{Machine, lines, with_cluster};
use super::*;
use crate::findings::{Finding, Step};
use crate::selection::{ConnectBy, PortOptions};
use crate::testing::triangle;
use rlaunch_bootstrap::inventory::diagnostics::{Counter, InterfaceState, RdmaPortState};
use rlaunch_bootstrap::inventory::rdma::{Gid, GidKind};

type Examine = fn(&Cluster<'_>) -> Vec<Finding>;

fn roce() -> Machine {
    Machine::recorded("esxi-vm")
}

/// Keeps some GID entries of the first port, and the addresses of its interface that they have.
fn keep(machine: Machine, is_kept: impl Fn(u16) -> bool) -> Machine {
    machine.change(|inventory| {
        let port = &mut inventory.rdma[0].ports[0];
        port.gids.retain(|gid| is_kept(gid.index));
        let left: Vec<_> = port.gids.iter().map(Gid::ip).collect();
        let netdevs =
            inventory.netdevs.iter_mut().filter(|n| Some(&n.name) == port.netdev.as_ref());
        netdevs.for_each(|netdev| netdev.addresses.retain(|(address, _)| left.contains(address)));
    })
}

fn with_options(machines: &[Machine], options: &PortOptions, examine: Examine) -> Vec<String> {
    with_cluster(machines, |mut cluster| {
        cluster.ports = options.clone();
        examine(&cluster).iter().map(super::super::testing::line).collect()
    })
}

#[test]
fn an_index_without_an_entry_is_named_with_the_right_one() {
    let options = PortOptions { gid_index: Some(9), ..PortOptions::default() };
    let found = with_options(&[roce()], &options, gids::empty);
    let expected = "error roce.gid-empty a mlx5_0/1: entry 9 of its GID table is empty; filled: 0 \
                    (fe80::e42:a1ff:fe65:1a2c v1), 1 (fe80::e42:a1ff:fe65:1a2c v2), 2 (192.168.111.11 v1), 3 \
                    (192.168.111.11 v2) — queue pairs cannot connect with --gid-index";
    assert_eq!(found, [expected]);
    let fix = with_cluster(&[roce()], |mut cluster| {
        cluster.ports = options;
        gids::empty(&cluster)[0].fix.clone()
    });
    assert_eq!(fix, [Step::Do("leave --gid-index out; rlaunch would use entry 3".into())]);
}

#[test]
fn an_empty_table_is_told_from_a_missing_address() {
    let fault = keep(roce(), |_| false);
    let expected = "error roce.gid-empty b mlx5_0/1: its GID table is empty, though its interface ens224 is up — RDMA \
                    cannot use the port";
    assert_eq!(lines(gids::empty, &[roce(), fault.clone()]), [expected]);
    let fix = |machines: &[Machine]| {
        with_cluster(machines, |cluster| format!("{:?}", gids::empty(&cluster)[0].fix))
    };
    assert!(fix(&[roce(), fault.clone()]).contains("a part of a bond"));
    let gone = fault.clone().change(|i| i.netdevs.retain(|netdev| netdev.name != "ens224"));
    let found = lines(gids::empty, &[roce(), gone]);
    assert!(found[0].contains("its interface ens224 is not there"), "{found:?}");
    let siw = || Machine::recorded("siw");
    let bare = siw().change(|i| i.netdevs.iter_mut().for_each(|n| n.addresses.clear()));
    let machines = [siw(), bare];
    assert!(lines(gids::empty, &machines)[0].contains("its interface ens2 has no IP address"));
    assert!(fix(&machines).contains("ip addr add ADDRESS/24 dev ens2"));
    assert!(lines(gids::empty, &[fault.clone(), fault]).is_empty(), "nobody wants RDMA");
    assert!(lines(gids::empty, &[roce(), roce()]).is_empty());
}

#[test]
fn versions_are_told_apart() {
    let old = keep(roce(), |index| index % 2 == 0);
    let expected = "error roce.no-v2 b mlx5_0/1: only RoCE v1 GIDs on ens224 — routers and many switches drop its \
                    packets, so it is not used";
    assert_eq!(lines(gids::only_version_1, &[roce(), old]), [expected]);
    assert!(lines(gids::only_version_1, &[roce(), roce()]).is_empty());

    let swapped = roce().change(|inventory| {
        let gids = &mut inventory.rdma[0].ports[0].gids;
        (gids[2].kind, gids[3].kind) = (GidKind::RoceV2, GidKind::IbOrRoceV1);
    });
    let machines = [roce(), swapped];
    let options = PortOptions { gid_index: Some(3), ..PortOptions::default() };
    let found = with_options(&machines, &options, gids::different_versions);
    let expected = "error roce.versions b mlx5_0/1: entry 3 of its GID table is RoCE v1, and v2 on other ports — \
                    the two versions do not connect";
    assert_eq!(found, [expected]);
    assert!(lines(gids::different_versions, &machines).is_empty());
}

#[test]
fn a_port_without_its_address_is_link_local() {
    let fault = keep(roce(), |index| index < 2);
    let expected = "error roce.link-local b mlx5_0/1: only link-local addresses on ens224 — ports of other hosts have \
                    addresses, and cannot be reached from it";
    assert_eq!(lines(gids::link_local, &[roce(), fault.clone()]), [expected]);
    assert!(lines(gids::link_local, &[fault.clone(), fault]).is_empty());
    // The second half of a Spark's card has link-local addresses on all hosts.
    let machines = triangle().map(|inventory| Machine { inventory, ..Machine::default() });
    assert!(lines(gids::link_local, &machines).is_empty());
    let mut fault = machines;
    let port = |i: &mut rlaunch_bootstrap::inventory::Inventory| {
        let device = i.rdma.iter_mut().find(|device| device.name == "rocep1s0f0").unwrap();
        device.ports[0].gids.truncate(2);
    };
    fault[2] = fault[2].clone().change(port);
    let found = lines(gids::link_local, &fault);
    assert!(found.len() == 1 && found[0].contains("c rocep1s0f0/1"), "{found:?}");
}

#[test]
fn hosts_of_two_families_do_not_connect() {
    let v6 = roce().change(|inventory| {
        for gid in &mut inventory.rdma[0].ports[0].gids {
            if gid.value.to_ipv4_mapped().is_some() {
                gid.value = "fd00::1".parse().unwrap();
            }
        }
        let netdev = inventory.netdevs.iter_mut().find(|n| n.name == "ens224").unwrap();
        netdev.addresses = vec![("fd00::1".parse().unwrap(), 64)];
    });
    let found = lines(gids::families, &[roce(), v6.clone(), roce()]);
    let expected = "error roce.family b: RoCE ports have only IPv6 addresses, those of a, c only IPv4 — GIDs of \
                    different families do not connect";
    assert_eq!(found, [expected]);
    assert!(lines(gids::families, &[v6.clone(), v6]).is_empty());
    assert!(lines(gids::families, &vec![Machine::recorded("dual-port"); 2]).is_empty());
}

#[test]
fn interfaces_of_other_namespaces_are_told_from_containers() {
    let fault = roce().change(|i| i.netdevs.retain(|netdev| netdev.name != "ens224"));
    let found = lines(gids::elsewhere, &[roce(), fault.clone()]);
    let expected = "error roce.netdev b mlx5_0/1: its interface is in another network namespace — its GIDs cannot be \
                    used here";
    assert_eq!(found, [expected]);
    let container = fault.change(|inventory| {
        inventory.system.container = Some(rlaunch_bootstrap::inventory::ContainerKind::Docker);
    });
    assert!(lines(gids::elsewhere, &[roce(), container]).is_empty());
    assert!(lines(gids::elsewhere, &[Machine::recorded("macvlan-pod")]).is_empty());
}

/// Returns a machine with this state of its RDMA port and of its interface.
fn with_state(
    port: impl FnOnce(&mut RdmaPortState),
    interface: impl FnOnce(&mut InterfaceState),
) -> Machine {
    let mut state = RdmaPortState { device: "mlx5_0".into(), port: 1, ..RdmaPortState::default() };
    let mut netdev = InterfaceState { name: "ens224".into(), ..InterfaceState::default() };
    port(&mut state);
    interface(&mut netdev);
    roce().diagnosed(|diagnostics| {
        (diagnostics.rdma_ports, diagnostics.interfaces) = (vec![state], vec![netdev]);
    })
}

#[test]
fn the_connection_managers_mode_is_changed_in_configfs() {
    let with = |mode: &str| with_state(|port| port.cm_roce_mode = Some(mode.into()), |_| ());
    let machines = [with("IB/RoCE v1")];
    let expected = "note roce.cm-mode a mlx5_0/1: the RDMA connection manager uses IB/RoCE v1 — routers and many \
                    switches drop packets of RoCE v1";
    assert_eq!(lines(manager_mode, &machines), [expected]);
    let fix = with_cluster(&machines, |cluster| manager_mode(&cluster)[0].fix.clone());
    let line =
        "echo 'RoCE v2' | sudo tee /sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode";
    assert_eq!(fix, [Step::Run(line.into())]);
    let options = PortOptions { connect: ConnectBy::RdmaCm, ..PortOptions::default() };
    assert!(with_options(&machines, &options, manager_mode)[0].starts_with("warn "));
    assert!(lines(manager_mode, &[with("RoCE v2")]).is_empty());
}

#[test]
fn congestion_control_matters_behind_a_switch() {
    let with = |reacts: &[u8]| {
        with_state(|_| (), |netdev| netdev.roce_ecn = Some((vec![3], reacts.to_vec())))
    };
    let ecn = congestion_control;
    let found = lines(ecn, &[with(&[]), with(&[3]), with(&[3])]);
    let expected = "note roce.ecn a mlx5_0/1: RoCE congestion control (ECN) is off on ens224 — throughput collapses \
                    when several hosts send to one";
    assert_eq!(found, [expected]);
    assert!(lines(ecn, &[with(&[]), with(&[])]).is_empty(), "a cable may join two hosts");
    assert!(lines(ecn, &[roce(), roce(), roce()]).is_empty());
}

#[test]
fn lost_packets_are_counted_while_they_are_lost() {
    let with = |last: u64, pfc: Option<Vec<u8>>| {
        let counter = Counter { name: "out_of_sequence".into(), first: 7, last };
        with_state(|port| port.counters = vec![counter], |netdev| netdev.pfc = pfc)
    };
    let expected = "warn roce.loss a mlx5_0/1: out_of_sequence grew by 2, and no priority has flow control (PFC) — \
                    packets of a running job are lost and sent again";
    assert_eq!(lines(losses, &[with(9, Some(vec![]))]), [expected]);
    assert!(!lines(losses, &[with(9, None)])[0].contains("PFC"));
    assert!(lines(losses, &[with(7, Some(vec![]))]).is_empty());
}

/// Returns a recorded machine with a counter of its first port that grew.
fn counting(name: &str, counter: &str) -> Machine {
    let machine = Machine::recorded(name);
    let device = machine.inventory.rdma[0].name.clone();
    machine.diagnosed(|diagnostics| {
        let counters = vec![Counter { name: counter.into(), first: 1, last: 4 }];
        let port = RdmaPortState { device, port: 1, counters, ..RdmaPortState::default() };
        diagnostics.rdma_ports = vec![port];
    })
}

#[test]
fn soft_roce_has_counters_of_its_own() {
    for counter in ["retry_exceeded_err", "out_of_seq_request", "rcvd_seq_err"] {
        let machines = [counting("rxe", counter)];
        let found = lines(losses, &machines);
        assert!(
            found.len() == 1 && found[0].contains(&format!("{counter} grew by 3")),
            "{found:?}"
        );
        let fix = with_cluster(&machines, |cluster| losses(&cluster)[0].fix.clone());
        assert_eq!(fix, [Step::Do("give soft RoCE a processor of its own, or fewer ranks".into())]);
    }
    assert!(lines(losses, &[counting("rxe", "rcvd_rnr_err")]).is_empty());
}

#[test]
fn other_fabrics_lose_no_packets_of_roce() {
    let infiniband = counting("connectx3", "out_of_sequence");
    let iwarp = counting("siw", "out_of_sequence");
    assert!(lines(losses, &[infiniband, iwarp]).is_empty());
}

#[test]
fn a_bond_is_noted() {
    let expected = "note roce.bond a mlx5_bond_0/1: its interface bond0 is a bond — one queue pair uses one port of it; \
                    rlaunch has NCCL use four for each connection";
    assert_eq!(lines(bond, &[Machine::recorded("bond")]), [expected]);
    assert!(lines(bond, &[roce()]).is_empty());
}
