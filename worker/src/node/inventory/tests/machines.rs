//! Inventories of small machines, containers and virtual machines.
//!
//! Inventories of servers and of pods on servers.

use super::tree::{fixture, recorded};
use crate::node::inventory::{Root, read_for_job};
use rlaunch_bootstrap::inventory::net::NetdevKind;
use rlaunch_bootstrap::inventory::pci::{Distance, gigabits};
use rlaunch_bootstrap::inventory::rdma::{GidKind, LinkLayer, NodeType, PortState, Uverbs};
use rlaunch_bootstrap::inventory::{CpuSet, Gpu, GpuVendor, Inventory};

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
    let limits = &inventory.limits;
    assert_eq!((limits.open_files, limits.open_files_hard), (Some(1024), Some(524_288)));
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

/// Returns for each device its name, the index of the RoCE v2 GID of an IPv4 address, that address,
/// its interface, and the port's MTU.
fn addressed(inventory: &Inventory) -> Vec<(&str, u16, String, &str, Option<u32>)> {
    let ports = inventory.rdma.iter().map(|device| (device.name.as_str(), &device.ports[0]));
    let entry = |(name, port)| {
        let port: &rlaunch_bootstrap::inventory::rdma::Port = port;
        // Each address has two entries, the first of RoCE v1.
        let last = port.gids.last().unwrap();
        let netdev = last.netdev.as_deref().unwrap();
        (name, last.index, last.ip().to_string(), netdev, port.mtu)
    };
    ports.map(entry).collect()
}

#[test]
fn each_gpu_of_a_large_server_has_two_nics_at_its_switch() {
    let inventory = fixture("dgx");
    assert_eq!((inventory.gpus.len(), inventory.rdma.len()), (8, 8));
    use Distance::{HostBridge, Switch, System};
    for (number, gpu) in inventory.gpus.iter().enumerate() {
        assert_eq!(gpu.model.as_deref(), Some("NVIDIA H100 80GB HBM3"));
        let nics = inventory.rdma.iter().map(|nic| nic.pci.as_ref().unwrap());
        let distances: Vec<Distance> = nics.map(|nic| gpu.pci.distance(nic)).collect();
        let wanted = (0..8).map(|nic| match (nic / 2 == number / 2, nic / 4 == number / 4) {
            (true, _) => Switch,
            (false, true) => HostBridge,
            (false, false) => System,
        });
        assert_eq!(distances, wanted.collect::<Vec<_>>(), "GPU {number}");
    }
    let pci = inventory.rdma[5].pci.as_ref().unwrap();
    let way: Vec<&str> = pci.links.iter().map(|link| link.address.as_str()).collect();
    assert_eq!(way, ["0000:96:00.0", "0000:92:03.0", "0000:91:00.0", "0000:90:01.0"]);
    assert_eq!((pci.host_bridge.as_deref(), pci.numa_node), (Some("pci0000:90"), Some(1)));
    assert_eq!(inventory.rdma[5].cpus.as_ref().unwrap().to_string(), "56-111,168-223");
}

#[test]
fn each_nic_of_a_large_server_is_on_its_rail() {
    let inventory = fixture("dgx");
    let rails = addressed(&inventory);
    assert_eq!(rails[0], ("mlx5_0", 3, "10.0.0.11".into(), "enp21s0np0", Some(4096)));
    assert_eq!(rails[7], ("mlx5_7", 3, "10.7.0.11".into(), "enp198s0np0", Some(4096)));
    let eno1 = &inventory.netdevs[0];
    assert_eq!((eno1.name.as_str(), eno1.speed, eno1.mtu), ("eno1", Some(10_000), 1500));
    assert_eq!(eno1.pci.as_deref(), Some("0000:05:00.0"));
}

#[test]
fn one_port_of_a_large_server_redirects_what_passes_between_devices() {
    let inventory = fixture("dgx");
    let nics = inventory.rdma.iter().map(|nic| nic.pci.as_ref().unwrap());
    let redirected: Vec<_> = nics.clone().map(|nic| nic.links[1].acs).collect();
    assert_eq!(redirected[0], Some(true));
    assert!(redirected[1..].iter().all(|acs| *acs == Some(false)));
    // The recording has no ACS for the ports above the switch.
    assert_eq!(nics.clone().next().unwrap().links[2].acs, None);
    assert!(nics.clone().all(|nic| nic.ats == Some(false) && nic.links[0].acs.is_none()));
    // The recording has no ATS for the GPUs.
    assert!(inventory.gpus.iter().all(|gpu| gpu.pci.ats.is_none()));
    assert!(inventory.system.iommu && inventory.system.peer_memory);
}

#[test]
fn a_large_server_has_two_threads_to_a_core() {
    let inventory = fixture("dgx");
    let cores = &inventory.cpus.cores;
    assert_eq!((cores.len(), cores[0].to_string()), (112, "0,112".into()));
    assert_eq!((cores[111].to_string(), inventory.cpus.usable()), ("111,223".into(), 224));
    assert_eq!(inventory.numa_nodes[1].cpus.to_string(), "56-111,168-223");
    // The inventory for a job leaves out cores and bridge configurations, which are slow to read.
    let root = recorded("dgx");
    let part = read_for_job(&Root::recorded(root.path()), false);
    assert!(part.cpus.cores.is_empty());
    assert_eq!((part.gpus.len(), part.gpus[0].pci.ats), (8, None));
    assert_eq!(part.rdma[0].pci.as_ref().unwrap().links[1].acs, None);
}

