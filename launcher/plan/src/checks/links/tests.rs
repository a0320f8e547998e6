use super::super::testing::{Machine, lines, with_cluster};
use super::*;
use crate::findings::Step;
use crate::testing::triangle;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::RdmaPortState;

fn machine(inventory: &Inventory) -> Machine {
    Machine { inventory: inventory.clone(), ..Machine::default() }
}

/// Takes the link of a port away.
fn cut(machine: Machine, device: &str) -> Machine {
    machine.change(|inventory| {
        let device = inventory.rdma.iter_mut().find(|known| known.name == device).unwrap();
        let port = &mut device.ports[0];
        (port.state, port.physical_state) = (PortState::Down, Some("Polling".into()));
        let netdevs = inventory.netdevs.iter_mut();
        netdevs.filter(|n| Some(&n.name) == port.netdev.as_ref()).for_each(|n| n.running = false);
    })
}

#[test]
fn the_only_port_of_a_host_is_an_error() {
    let healthy = Machine::recorded("esxi-vm");
    let fault = cut(healthy.clone(), "mlx5_0");
    let expected =
        "error link.down b mlx5_0/1: DOWN (Polling): no link — the host has no other RDMA port";
    assert_eq!(lines(down, &[healthy.clone(), fault.clone()]), [expected]);
    assert_eq!(lines(down, &[fault.clone(), fault.clone()]).len(), 2);
    assert!(lines(down, std::slice::from_ref(&fault))[0].starts_with("note "));
    assert!(lines(down, &[healthy.clone(), healthy.clone()]).is_empty());
    let off = fault.diagnosed(|diagnostics| {
        diagnostics.interfaces =
            vec![InterfaceState { name: "ens224".into(), ..InterfaceState::default() }];
    });
    let fix = with_cluster(&[healthy, off], |cluster| down(&cluster)[0].fix.clone());
    assert_eq!(fix[0], Step::Run("sudo ip link set dev ens224 up".into()));
}

#[test]
fn a_port_of_infiniband_is_not_cured_by_its_interface() {
    let fault = |physical: &str| {
        let cut = cut(Machine::recorded("connectx3"), "mlx4_0");
        cut.change(|inventory| {
            let port = &mut inventory.rdma[0].ports[0];
            (port.physical_state, port.netdev) = (Some(physical.into()), Some("ib0".into()));
        })
    };
    let fix = |physical: &str| {
        let machines = [Machine::recorded("connectx3"), fault(physical)];
        with_cluster(&machines, |cluster| format!("{:?}", down(&cluster)[0].fix))
    };
    for fix in [fix("Disabled"), fix("Polling")] {
        assert!(!fix.contains("ip link"), "{fix}");
        assert!(fix.contains("ibportstate -C mlx4_0 -P 1 -D 0 1 query"), "{fix}");
        assert!(fix.contains("switch port"), "{fix}");
    }
    assert!(fix("Disabled").contains("switched off") && !fix("Polling").contains("switched off"));
}

#[test]
fn ports_that_nobody_uses_are_not_mentioned() {
    for name in ["connectx3", "erdma-compat", "erdma-standard", "sriov", "no-rdma"] {
        assert!(lines(down, &vec![Machine::recorded(name); 2]).is_empty(), "{name}");
    }
}

#[test]
fn a_cable_of_a_mesh_is_an_error_and_one_of_eight_rails_is_not() {
    let [a, b, c] = triangle().map(|inventory| machine(&inventory));
    assert!(lines(down, &[a.clone(), b.clone(), c.clone()]).is_empty());
    let found = lines(down, &[a, cut(b, "rocep1s0f1"), c]);
    let expected = "error link.down b rocep1s0f1/1: DOWN (Polling): no link — RDMA to c needs it";
    assert_eq!(found, [expected]);
    let dgx = || Machine::recorded("dgx");
    let found = lines(down, &[dgx(), cut(dgx(), "mlx5_5")]);
    let expected =
        "note link.down b mlx5_5/1: DOWN (Polling): no link — other hosts use one port more";
    assert_eq!(found, [expected]);
}

#[test]
fn a_port_next_to_gpus_is_a_warning() {
    let found = lines(down, &vec![Machine::recorded("ack-node"); 2]);
    let expected = "warn link.down a rocep156s0/1: DOWN (Disabled): no link — GPUs next to it use a NIC of another \
                    NUMA node";
    assert_eq!(found[0], expected);
}

#[test]
fn an_active_port_without_a_carrier_has_no_link() {
    let fault = Machine::recorded("siw")
        .change(|inventory| inventory.netdevs.iter_mut().for_each(|n| n.running = false));
    let found = lines(down, &[Machine::recorded("siw"), fault]);
    let expected =
        "error link.down b siw0/1: ens2 has no carrier — the host has no other RDMA port";
    assert_eq!(found, [expected]);
}

/// Returns a machine with a counter of its RDMA port, or of its interface if `port` is false.
fn counting(name: &str, first: u64, last: u64, port: bool) -> Machine {
    Machine::recorded("esxi-vm").diagnosed(|diagnostics| {
        let counters = vec![Counter { name: name.into(), first, last }];
        let state = RdmaPortState { device: "mlx5_0".into(), port: 1, ..RdmaPortState::default() };
        let interface = InterfaceState { name: "ens224".into(), ..InterfaceState::default() };
        match port {
            true => diagnostics.rdma_ports = vec![RdmaPortState { counters, ..state }],
            false => diagnostics.interfaces = vec![InterfaceState { counters, ..interface }],
        }
        diagnostics.interval_ms = 1500;
    })
}

#[test]
fn errors_that_grow_are_told_from_old_ones() {
    let found = |name, first, last, port| lines(errors, &[counting(name, first, last, port)]);
    let expected = "warn link.errors a mlx5_0/1: symbol_error grew by 3 in 1.5 s — retries slow data down, and may \
                    end a job";
    assert_eq!(found("symbol_error", 5, 8, true), [expected]);
    assert!(
        found("rx_crc_errors", 5, 8, false)[0].starts_with("warn link.errors a mlx5_0/1: rx_crc")
    );
    assert!(found("symbol_error", 2000, 2000, true)[0].starts_with("note link.errors"));
    assert!(found("symbol_error", 5, 5, true).is_empty());
    assert!(found("port_xmit_wait", 5, 9000, true).is_empty());
}

#[test]
fn links_that_come_and_go_are_named() {
    let found = lines(flaps, &[counting("link_downed", 1, 2, true)]);
    let expected = "warn link.flaps a mlx5_0/1: link_downed grew by 1 in 1.5 s — each loss breaks the connections of \
                    running jobs";
    assert_eq!(found, [expected]);
    assert!(lines(flaps, &[counting("link_downed", 2, 2, true)]).is_empty());
    let lost = |times| {
        let state = InterfaceState {
            name: "ens224".into(),
            carrier_losses: Some(times),
            ..InterfaceState::default()
        };
        Machine::recorded("esxi-vm").diagnosed(|diagnostics| diagnostics.interfaces = vec![state])
    };
    assert!(lines(flaps, &[lost(3)]).is_empty());
    assert!(
        lines(flaps, &[lost(40)])[0]
            .starts_with("note link.flaps a mlx5_0/1: the link was lost 40")
    );
}
