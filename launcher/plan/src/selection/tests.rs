use super::*;
use crate::env::nccl::Fabric;
use crate::map::RankMap;
use crate::options::{JobView, Options, UserChoices};
use crate::rank_config::{self, RankConfig};
use crate::table;
use crate::testing::inventory;
use proptest::prelude::*;
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::inventory::net::{NetdevKind, Route};
use rlaunch_bootstrap::inventory::rdma::GidKind;
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use std::net::{Ipv4Addr, Ipv6Addr};

fn nics(name: &str) -> Vec<Nic> {
    usable(&inventory(name), &PortOptions::default()).into_iter().map(|port| port.nic).collect()
}

#[test]
fn an_infiniband_port_is_what_the_table_says() {
    let [nic] = &nics("connectx3")[..] else { panic!("{:?}", nics("connectx3")) };
    assert_eq!((nic.device.as_str(), nic.port, nic.gid_index), ("mlx4_0", 1, Some(0)));
    assert_eq!((nic.transport, nic.rail), (Transport::Infiniband, 0));
    assert_eq!(nic.gid.as_deref(), Some("fe80::ec0d:9a03:12:3451"));
    assert_eq!(nic.networks, ["ib fe80000000000000"]);
    assert_eq!(nic.address, "192.168.100.1".parse().ok());
    assert_eq!((nic.mtu, nic.rate_mbps), (None, Some(56_000)));
}

#[test]
fn an_iwarp_port_has_an_address_and_no_gid() {
    let nic = &nics("siw")[0];
    assert_eq!((nic.gid_index, nic.gid.as_deref()), (None, None));
    assert_eq!((nic.transport, nic.software), (Transport::Iwarp, true));
    assert_eq!((nic.netdev.as_deref(), nic.address), (Some("ens2"), "10.0.0.2".parse().ok()));
    assert_eq!(nic.rate_mbps, None, "the driver says anything");
}

#[test]
fn a_port_that_cannot_be_used_is_no_nic() {
    assert!(nics("rxe").is_empty());
    let all = inventory("dgx");
    assert_eq!(usable(&all, &PortOptions::default()).len(), 8);
    let hca = Some("=mlx5_1,mlx5_3:1,mlx5_4:2".parse().unwrap());
    let choices = PortOptions { hca, ..PortOptions::default() };
    let left: Vec<(String, u32)> =
        usable(&all, &choices).into_iter().map(|port| (port.nic.device, port.nic.rail)).collect();
    // Unusable ports have rail numbers too, so that hosts agree on the numbers.
    assert_eq!(left, [("mlx5_1".to_owned(), 1), ("mlx5_3".to_owned(), 3)]);
}

#[test]
fn wishes_are_kept_or_refused() {
    let examined = |name: &str, choices: &PortOptions| {
        let inventory = inventory(name);
        let (device, port) = (&inventory.rdma[0], &inventory.rdma[0].ports[0]);
        examine_wanted(device, port, &inventory.netdevs, choices).map_err(|r| r.to_string())
    };
    let at = |index| PortOptions { gid_index: Some(index), ..PortOptions::default() };
    let Ok(Addressing::Gid { gid, .. }) = examined("esxi-vm", &at(1)) else { panic!("no GID 1") };
    assert_eq!(gid.index, 1);
    assert_eq!(examined("esxi-vm", &at(9)), Err("entry 9 of its GID table is empty".to_owned()));
    let oob = PortOptions { connect: ConnectBy::Oob, ..PortOptions::default() };
    assert_eq!(examined("siw", &oob), Err("takes RDMA_CM only (node type RNIC)".to_owned()));
    let by_manager = PortOptions { connect: ConnectBy::RdmaCm, ..PortOptions::default() };
    assert!(usable(&inventory("esxi-vm"), &by_manager)[0].nic.by_manager);
    assert!(!usable(&inventory("esxi-vm"), &oob)[0].nic.by_manager);
}

