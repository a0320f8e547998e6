//! What each rank is given once every node's inventory is known: its place, and variables by which
//! libraries find their network. None of these overrides what the user or the host has set.

use crate::exit::Exit;
use crate::map::RankMap;
use crate::placement::{self, Bind, Placement};
use crate::report::Failed;
use crate::selection::{self, Addressing, Rejection};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::inventory::rdma::NodeType;
use rlaunch_bootstrap::job::{EnvVar, RankSetup};
use rlaunch_bootstrap::table::Nic;
use std::ffi::OsStr;
use std::net::IpAddr;

/// Who has set any of these has chosen a network, and is left alone.
const NETWORK: &[&str] = &["NCCL_IB_", "NCCL_NET", "UCX_"];

/// eRDMA as it comes takes RDMA_CM only; the switch drops every connection of the host's.
const ERDMA_COMPAT: &str = "eRDMA works with NCCL in compat mode, to be set on each host: \
    echo 'options erdma compat_mode=Y' | sudo tee /etc/modprobe.d/erdma.conf; sudo rmmod erdma; \
    sudo modprobe erdma compat_mode=Y";

/// A variable, and why it has this value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Default {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) reason: String,
}

/// What one rank is given.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) placement: Placement,
    /// Its GPU, by PCI address.
    pub(crate) gpu: Option<String>,
    /// Its NICs, as indices into [`nics`] of its node, nearest first.
    pub(crate) nics: Vec<u32>,
    pub(crate) defaults: Vec<Default>,
}

impl Setup {
    /// As its agent is told.
    pub(crate) fn told(&self) -> RankSetup {
        let pair = |default: &Default| (default.name.to_owned(), default.value.clone());
        RankSetup {
            cpus: self.placement.cpus.clone(),
            memory_node: self.placement.numa_node.filter(|_| self.placement.cpus.is_some()),
            defaults: self.defaults.iter().map(pair).collect(),
        }
    }
}

/// By node and local rank. `inventories` and `addresses` are by node, `env` is what every rank gets
/// from the launching shell.
pub(crate) fn decide(
    map: &RankMap,
    inventories: &[Inventory],
    addresses: &[IpAddr],
    bind: &Bind,
    env: &[EnvVar],
) -> Result<Vec<Vec<Setup>>, Failed> {
    let network = (!has_chosen(env)).then(|| Network::of(map, inventories));
    let nodes = map.nodes.iter().zip(inventories).zip(addresses);
    let decided = nodes.map(|((node, inventory), &address)| {
        let ranks = node.ranks.len();
        let placements = placement::place(inventory, ranks, bind)
            .map_err(|error| Failed::new(Exit::USAGE, format!("{}: {error}", node.host)))?;
        let mut defaults = vec![threads(inventory, ranks)];
        if map.nodes.len() > 1 {
            defaults.extend(sockets(inventory, address));
            defaults.extend(network.iter().flat_map(|network| network.verbs(inventory)));
        }
        let setup = |placement: Placement| {
            let gpu = placement.gpu.and_then(|gpu| inventory.gpus.get(gpu)).map(|gpu| &gpu.pci);
            let nics = nearest_first(inventory, gpu, placement.numa_node);
            let gpu = gpu.map(|pci| pci.address.clone());
            Setup { placement, gpu, nics, defaults: defaults.clone() }
        };
        Ok(placements.into_iter().map(setup).collect())
    });
    decided.collect()
}

/// The NICs of a node, as the rank table has them.
pub(crate) fn nics(inventory: &Inventory) -> Vec<Nic> {
    let usable = selection::usable(inventory).into_iter();
    usable.map(|usable| usable.nic(&inventory.netdevs)).collect()
}

fn nearest_first(
    inventory: &Inventory,
    gpu: Option<&PciDevice>,
    numa_node: Option<u32>,
) -> Vec<u32> {
    let usable = selection::usable(inventory);
    let mut nics: Vec<(Distance, u32)> =
        usable.iter().zip(0..).map(|(nic, index)| (nic.distance(gpu, numa_node), index)).collect();
    nics.sort_unstable();
    nics.into_iter().map(|(_, index)| index).collect()
}

/// Whether the user has said which network to use.
fn has_chosen(env: &[EnvVar]) -> bool {
    let starts_with =
        |name: &OsStr, prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
    env.iter().any(|var| NETWORK.iter().any(|prefix| starts_with(&var.name, prefix)))
}

