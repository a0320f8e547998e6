//! Inventories of small machines, containers and virtual machines.

use super::tree::fixture;
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::inventory::pci::gigabits;
use rlaunch_bootstrap::inventory::rdma::{GidKind, LinkLayer, NodeType, PortState, Uverbs};
use rlaunch_bootstrap::inventory::{CpuSet, Gpu, GpuVendor};

#[test]
fn a_connectx3_behind_four_lanes() {
    let inventory = fixture("connectx3");
    let [card] = &inventory.rdma[..] else { panic!("{:?}", inventory.rdma) };
    assert_eq!((card.name.as_str(), card.node_type), ("mlx4_0", NodeType::ChannelAdapter));
    assert_eq!(card.driver.as_deref(), Some("mlx4_core"));
    assert_eq!(card.firmware.as_deref(), Some("2.42.5000"));
    assert_eq!(card.uverbs, Uverbs::Usable("/dev/infiniband/uverbs0".into()));
    let pci = card.pci.as_ref().unwrap();
    assert_eq!((pci.address.as_str(), pci.numa_node), ("0000:c3:00.0", None));
    let limit = pci.bottleneck().unwrap();
    assert_eq!(limit.address, "0000:00:02.5");
    assert_eq!(gigabits(limit.rate.megabits()), "31.504");
    assert_eq!(gigabits(pci.max_rate().unwrap().megabits()), "63.008");

    let [one, two] = &card.ports[..] else { panic!("{:?}", card.ports) };
    assert_eq!((one.state, one.link_layer), (PortState::Active, LinkLayer::InfiniBand));
    assert_eq!((one.lid, one.sm_lid), (Some(1), Some(1)));
    assert_eq!(one.rate.as_deref(), Some("56 Gb/sec (4X FDR)"));
    assert_eq!((one.gids.len(), one.gid_table_length), (1, 2));
    assert_eq!((two.state, two.physical_state.as_deref()), (PortState::Down, Some("Polling")));
    // Two interfaces share a PCI function; their port numbers tell them apart.
    let netdevs = [one, two].map(|port| port.netdev.as_deref());
    assert_eq!(netdevs, [Some("ibp195s0"), Some("ibp195s0d1")]);
    // The MTU of an IPoIB interface is not that of the port.
    assert_eq!([one.mtu, two.mtu], [None, None]);
}

#[test]
fn the_rest_of_that_machine() {
    let inventory = fixture("connectx3");
    let kinds: Vec<_> = inventory.netdevs.iter().map(|n| (n.name.as_str(), n.kind)).collect();
    use NetdevKind::{Ipoib, Loopback, Physical, Thunderbolt};
    let wanted = [
        ("lo", Loopback),
        ("eno1", Physical),
        ("ibp195s0", Ipoib),
        ("ibp195s0d1", Ipoib),
        ("thunderbolt0", Thunderbolt),
    ];
    assert_eq!(kinds, wanted);
    let eno1 = &inventory.netdevs[1];
    assert_eq!((eno1.speed, eno1.running), (Some(2500), true));
    assert_eq!(eno1.addresses, [("192.168.1.11".parse().unwrap(), 24)]);
    assert!(!inventory.netdevs[3].running);
    let [Gpu { vendor: GpuVendor::Amd, pci, .. }] = &inventory.gpus[..] else {
        panic!("{:?}", inventory.gpus)
    };
    assert_eq!(pci.address, "0000:c4:00.0");
    assert_eq!((inventory.cpus.usable(), inventory.cpus.quota), (32, None));
    assert_eq!(inventory.numa_nodes[0].memory, Some(131_072_000 * 1024));
    assert_eq!(inventory.limits.locked_memory, Some(8_388_608));
    assert_eq!(inventory.limits.open_files, Some(1024));
    let system = &inventory.system;
    assert_eq!(system.kernel.as_deref(), Some("6.17.7-300.fc43.x86_64"));
    assert_eq!(system.distribution.as_deref(), Some("Fedora Linux 43 (Workstation Edition)"));
    assert!(!system.peer_memory);
}