#[test]
fn a_port_without_a_carrier_is_none_whatever_it_says() {
    let mut siw = inventory("siw");
    siw.netdevs.iter_mut().for_each(|netdev| netdev.running = false);
    let (device, port) = (&siw.rdma[0], &siw.rdma[0].ports[0]);
    let rejection = examine(device, port, &siw.netdevs).unwrap_err();
    assert_eq!(rejection.to_string(), "its interface ens2 has no carrier");
}

#[test]
fn rates_are_read() {
    assert_eq!(megabits("56 Gb/sec (4X FDR)"), Some(56_000));
    assert_eq!(megabits("2.5 Gb/sec (1X SDR)"), Some(2_500));
    assert_eq!((megabits("unknown"), megabits("")), (None, None));
}

/// Returns the table of a job with `ranks` ranks on each of these machines.
fn table_of(inventories: &[Inventory], ranks: usize) -> RankTable {
    let hosts: Vec<String> = (0..inventories.len()).map(|n| format!("h{n}:{ranks}")).collect();
    let map = RankMap::by_slot(&crate::hosts::parse(&[hosts.join(",")]).unwrap(), None, false);
    let map = map.unwrap();
    let addresses: Vec<IpAddr> =
        (0..inventories.len()).map(|n| IpAddr::from([10, 255, 0, n as u8])).collect();
    let (options, plan) = (Options::default(), Plan::new(inventories, &PortOptions::default()));
    let seen = JobView { id: JobId(1), map: &map, inventories, plan: &plan, addresses: &addresses };
    let choices = UserChoices { options: &options, env: &[] };
    let fabric = Fabric::new(&map, inventories, &plan, &options);
    let rank_configs: Vec<Vec<RankConfig>> =
        rank_config::decide(&choices, &seen, &fabric, &[]).unwrap();
    let facts = crate::testing::facts();
    table::build(&options, &seen, &vec![&facts; inventories.len()], &rank_configs).unwrap()
}

/// Lists the connection of each pair of ranks, as `0-1 Rdma DEVICE@ADDRESS DEVICE@ADDRESS`.
fn ways(table: &RankTable) -> Vec<String> {
    let ranks = 0..table.world_size();
    let pairs = ranks.clone().flat_map(|a| ranks.clone().map(move |b| (a, b)));
    let way = |(a, b): (u32, u32)| {
        let pair = table.pair(Rank(a), Rank(b)).unwrap();
        let name = |rank: u32, nic: Option<u32>| {
            let node = &table.nodes()[table.ranks()[rank as usize].node.index()];
            let nic = nic.and_then(|nic| node.nics.get(nic as usize));
            nic.map_or("-".to_owned(), |nic| format!("{}@{:?}", nic.device, nic.address))
        };
        format!("{a}-{b} {:?} {} {}", pair.connect, name(a, pair.nic_a), name(b, pair.nic_b))
    };
    pairs.filter(|(a, b)| a < b).map(way).collect()
}

#[test]
fn rails_meet_rails() {
    let dgx = inventory("dgx");
    let table = table_of(&[dgx.clone(), dgx], 8);
    for rank in 0..8 {
        for other in 8..16 {
            let pair = table.pair(Rank(rank), Rank(other)).unwrap();
            assert_eq!(pair.connect, PairTransport::Rdma);
            assert_eq!(pair.nic_a, pair.nic_b, "each rail is a network of its own");
        }
        let own = table.pair(Rank(rank), Rank(rank + 8)).unwrap();
        assert_eq!(own.nic_a, Some(rank));
    }
}

#[test]
fn a_triangle_of_cables_uses_the_one_between() {
    let ways = ways(&table_of(&crate::testing::triangle(), 1));
    let wanted = [
        "0-1 Rdma rocep1s0f0@Some(192.168.100.2) rocep1s0f0@Some(192.168.100.3)",
        "0-2 Rdma rocep1s0f1@Some(192.168.101.2) rocep1s0f1@Some(192.168.101.3)",
        "1-2 Rdma rocep1s0f1@Some(192.168.102.2) rocep1s0f0@Some(192.168.102.3)",
    ];
    assert_eq!(ways, wanted);
}

