use super::super::testing::{Machine, lines, with_cluster};
use super::*;
use crate::findings::Step;
use crate::testing::triangle;
use rlaunch_bootstrap::inventory::InstalledLibrary;
use rlaunch_bootstrap::inventory::rdma::PortState;

/// Returns three hosts with a cable between any two, and this version of NCCL.
fn cabled(version: &str) -> Vec<Machine> {
    let machine = |inventory: Inventory| {
        let library = InstalledLibrary { version: version.into(), path: "/venv/nccl".into() };
        Machine { inventory, ..Machine::default() }
            .change(|inventory| inventory.system.nccl = Some(library))
    };
    triangle().map(machine).into()
}

/// Moves the second port of each host to a card of its own.
fn on_single_port_cards(machines: Vec<Machine>) -> Vec<Machine> {
    let apart = |machine: Machine| {
        machine.change(|inventory| {
            let pcis = inventory.rdma.iter_mut().filter_map(|device| device.pci.as_mut());
            let seconds = pcis.filter(|pci| pci.address == "0000:01:00.1");
            seconds.for_each(|pci| pci.address = "0000:02:00.0".into());
        })
    };
    machines.into_iter().map(apart).collect()
}

#[test]
fn a_version_that_cannot_choose_ports_is_an_error_on_a_mesh_of_cables() {
    let found = lines(old, &cabled("2.28.9"));
    let expected = "error nccl.old a: NCCL 2.28.9 (/venv/nccl) does not choose ports by subnet — the hosts' cables are on different \
                    subnets, and ranks may hang when they connect";
    assert_eq!((found.len(), found[0].as_str()), (3, expected));
    assert!(lines(old, &cabled("2.30.7")).is_empty());
    let rails = || {
        Machine::recorded("dgx").change(|inventory| {
            let library = InstalledLibrary { version: "2.28.9".into(), path: "/nccl".into() };
            inventory.system.nccl = Some(library);
        })
    };
    assert!(lines(old, &[rails(), rails()]).is_empty());
}

#[test]
fn cables_between_ports_of_one_number_are_swapped() {
    assert!(lines(edges, &cabled("2.30.7")).is_empty(), "the ports of one card are merged");
    let machines = on_single_port_cards(cabled("2.30.7"));
    let found = lines(edges, &machines);
    let expected = "warn nccl.edge a → b: the cable joins port 0 and port 0; NCCL listens at a on one of rocep1s0f0, rocep1s0f1, which \
                    are different cards — where it listens on the other port, this cable is not found and connecting times out";
    assert_eq!((found.len(), found[0].as_str()), (3, expected));
    let fixes = with_cluster(&machines, |cluster| {
        edges(&cluster).iter().map(|finding| finding.fix.clone()).collect::<Vec<_>>()
    });
    let Step::Do(swap) = &fixes[0][0] else { panic!("{fixes:?}") };
    assert!(swap.starts_with("swap the cable between a and b to port 1 of a"), "{swap}");
    let merge = "or let NCCL merge them: -x NCCL_NET_FORCE_MERGE=rocep1s0f0,rocep1s0f1";
    assert_eq!(
        fixes[2],
        [Step::Do(merge.into())],
        "b and c are joined at ports of different numbers"
    );
}

/// Returns four hosts with a cable between each and the next.
fn ring_of_four() -> Vec<Machine> {
    let address = |link: u8, host: u8| std::net::Ipv4Addr::new(192, 168, 110 + link, host);
    let host = |node: u8| {
        let (before, after) = ((node + 3) % 4, node);
        let mut machine = cabled("2.30.7").remove(0);
        let inventory = &mut machine.inventory;
        inventory.routes.clear();
        for (device, netdev, own) in [
            ("rocep1s0f0", "enp1s0f0np0", address(before, 2)),
            ("rocep1s0f1", "enp1s0f1np1", address(after, 1)),
        ] {
            let device = inventory.rdma.iter_mut().find(|known| known.name == device).unwrap();
            for gid in &mut device.ports[0].gids {
                if gid.value.to_ipv4_mapped().is_some() {
                    gid.value = own.to_ipv6_mapped();
                }
            }
            let netdev = inventory.netdevs.iter_mut().find(|known| known.name == netdev).unwrap();
            netdev.addresses = vec![(own.into(), 24)];
        }
        machine
    };
    (0..4).map(host).collect()
}

#[test]
fn a_ring_of_four_lacks_its_diagonals() {
    let found = lines(edges, &ring_of_four());
    let places: Vec<&str> = found.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(places, ["warn nccl.edge a → c", "warn nccl.edge b → d"]);
    assert!(found[0].ends_with(": no cable joins them — NCCL connects them for all-to-all, and where a ring or tree makes them \
                                neighbours; rlaunch has it use TCP on every host"));
    assert_eq!(lines(network, &ring_of_four()).len(), 1);
}

#[test]
fn the_host_that_keeps_nccl_from_rdma_is_named() {
    let dgx = || Machine::recorded("dgx");
    let fault = dgx().change(|inventory| {
        let ports = inventory.rdma.iter_mut().flat_map(|device| &mut device.ports);
        ports.for_each(|port| port.state = PortState::Down);
    });
    let found = lines(network, &[dgx(), fault]);
    assert!(found[0].starts_with("warn nccl.net b: mlx5_0/1 is DOWN: no carrier, "), "{found:?}");
    assert!(found[0].ends_with(" — NCCL uses TCP on every host"), "{found:?}");
    assert!(lines(network, &[dgx(), dgx()]).is_empty());
    let siw = || Machine::recorded("siw");
    assert!(lines(network, &[siw(), siw()]).is_empty(), "no GPUs");
    assert!(lines(network, &vec![Machine::recorded("amd-apu"); 2]).is_empty(), "no RDMA");
}