#[test]
fn soft_roce_hangs_at_its_parent() {
    let inventory = fixture("rxe");
    let rxe = &inventory.rdma[0];
    assert_eq!((rxe.driver.as_deref(), rxe.pci.as_ref()), (Some("rxe"), None));
    // The device is in sysfs, but not in this container's /dev.
    assert_eq!(rxe.uverbs, Uverbs::Missing);
    let port = &rxe.ports[0];
    assert_eq!((port.netdev.as_deref(), port.mtu), (Some("ens2"), Some(1024)));
    let gids: Vec<_> = port.gids.iter().map(|gid| (gid.index, gid.kind)).collect();
    assert_eq!(gids, [(0, GidKind::RoceV2), (1, GidKind::RoceV2)]);
    assert_eq!(port.gids[1].ip(), "10.0.0.2".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(inventory.netdevs[0].pci.as_deref(), Some("0000:00:02.0"));
    assert_eq!(inventory.netdevs[0].speed, None);
    // One of two processors is allowed; the control group grants 1.5.
    assert_eq!((inventory.cpus.usable(), inventory.cpus.quota), (1, Some(1500)));
}

#[test]
fn soft_iwarp_is_found_by_its_mac_address() {
    let siw = &fixture("siw").rdma[0];
    assert_eq!((siw.node_type, siw.driver.as_deref()), (NodeType::Rnic, Some("siw")));
    let port = &siw.ports[0];
    assert_eq!((port.netdev.as_deref(), port.gid_table_length), (Some("ens2"), 1));
    assert!(port.gids[0].is_mac() && port.gids[0].kind == GidKind::Unknown);
}

#[test]
fn a_thunderbolt_cable_is_for_tcp() {
    let inventory = fixture("amd-apu");
    assert!(inventory.rdma.is_empty());
    let cable = inventory.netdevs.iter().find(|n| n.kind == NetdevKind::Thunderbolt).unwrap();
    assert_eq!((cable.name.as_str(), cable.running, cable.speed), ("thunderbolt0", true, None));
    assert_eq!(cable.addresses, [("10.99.0.2".parse().unwrap(), 30)]);
    // Its sysfs path contains a PCI function, but it is not a PCI device.
    assert_eq!(cable.pci.as_deref(), Some("0000:c5:00.5"));
    let wireless = &inventory.netdevs[2];
    assert_eq!((wireless.name.as_str(), wireless.kind), ("wlp192s0", NetdevKind::Physical));
    assert!(!wireless.running);
    // Two threads per core, by the file's older name.
    let cores = &inventory.cpus.cores;
    let ends: Vec<String> = [cores.first(), cores.last()].map(|c| c.unwrap().to_string()).into();
    assert_eq!((cores.len(), ends), (16, vec!["0,16".into(), "15,31".into()]));
    assert!(inventory.system.iommu);
}

#[test]
fn a_machine_without_rdma_has_its_limits() {
    let inventory = fixture("no-rdma");
    assert!(inventory.rdma.is_empty() && inventory.gpus.is_empty());
    // A quota of 2.5 processors counts as three usable ones.
    assert_eq!((inventory.cpus.quota, inventory.cpus.usable()), (Some(2500), 3));
    assert_eq!(inventory.limits.memory, Some(64 << 30));
    assert_eq!(inventory.limits.locked_memory, Some(65_536));
    let odd: CpuSet = (1..40).step_by(2).collect();
    assert_eq!((inventory.numa_nodes.len(), &inventory.numa_nodes[1].cpus), (2, &odd));
    assert_eq!(inventory.numa_nodes[1].distances, [21, 10]);
    let kinds: Vec<_> =
        inventory.netdevs.iter().map(|n| (n.name.as_str(), n.kind, n.running)).collect();
    use NetdevKind::{Bridge, Loopback, Physical, Upper};
    let wanted = [
        ("lo", Loopback, true),
        ("eno1", Physical, true),
        ("eno2", Physical, false),
        ("eno1.30", Upper, true),
        ("docker0", Bridge, false),
    ];
    assert_eq!(kinds, wanted);
    assert_eq!(inventory.netdevs[2].speed, None, "-1 is not a speed");
    assert!(inventory.cpus.cores.is_empty() && !inventory.system.iommu);
}

#[test]
fn a_container_sees_more_than_it_may_use() {
    let inventory = fixture("container");
    let files: Vec<_> = inventory.rdma.iter().map(|device| &device.uverbs).collect();
    assert_eq!(files, [&Uverbs::Usable("/dev/infiniband/uverbs0".into()), &Uverbs::Missing]);
    for device in &inventory.rdma {
        let port = &device.ports[0];
        assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
        // The interface is in another network namespace, so every entry is zero.
        assert_eq!((port.gid_table_length, port.gids.len()), (4, 0));
        assert_eq!((&port.netdev, port.mtu), (&None, None));
        // Only root can read more than 64 bytes.
        let pci = device.pci.as_ref().unwrap();
        assert_eq!((pci.ats, pci.links[1].acs), (None, None));
    }
    let eth0 = &inventory.netdevs[1];
    assert_eq!((eth0.name.as_str(), eth0.kind), ("eth0", NetdevKind::Virtual));
    let cpus = &inventory.cpus;
    assert_eq!((cpus.allowed.to_string().as_str(), cpus.quota), ("8-23", Some(8000)));
    assert_eq!((cpus.usable(), cpus.online.len()), (8, 64));
    assert_eq!(inventory.limits.memory, Some(32 << 30));
    assert_eq!(inventory.limits.locked_memory, Some(65_536));
}

#[test]
fn a_pod_that_shares_a_card_knows_its_entries_from_those_of_others() {
    let inventory = fixture("macvlan-pod");
    let port = &inventory.rdma[0].ports[0];
    let netdevs: Vec<_> = port.gids.iter().map(|gid| gid.netdev.as_deref()).collect();
    let (host, own) = (Some("ens1f0np0"), Some("net1"));
    assert_eq!(netdevs, [[host; 4], [None; 4], [own; 4]].concat());
    let best = &port.gids[11];
    assert_eq!((best.index, best.kind), (11, GidKind::RoceV2));
    assert_eq!(best.ip(), "10.56.0.12".parse::<std::net::IpAddr>().unwrap());
    assert_eq!((port.netdev.as_deref(), port.mtu), (own, Some(4096)));
}

#[test]
fn a_guest_of_esxi_knows_no_numa_node() {
    let inventory = fixture("esxi-vm");
    let pci = inventory.rdma[0].pci.as_ref().unwrap();
    assert_eq!((pci.numa_node, inventory.rdma[0].numa_node), (None, None));
    // The port above is emulated by the hypervisor, and so is its link speed.
    let limit = pci.bottleneck().unwrap();
    assert_eq!((limit.address, limit.rate.width), ("0000:00:17.0", 32));
    assert_eq!(gigabits(limit.rate.megabits()), "128.000");
    // ATS is enabled, in the second of its capabilities; the port has neither ATS nor ACS.
    assert_eq!((pci.ats, pci.links[1].acs), (Some(true), Some(false)));
    // The display controller is not a GPU that programs can use.
    let [gpu] = &inventory.gpus[..] else { panic!("{:?}", inventory.gpus) };
    assert_eq!(gpu.model.as_deref(), Some("GRID A100-40C"));
    assert_eq!((gpu.pci.address.as_str(), gpu.pci.ats), ("0000:02:01.0", None));
    let port = &inventory.rdma[0].ports[0];
    assert_eq!((port.netdev.as_deref(), port.mtu), (Some("ens224"), Some(4096)));
    assert_eq!(inventory.limits.locked_memory, None, "unlimited");
    assert!(inventory.system.peer_memory);
    let drivers = [("mlx5_core", "5.2-2.2.4"), ("nvidia", "470.63.01")];
    let drivers = drivers.map(|(name, version)| (name.to_owned(), version.to_owned()));
    assert_eq!(inventory.system.drivers, drivers);
}