#[test]
fn modes_of_erdma_do_not_mix() {
    let [compat, standard] = ["erdma-compat", "erdma-standard"].map(inventory);
    let connect = |pair: [&Inventory; 2]| {
        let table = table_of(&pair.map(Clone::clone), 1);
        table.pair(Rank(0), Rank(1)).unwrap().connect
    };
    assert_eq!(connect([&compat, &compat]), PairTransport::Rdma);
    assert_eq!(connect([&standard, &standard]), PairTransport::RdmaCm);
    assert_eq!(connect([&compat, &standard]), PairTransport::Tcp);
    assert_eq!(
        Plan::new(&[compat, standard], &PortOptions::default()).unconnected_pairs(),
        [(0, 1)]
    );
}

/// Port of a generated machine.
#[derive(Clone, Debug)]
struct Made {
    speaks: Transport,
    software: bool,
    numa_node: Option<u32>,
    /// IPv4 addresses `10.0.SUBNET.HOST` of the port, as subnet, host and prefix length.
    addresses: Vec<(u8, u8, u8)>,
    /// Routes of the interface to networks `10.0.SUBNET.0`, as subnet and prefix length.
    routes: Vec<(u8, u8)>,
    v6: bool,
    active: bool,
}

fn any_port() -> impl Strategy<Value = Made> {
    let speaks = prop_oneof![
        2 => Just(Transport::Roce),
        1 => Just(Transport::Iwarp),
        1 => Just(Transport::Infiniband)
    ];
    let subnet = 0..4_u8;
    let prefix = prop_oneof![4 => Just(24_u8), 1 => Just(22), 1 => Just(32)];
    let addresses = prop::collection::vec((subnet.clone(), 1..250_u8, prefix), 0..3);
    let routes = prop::collection::vec((subnet, prop_oneof![Just(24_u8), Just(22), Just(0)]), 0..2);
    let numa_node = prop_oneof![Just(None), (0..2_u32).prop_map(Some)];
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.3), prop::bool::weighted(0.9));
    (speaks, numa_node, addresses, routes, flags).prop_map(
        |(speaks, numa_node, mut addresses, routes, (software, v6, active))| {
            // An interface cannot have an address twice.
            addresses.sort_unstable();
            addresses.dedup_by_key(|(subnet, host, _)| (*subnet, *host));
            Made { speaks, software, numa_node, addresses, routes, v6, active }
        },
    )
}

fn v4((subnet, host, _): (u8, u8, u8)) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, subnet, host)
}

/// Returns the GID table of a port: one entry with InfiniBand, else one for each address.
fn gids(made: &Made, addresses: &[(IpAddr, u8)], netdev: &str) -> Vec<Gid> {
    let infiniband = Gid {
        index: 0,
        value: Ipv6Addr::new(0xfe80, 0, 0, u16::from(made.v6), 0, 0, 0, 1),
        kind: GidKind::IbOrRoceV1,
        netdev: None,
    };
    let gid = |(index, (address, _)): (u16, &(IpAddr, u8))| Gid {
        index,
        value: match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => *v6,
        },
        kind: GidKind::RoceV2,
        netdev: Some(netdev.to_owned()),
    };
    match made.speaks {
        Transport::Infiniband => vec![infiniband],
        _ => (0..).zip(addresses).map(gid).collect(),
    }
}

