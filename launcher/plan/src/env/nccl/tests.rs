use super::*;
use crate::testing::{inventory, triangle};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::InstalledLibrary;
use rlaunch_bootstrap::inventory::rdma::Gid;
use rlaunch_bootstrap::rank_table::NicId;
use std::net::{IpAddr, Ipv6Addr};

fn job_of(hosts: &str) -> RankMap {
    let hosts = crate::hosts::parse(&[hosts.into()]).unwrap();
    RankMap::by_slot(&hosts, None, false).unwrap()
}

fn network(hosts: &str, inventories: &[Inventory], options: &Options) -> NcclNetwork {
    let plan = Plan::new(inventories, &options.ports);
    Fabric::new(&job_of(hosts), inventories, &plan, options).network
}

/// Returns the first host's network variables, as `NAME=value`.
fn variables_as_text(inventories: &[Inventory], hosts: &str) -> Vec<String> {
    let plan = Plan::new(inventories, &PortOptions::default());
    let fabric = Fabric::new(&job_of(hosts), inventories, &plan, &Options::default());
    let text = |default: Variable| format!("{}={}", default.name, default.value);
    fabric.variables(0).into_iter().map(text).collect()
}

fn with_hca(filter: &str) -> Options {
    let hca = Some(filter.parse().unwrap());
    Options { ports: PortOptions { hca, ..PortOptions::default() }, ..Options::default() }
}

#[test]
fn shapes_are_told_apart() {
    let of = |name| vec![inventory(name); 2];
    let verbs = |shape| NcclNetwork::Verbs(shape);
    let auto = Options::default();
    assert_eq!(network("a,b", &of("connectx3"), &auto), verbs(Shape::Flat));
    assert_eq!(network("a,b", &of("dgx"), &auto), verbs(Shape::Rails));
    assert_eq!(network("a,b,c", &triangle(), &auto), verbs(Shape::Mesh));
    let one_rail = with_hca("=mlx5_0");
    assert_eq!(network("a,b", &of("dgx"), &one_rail), verbs(Shape::Flat));
    let none = with_hca("none");
    let why = "a: mlx4_0/1: left out by --hca, mlx4_0/2: left out by --hca";
    assert_eq!(network("a,b", &of("connectx3"), &none), NcclNetwork::Tcp(why.into()));
    let tcp = Options { transport: Transport::Tcp, ..Options::default() };
    assert_eq!(network("a,b", &of("dgx"), &tcp), NcclNetwork::Tcp("--transport tcp".into()));
}

#[test]
fn hosts_that_no_port_joins_use_tcp() {
    let [titanic, ..] = triangle();
    let mut other = titanic.clone();
    for gid in other.rdma.iter_mut().flat_map(|d| &mut d.ports).flat_map(|port| &mut port.gids) {
        if let Some(v4) = gid.value.to_ipv4_mapped() {
            let [_, _, c, d] = v4.octets();
            gid.value = std::net::Ipv4Addr::new(10, 9, c, d).to_ipv6_mapped();
        }
    }
    other.netdevs.iter_mut().flat_map(|netdev| &mut netdev.addresses).for_each(|(address, _)| {
        if let IpAddr::V4(v4) = *address {
            let [_, _, c, d] = v4.octets();
            *address = IpAddr::from([10, 9, c, d]);
        }
    });
    other.routes.clear();
    let found = network("a,b", &[titanic, other], &Options::default());
    assert_eq!(found, NcclNetwork::Tcp("no RDMA port of a reaches one of b".into()));
}

/// The ports share a network, but the proof failed on every path.
#[test]
fn hosts_whose_every_path_was_cut_are_told_so() {
    let nodes = triangle();
    let options = Options::default();
    let mut plan = Plan::new(&nodes, &options.ports);
    let ends = |plan: &Plan, node: u32| {
        let nics = 0..plan.ports[node as usize].len() as u32;
        nics.map(|nic| NicId { node: NodeId(node), nic }).collect::<Vec<_>>()
    };
    for one in ends(&plan, 0) {
        for other in ends(&plan, 1) {
            plan.exclude_pair((one, other));
        }
    }
    let found = Fabric::new(&job_of("a,b,c"), &nodes, &plan, &options).network;
    assert_eq!(found, NcclNetwork::Tcp("no RDMA port of a was found to reach one of b".into()));
}

#[test]
fn an_old_nccl_on_a_mesh_of_cables_is_mentioned() {
    let with = |version: &str| {
        let library =
            InstalledLibrary { version: version.into(), path: "/venv/nccl.dist-info".into() };
        triangle().map(|mut node| {
            node.system.nccl = Some(library.clone());
            node
        })
    };
    let map = job_of("titanic,iceberg,carpathia");
    let (line, hint) = old_version_warning(&map, &with("2.27.5"), Shape::Mesh).unwrap();
    let wanted = "the hosts' links are on different subnets, and NCCL 2.27.5 \
                  (/venv/nccl.dist-info on titanic) does not choose ports by subnet: \
                  ranks may hang when they connect";
    assert_eq!(line, wanted);
    for way in ["NCCL 2.30.7 or newer", "--nccl-net-plugin PATH", "-x NCCL_IB_DISABLE=1"] {
        assert!(hint.contains(way), "{hint}");
    }
    assert_eq!(old_version_warning(&map, &with("2.30.7"), Shape::Mesh), None);
    assert_eq!(old_version_warning(&map, &with("2.27.5"), Shape::Rails), None);
    assert_eq!(
        old_version_warning(&map, &triangle(), Shape::Mesh),
        None,
        "nobody knows which NCCL"
    );
}