#[test]
fn two_ports_of_a_card_differ() {
    let inventory = fixture("dual-port");
    let wanted = [
        ("mlx5_0", 3, "192.168.10.21".into(), "ens3f0np0", Some(4096)),
        ("mlx5_1", 5, "192.168.20.21".into(), "ens3f1np1", Some(1024)),
    ];
    assert_eq!(addressed(&inventory), wanted);
    let pci: Vec<_> = inventory.rdma.iter().map(|nic| nic.pci.as_ref().unwrap()).collect();
    assert_eq!(
        (pci[0].address.as_str(), pci[1].address.as_str()),
        ("0000:41:00.0", "0000:41:00.1")
    );
    assert_eq!(pci[0].links[1], pci[1].links[1]);
}

#[test]
fn a_virtual_function_waits_for_the_subnet_manager() {
    let inventory = fixture("sriov");
    let ports: Vec<_> = inventory.rdma.iter().map(|d| (d.name.as_str(), &d.ports[0])).collect();
    let states: Vec<_> = ports.iter().map(|(name, port)| (*name, port.state, port.lid)).collect();
    use PortState::{Active, Init};
    let wanted = [
        ("ibp65s0", Active, Some(3)),
        ("ibp65s0v0", Init, Some(0)),
        ("ibp65s0v1", Active, Some(3)),
    ];
    assert_eq!(states, wanted);
    assert!(ports.iter().all(|(_, port)| port.link_layer == LinkLayer::InfiniBand));
    // Device and interface names do not tell which belong together; the PCI function does.
    let netdevs: Vec<_> = ports.iter().map(|(_, port)| port.netdev.as_deref()).collect();
    assert_eq!(netdevs, [Some("ibp65s0"), Some("ibp65s0v0"), Some("ibp65s0v1")]);
    let pci: Vec<_> = inventory.rdma.iter().map(|nic| nic.pci.as_ref().unwrap()).collect();
    let parents: Vec<_> = pci.iter().map(|pci| pci.physical_function.as_deref()).collect();
    assert_eq!(parents, [None, Some("0000:41:00.0"), Some("0000:41:00.0")]);
    // A virtual function has no link of its own; the bottleneck is that of the port above it.
    assert_eq!(pci[1].links[0].current, None);
    assert_eq!(pci[1].bottleneck().unwrap().address, "0000:40:01.1");
    assert_eq!(inventory.rdma[1].node_guid.as_deref(), Some("0000:0000:0000:0000"));
}

#[test]
fn a_bond_is_one_device_with_one_port() {
    let inventory = fixture("bond");
    let [device] = &inventory.rdma[..] else { panic!("{:?}", inventory.rdma) };
    assert_eq!((device.name.as_str(), device.ports.len()), ("mlx5_bond_0", 1));
    // The numbers of the two interfaces are that of the PCI function and the next, neither of which
    // is the port's.
    assert_eq!(device.pci.as_ref().unwrap().address, "0000:41:00.0");
    assert_eq!(
        addressed(&inventory),
        [("mlx5_bond_0", 3, "10.20.0.21".into(), "bond0", Some(4096))]
    );
    assert_eq!(device.ports[0].netdev.as_deref(), Some("bond0"));
    let kinds: Vec<_> = inventory.netdevs.iter().map(|n| (n.name.as_str(), n.kind)).collect();
    use NetdevKind::{Bond, Physical, Upper};
    let wanted = [
        ("enp65s0f0np0", Physical),
        ("enp65s0f1np1", Physical),
        ("bond0", Bond),
        ("bond0.200", Upper),
    ];
    assert_eq!(kinds, wanted);
    assert_eq!((inventory.netdevs[2].speed, &inventory.netdevs[2].pci), (Some(200_000), &None));
    assert!(inventory.netdevs[..2].iter().all(|netdev| netdev.addresses.is_empty()));
}

#[test]
fn a_pod_has_the_network_of_its_node_and_a_device_of_two() {
    let inventory = fixture("ack-node");
    let [down, up] = &inventory.rdma[..] else { panic!("{:?}", inventory.rdma) };
    assert_eq!((down.name.as_str(), up.name.as_str()), ("rocep156s0", "rocep26s0"));
    assert_eq!((&down.uverbs, down.ports[0].state), (&Uverbs::Missing, PortState::Down));
    assert_eq!(up.uverbs, Uverbs::Usable("/dev/infiniband/uverbs0".into()));
    assert_eq!((up.node_type, up.driver.as_deref()), (NodeType::ChannelAdapter, Some("erdma")));
    let port = &up.ports[0];
    assert_eq!((port.netdev.as_deref(), port.mtu), (Some("eth0"), Some(1024)));
    assert_eq!(port.gids[1].ip(), "192.168.8.128".parse::<std::net::IpAddr>().unwrap());
    assert_eq!((down.numa_node, up.numa_node), (Some(1), Some(0)));
    let sockets: Vec<_> = inventory.gpus.iter().map(|gpu| gpu.pci.numa_node).collect();
    assert_eq!(sockets, [[Some(0); 4], [Some(1); 4]].concat());
    // The control groups are named by the host's paths, but the values are below the container's
    // root.
    assert_eq!((inventory.cpus.quota, inventory.cpus.usable()), (Some(4000), 4));
    assert_eq!(inventory.limits.memory, Some(16 << 30));
}