/// Returns a machine with these ports: device `r0` on interface `e0` and so on.
fn machine(ports: &[Made]) -> Inventory {
    let mut machine = Inventory::default();
    machine.cpus.allowed = "0-3".parse().unwrap();
    for (number, made) in ports.iter().enumerate() {
        let netdev = format!("e{number}");
        let mut addresses: Vec<(IpAddr, u8)> =
            made.addresses.iter().map(|&a| (IpAddr::V4(v4(a)), a.2)).collect();
        if made.v6 {
            let host = u16::from(made.addresses.first().map_or(1, |a| a.1));
            addresses.push((IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host)), 64));
        }
        let mut device = inventory("connectx3").rdma.remove(0);
        device.ports.truncate(1);
        device.name = format!("r{number}");
        device.driver = Some(if made.software { "rxe".into() } else { "mlx5_core".into() });
        device.numa_node = made.numa_node;
        device.pci = (!made.software).then(|| PciDevice {
            address: format!("0000:{number:02x}:00.0"),
            ..Default::default()
        });
        device.node_type = match made.speaks {
            Transport::Iwarp => NodeType::Rnic,
            _ => NodeType::ChannelAdapter,
        };
        device.ports[0] = Port {
            state: if made.active { PortState::Active } else { PortState::Down },
            link_layer: match made.speaks {
                Transport::Infiniband => LinkLayer::InfiniBand,
                _ => LinkLayer::Ethernet,
            },
            rate: Some("100 Gb/sec (4X EDR)".into()),
            netdev: Some(netdev.clone()),
            gids: gids(made, &addresses, &netdev),
            ..device.ports[0].clone()
        };
        machine.rdma.push(device);
        machine.routes.extend(made.routes.iter().map(|&(subnet, prefix)| Route {
            netdev: netdev.clone(),
            destination: IpAddr::from([10, 0, subnet, 0]),
            prefix,
            gateway: None,
        }));
        let kind = NetdevKind::Physical;
        let running = true;
        machine.netdevs.push(Netdev {
            name: netdev,
            kind,
            addresses,
            running,
            ..Netdev::default()
        });
    }
    machine
}

/// Tells whether two ports reach each other, by comparing every pair of their addresses. The plan must agree
/// with this simple computation.
fn oracle(a: &Made, b: &Made) -> bool {
    let bits = |prefix: u8| u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    let same = |one: Ipv4Addr, other: Ipv4Addr, prefix: u8| {
        one.to_bits() & bits(prefix) == other.to_bits() & bits(prefix)
    };
    let is_routed = |from: &Made, own: (u8, u8, u8), to: Ipv4Addr| {
        let route =
            |&(subnet, prefix): &(u8, u8)| same(Ipv4Addr::new(10, 0, subnet, 0), to, prefix);
        same(v4(own), to, own.2) || from.routes.iter().any(route)
    };
    let both = || a.addresses.iter().flat_map(|x| b.addresses.iter().map(move |y| (*x, *y)));
    let by_v4 = || both().any(|(x, y)| is_routed(a, x, v4(y)) && is_routed(b, y, v4(x)));
    a.active
        && b.active
        && a.speaks == b.speaks
        && match a.speaks {
            Transport::Infiniband => a.v6 == b.v6,
            Transport::Roce | Transport::Iwarp => by_v4() || (a.v6 && b.v6),
        }
}