#[test]
fn modes_of_erdma_are_told_with_their_hosts() {
    let [compat, standard] = ["erdma-compat", "erdma-standard"].map(inventory);
    let map = job_of("p,d");
    let mixed = erdma_remedy(&map, &[compat.clone(), standard.clone()]).unwrap();
    let wanted = "eRDMA is in compat mode on p, in standard mode on d: these cannot connect. ";
    assert!(mixed.starts_with(wanted) && mixed.ends_with(ERDMA_COMPAT), "{mixed}");
    assert_eq!(erdma_remedy(&map, &[standard.clone(), standard]).as_deref(), Some(ERDMA_COMPAT));
    assert_eq!(erdma_remedy(&map, &[compat.clone(), compat]), None);
}

/// Returns a machine whose only port has this address, with this prefix length and GID index.
fn readdressed(address: Ipv6Addr, prefix: u8, index: u16) -> Inventory {
    let mut node = inventory("esxi-vm");
    let port = &mut node.rdma[0].ports[0];
    let netdev = port.netdev.clone().unwrap();
    let kind = rlaunch_bootstrap::inventory::rdma::GidKind::RoceV2;
    let gid = Gid { index, value: address, kind, netdev: Some(netdev.clone()) };
    let ip = gid.ip();
    port.gids = vec![gid];
    let behind = node.netdevs.iter_mut().find(|candidate| candidate.name == netdev).unwrap();
    behind.addresses = vec![(ip, prefix)];
    node
}

#[test]
fn ipv6_has_to_be_asked_for() {
    let [one, other] =
        ["fd00::1", "fd00::2"].map(|address| readdressed(address.parse().unwrap(), 64, 1));
    let set = variables_as_text(&[one, other], "a,b");
    for wanted in
        ["NCCL_IB_ADDR_FAMILY=AF_INET6", "NCCL_IB_ROCE_VERSION_NUM=2", "NCCL_IB_GID_INDEX=1"]
    {
        assert!(set.contains(&wanted.to_owned()), "{wanted}: {set:?}");
    }
}

#[test]
fn the_length_of_subnets_is_told_when_it_is_not_nccls() {
    // Two rails of /30 networks each: every port has a network of its own.
    let [mut one, mut other] = [1_u8, 2].map(|host| {
        let address = std::net::Ipv4Addr::new(10, 0, 0, host).to_ipv6_mapped();
        readdressed(address, 30, 3)
    });
    for (node, host) in [(&mut one, 5_u8), (&mut other, 6)] {
        let second = std::net::Ipv4Addr::new(10, 0, 0, host).to_ipv6_mapped();
        let mut more = readdressed(second, 30, 3);
        let mut device = more.rdma.remove(0);
        device.name = "mlx5_1".into();
        let mut netdev = more.netdevs.into_iter().find(|n| n.name == "ens224").unwrap();
        netdev.name = "ens225".into();
        device.ports[0].netdev = Some("ens225".into());
        device.ports[0].gids[0].netdev = Some("ens225".into());
        device.pci.as_mut().unwrap().address = "0000:1b:00.0".into();
        node.rdma.push(device);
        node.netdevs.push(netdev);
    }
    let set = variables_as_text(&[one, other], "a,b");
    for wanted in ["NCCL_CROSS_NIC=0", "NCCL_IB_SUBNET_PREFIX_LEN=30"] {
        assert!(set.contains(&wanted.to_owned()), "{wanted}: {set:?}");
    }
}

#[test]
fn a_socket_where_rdma_is_required_is_an_error() {
    let mut log = Log::new(false);
    log.read_lines(Rank(0), b"a:1:2 [0] NCCL INFO Using network IB\n");
    log.read_lines(Rank(1), b"b:1:2 [0] NCCL INFO Using network Socket\n");
    let ranks = [(Rank(0), "a".to_owned()), (Rank(1), "b".to_owned())];
    assert!(verify(&log, &ranks, &Options::default()).1.is_none());
    let options = Options { require_rdma: true, ..Options::default() };
    let failed = verify(&log, &ranks, &options).1.unwrap();
    assert_eq!(failed.exit, Exit::MESH);
    let wanted = "--require-rdma: rank 1 on b: TCP (Socket): RDMA is not used";
    assert_eq!(failed.message, wanted);
    assert!(verify(&log, &ranks[..1], &options).1.is_none());
}

#[test]
fn a_node_without_rdma_has_the_finding_of_its_first_port() {
    let found = |name: &str, change: fn(&mut Inventory)| {
        let mut node = inventory(name);
        change(&mut node);
        finding_for_tcp(&node, &PortOptions::default()).map(CheckId::as_str)
    };
    assert_eq!(found("no-rdma", |_| ()), Some("dev.absent"));
    assert_eq!(found("rxe", |_| ()), Some("dev.uverbs"));
    assert_eq!(found("container", |_| ()), Some("roce.netdev"));
    let unmanaged = |node: &mut Inventory| {
        node.rdma[0].ports[0].state = rlaunch_bootstrap::inventory::rdma::PortState::Init;
    };
    assert_eq!(found("connectx3", unmanaged), Some("ib.no-sm"));
    assert_eq!(found("siw", |_| ()), None, "it can be used");
}

#[test]
fn versions_are_compared_by_their_numbers() {
    let version = |text: &str| text.parse::<Version>().unwrap();
    assert!(version("2.9.7") < version("2.27.3+cuda12.9"));
    assert!(version("2.30.7") >= Version::SUBNET_AWARE);
    assert!(version("2.30.6-1") < Version::SUBNET_AWARE);
    for text in ["", "2", "2.30", "2.x.1", "v2.30.7", "99999999999.1.1"] {
        assert_eq!(text.parse::<Version>(), Err(BadVersion), "{text:?}");
    }
}