/// What to say of a job whose GPUs, on several nodes, will not meet by RDMA, and what could be done;
/// nothing when they will, or when the user has chosen a network.
pub(crate) fn slow_network(
    map: &RankMap,
    inventories: &[Inventory],
    env: &[EnvVar],
) -> Option<(String, Option<&'static str>)> {
    let with_gpus = inventories.iter().filter(|inventory| !inventory.gpus.is_empty()).count();
    if with_gpus < 2 || has_chosen(env) {
        return None;
    }
    let why = Network::of(map, inventories).without?;
    let is_erdma = |inventory: &Inventory| {
        inventory.rdma.iter().any(|device| {
            device.node_type == NodeType::Rnic && device.driver.as_deref() == Some("erdma")
        })
    };
    let hint = inventories.iter().any(is_erdma).then_some(ERDMA_COMPAT);
    Some((format!("NCCL will use TCP on every host ({why})"), hint))
}

/// OpenMP would give every rank a thread for each processor.
fn threads(inventory: &Inventory, ranks: usize) -> Default {
    let usable = inventory.cpus.usable();
    let value = (usable / ranks.max(1)).max(1).to_string();
    let reason = format!("{usable} CPUs for {ranks} ranks of this node");
    Default { name: "OMP_NUM_THREADS", value, reason }
}

/// The interface by which other nodes reach this one; names differ from host to host. NCCL takes
/// `=` for an exact name, where it would take `eth1` for the beginning of `eth10` as well.
fn sockets(inventory: &Inventory, address: IpAddr) -> Vec<Default> {
    let has_it = |netdev: &&_| has_address(netdev, address);
    let Some(netdev) = inventory.netdevs.iter().find(has_it) else { return Vec::new() };
    let reason = format!("{address} of {} is how other nodes reach this one", netdev.name);
    let default = |(name, value)| Default { name, value, reason: reason.clone() };
    let exact = format!("={}", netdev.name);
    [
        ("NCCL_SOCKET_IFNAME", exact),
        ("GLOO_SOCKET_IFNAME", netdev.name.clone()),
        ("TP_SOCKET_IFNAME", netdev.name.clone()),
    ]
    .map(default)
    .into()
}

fn has_address(netdev: &Netdev, address: IpAddr) -> bool {
    !address.is_loopback() && netdev.addresses.iter().any(|(own, _)| *own == address)
}

/// Whether NCCL can use verbs on every node; it cannot mix.
struct Network {
    /// Why not, of the first node where it cannot.
    without: Option<String>,
}

impl Network {
    fn of(map: &RankMap, inventories: &[Inventory]) -> Network {
        let nodes = map.nodes.iter().zip(inventories);
        let without = nodes.filter(|(_, inventory)| exact_ports(inventory).is_empty());
        let without = without.map(|(node, inventory)| format!("{}: {}", node.host, why(inventory)));
        Network { without: without.into_iter().next() }
    }

    /// Which ports to use, or to use none.
    fn verbs(&self, inventory: &Inventory) -> Vec<Default> {
        if let Some(why) = &self.without {
            let (name, value) = ("NCCL_IB_DISABLE", "1".to_owned());
            return vec![Default { name, value, reason: why.clone() }];
        }
        let ports = exact_ports(inventory).join(",");
        let reason = "the RDMA ports that can be used".to_owned();
        let hca = format!("={ports}");
        vec![
            Default { name: "NCCL_IB_HCA", value: hca, reason: reason.clone() },
            Default { name: "UCX_NET_DEVICES", value: ports, reason },
        ]
    }
}

/// `mlx5_0:1`, for every port that works without the RDMA connection manager.
fn exact_ports(inventory: &Inventory) -> Vec<String> {
    let usable = selection::usable(inventory).into_iter();
    let by_address = usable.filter(|usable| usable.how != Addressing::ConnectionManager);
    by_address.map(|usable| format!("{}:{}", usable.device.name, usable.port.number)).collect()
}