fn any_job() -> impl Strategy<Value = (Vec<Vec<Made>>, usize)> {
    (prop::collection::vec(prop::collection::vec(any_port(), 0..4), 2..7), 1..3_usize)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1024) })]

    #[test]
    fn every_pair_gets_the_best_way_there_is((nodes, ranks) in any_job()) {
        let machines: Vec<Inventory> = nodes.iter().map(|ports| machine(ports)).collect();
        let table = table_of(&machines, ranks);
        let unconnected = Plan::new(&machines, &PortOptions::default()).unconnected_pairs();
        for (a, b) in (0..nodes.len()).flat_map(|a| (0..a).map(move |b| (b, a))) {
            let all = nodes[a].iter().enumerate().flat_map(|(i, one)| {
                nodes[b].iter().enumerate().map(move |(j, other)| (i, j, one, other))
            });
            let reaching: Vec<_> = all.filter(|(.., one, other)| oracle(one, other)).collect();
            let have_ports = !usable(&machines[a], &PortOptions::default()).is_empty() && !usable(&machines[b], &PortOptions::default()).is_empty();
            prop_assert_eq!(unconnected.contains(&(a, b)), reaching.is_empty() && have_ports);
            for (x, y) in (0..ranks).flat_map(|x| (0..ranks).map(move |y| (a * ranks + x, b * ranks + y))) {
                let pair = table.pair(Rank(x as u32), Rank(y as u32)).unwrap();
                let (Some(nic_a), Some(nic_b)) = (pair.nic_a, pair.nic_b) else {
                    prop_assert_eq!(pair.connect, PairTransport::Tcp);
                    prop_assert!(reaching.is_empty(), "{:?}", reaching);
                    continue;
                };
                let device = |node: usize, nic: u32| -> usize {
                    table.nodes()[node].nics[nic as usize].device[1..].parse().unwrap()
                };
                let chosen = (device(a, nic_a), device(b, nic_b));
                let found = reaching.iter().find(|(i, j, ..)| (*i, *j) == chosen);
                prop_assert!(found.is_some(), "{:?} is no way", chosen);
                let (.., one, other) = found.unwrap();
                let least = reaching.iter().map(|(.., a, b)| a.software || b.software).min();
                prop_assert_eq!(Some(one.software || other.software), least);
                let wanted = if one.speaks == Transport::Iwarp { PairTransport::RdmaCm } else { PairTransport::Rdma };
                prop_assert_eq!(pair.connect, wanted);
            }
        }
    }

    #[test]
    fn nothing_depends_on_names_of_hosts_or_the_order_of_devices((nodes, ranks) in any_job()) {
        let machines: Vec<Inventory> = nodes.iter().map(|ports| machine(ports)).collect();
        let reversed: Vec<Inventory> = machines.iter().cloned().map(|mut machine| {
            machine.rdma.reverse();
            machine.netdevs.reverse();
            machine.routes.reverse();
            machine
        }).collect();
        prop_assert_eq!(ways(&table_of(&machines, ranks)), ways(&table_of(&reversed, ranks)));
    }
}

/// Lists the ports, as `device:port`, that pass a filter. Each device has ports 1 and 2.
fn allowed_ports(filter: &str, devices: &[&str]) -> Vec<String> {
    let filter: HcaFilter = filter.parse().unwrap();
    let template = inventory("connectx3").rdma.remove(0);
    let mut passed = Vec::new();
    for name in devices {
        let device = RdmaDevice { name: (*name).into(), ..template.clone() };
        let ports = device.ports.iter().filter(|port| filter.allows(&device, port));
        passed.extend(ports.map(|port| format!("{name}:{}", port.number)));
    }
    passed
}

#[test]
fn nccls_grammar_is_understood() {
    let devices = ["mlx5_1", "mlx5_10", "irdma0"];
    assert_eq!(
        allowed_ports("mlx5_1", &devices),
        ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1", "mlx5_10:2"]
    );
    assert_eq!(allowed_ports("=mlx5_1", &devices), ["mlx5_1:1", "mlx5_1:2"]);
    assert_eq!(allowed_ports("=mlx5_1:2,irdma0:1", &devices), ["mlx5_1:2", "irdma0:1"]);
    assert_eq!(allowed_ports("^mlx5", &devices), ["irdma0:1", "irdma0:2"]);
    assert_eq!(
        allowed_ports("^=mlx5_1,irdma0:2", &devices),
        ["mlx5_10:1", "mlx5_10:2", "irdma0:1"]
    );
    assert_eq!(allowed_ports("mlx5_10:1:3:0", &devices), ["mlx5_10:1"]);
}

#[test]
fn what_names_no_device_is_refused() {
    for text in ["", "^", "=", "mlx5_0,", "mlx5_0:x", "mlx5_0:0", ":1"] {
        assert!(text.parse::<HcaFilter>().is_err(), "{text:?}");
    }
    assert!(vec!["a"; 33].join(",").parse::<HcaFilter>().is_err());
}