/// Why a node has no port for NCCL.
fn why(inventory: &Inventory) -> String {
    let devices = inventory.rdma.iter();
    let ports = devices.flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    let reasons = ports.map(|(device, port)| {
        let name = format!("{}/{}", device.name, port.number);
        match selection::examine(device, port, &inventory.netdevs) {
            Ok(_) => format!("{name} takes RDMA_CM only"),
            Err(rejection @ Rejection::Down) => format!("{name} is {rejection}"),
            Err(rejection) => format!("{name}: {rejection}"),
        }
    });
    let reasons: Vec<String> = reasons.collect();
    if reasons.is_empty() { "no RDMA device".to_owned() } else { reasons.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::inventory;
    use rlaunch_bootstrap::inventory::net::NetdevKind;

    /// `NAME=value` of the first rank of each of two nodes.
    fn defaults(inventories: &[Inventory; 2], env: &[EnvVar]) -> [Vec<String>; 2] {
        let hosts = crate::hosts::parse(&["pc1:2,pc2:2".into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let addresses = inventories.each_ref().map(|inventory| {
            let netdevs = inventory.netdevs.iter().filter(|n| n.kind != NetdevKind::Loopback);
            netdevs.flat_map(|netdev| &netdev.addresses).next().unwrap().0
        });
        let decided = decide(&map, inventories, &addresses, &Bind::Numa, env).unwrap();
        let text = |default: &Default| format!("{}={}", default.name, default.value);
        [0, 1].map(|node: usize| decided[node][0].defaults.iter().map(text).collect())
    }

    #[test]
    fn a_pair_with_infiniband_uses_the_active_port_alone() {
        let pair = [inventory("connectx3"), inventory("connectx3")];
        let [one, _] = defaults(&pair, &[]);
        let wanted = [
            "OMP_NUM_THREADS=16",
            "NCCL_SOCKET_IFNAME==eno1",
            "GLOO_SOCKET_IFNAME=eno1",
            "TP_SOCKET_IFNAME=eno1",
            "NCCL_IB_HCA==mlx4_0:1",
            "UCX_NET_DEVICES=mlx4_0:1",
        ];
        assert_eq!(one, wanted);
    }

    #[test]
    fn a_node_of_the_triangle_uses_both_ports_and_its_management_interface() {
        let [one, _] = defaults(&[inventory("spark"), inventory("spark")], &[]);
        assert!(one.contains(&"NCCL_IB_HCA==rocep1s0f0:1,rocep1s0f1:1".to_owned()), "{one:?}");
        assert!(one.contains(&"NCCL_SOCKET_IFNAME==enP7s7".to_owned()), "{one:?}");
    }

    #[test]
    fn erdma_counts_in_compat_mode_alone() {
        let (compat, standard) = (inventory("erdma-compat"), inventory("erdma-standard"));
        let [one, _] = defaults(&[compat.clone(), compat.clone()], &[]);
        assert!(one.contains(&"NCCL_IB_HCA==erdma_0:1".to_owned()), "{one:?}");
        for pair in [[compat, standard.clone()], [standard.clone(), standard]] {
            let [one, other] = defaults(&pair, &[]);
            assert!(one.contains(&"NCCL_IB_DISABLE=1".to_owned()), "{one:?}");
            assert_eq!(one, other);
        }
    }

    #[test]
    fn where_one_node_has_none_nobody_uses_rdma() {
        let pair = [inventory("connectx3"), inventory("siw")];
        for node in defaults(&pair, &[]) {
            assert!(node.contains(&"NCCL_IB_DISABLE=1".to_owned()), "{node:?}");
            assert!(!node.iter().any(|text| text.contains("HCA") || text.contains("UCX")));
        }
    }

    #[test]
    fn gpus_that_meet_by_tcp_are_mentioned() {
        let hosts = crate::hosts::parse(&["ecs1,ecs2".into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let with_gpu = |name| {
            let gpus = inventory("connectx3").gpus;
            Inventory { gpus, ..inventory(name) }
        };
        let standard = [with_gpu("erdma-standard"), with_gpu("erdma-standard")];
        let (line, hint) = slow_network(&map, &standard, &[]).unwrap();
        let why = "ecs1: erdma_0/1 takes RDMA_CM only, erdma_1/1 is DOWN: no carrier";
        assert_eq!(line, format!("NCCL will use TCP on every host ({why})"));
        assert!(hint.unwrap().contains("modprobe erdma compat_mode=Y"));
        let compat = [with_gpu("erdma-compat"), with_gpu("erdma-compat")];
        assert_eq!(slow_network(&map, &compat, &[]), None);
        let without = [inventory("erdma-standard"), inventory("erdma-standard")];
        assert_eq!(slow_network(&map, &without, &[]), None, "no GPU, no NCCL");
    }

    #[test]
    fn whoever_has_chosen_a_network_is_left_alone() {
        let pair = [inventory("siw"), inventory("siw")];
        for name in ["NCCL_IB_HCA", "NCCL_NET_PLUGIN", "UCX_TLS"] {
            let rule = rlaunch_bootstrap::job::EnvRule::Set;
            let env = [EnvVar { name: name.into(), value: "x".into(), rule }];
            let [one, _] = defaults(&pair, &env);
            assert!(!one.iter().any(|text| text.contains("NCCL_IB")), "{one:?}");
        }
    }

    #[test]
    fn the_reason_names_host_and_port() {
        let hosts = crate::hosts::parse(&["pc1,vm2".into()]).unwrap();
        let map = RankMap::by_slot(&hosts, None, false).unwrap();
        let reason = |name| Network::of(&map, &[inventory("connectx3"), inventory(name)]).without;
        assert_eq!(reason("siw").unwrap(), "vm2: siw0/1 takes RDMA_CM only");
        assert!(reason("rxe").unwrap().starts_with("vm2: rxe0/1: its file in /dev/infiniband"));
        assert_eq!(reason("connectx3"), None);
    }
}
