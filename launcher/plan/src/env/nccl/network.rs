//! Network that NCCL can use: verbs if its ports connect all nodes, and which ports reach each other; connections
//! that NCCL cannot make although a cable is there, and the merging of a card's ports.
//!
//! A rank of NCCL listens on one network device, which its topology search chooses, and offers the addresses of
//! that device alone, at most two (`ncclIbListen`, src/transport/net_ib/connect.cc). The connecting rank looks for
//! a device of its own in the same subnet, from [`Version::SUBNET_AWARE`] on. NCCL merges the ports of one card
//! into one device, which then offers both ports' addresses, so that every cable is found. Ports of different
//! cards stay apart.

use super::Version;
use crate::selection::{Plan, UsablePort};
use rlaunch_bootstrap::inventory::{InstalledLibrary, Inventory};
use rlaunch_bootstrap::rank_table;

/// Network that NCCL uses for all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NcclNetwork {
    /// Verbs on every node.
    Verbs(Shape),
    /// TCP, with the reason.
    Tcp(String),
}

/// Topology of the nodes' ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Every port reaches every port of the other nodes.
    Flat,
    /// Every port reaches the ports of its own rail on all nodes.
    Rails,
    /// Which ports reach each other depends on the two nodes, for example if each pair of nodes has its own
    /// cable.
    Mesh,
}

/// Ports that NCCL may use, and what follows from them.
#[derive(Debug)]
pub struct NcclPorts<'a> {
    /// Ports by node.
    pub ports: Vec<Vec<&'a UsablePort>>,
    /// Topology of the ports, or why NCCL cannot use verbs.
    pub shape: Result<Shape, Obstacle>,
}

/// Reason why NCCL cannot use verbs. Nodes are indexes of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The node has no port that works without the RDMA connection manager.
    Portless(usize),
    /// No port of one node reaches a port of the other. `should_connect` tells whether their networks say
    /// otherwise, and a proof has failed.
    Pair { one: usize, other: usize, should_connect: bool },
}

impl<'a> NcclPorts<'a> {
    pub(crate) fn from_plan(plan: &'a Plan) -> NcclPorts<'a> {
        let usable: Vec<Vec<&UsablePort>> =
            plan.ports.iter().map(|ports| usable_without_cm(ports)).collect();
        let ports: Vec<Vec<&UsablePort>> =
            (0..usable.len()).map(|node| reaching_ports(&usable, node)).collect();
        let portless = ports.iter().position(Vec::is_empty);
        let shape = match portless {
            Some(node) => Err(Obstacle::Portless(node)),
            None => shape(&preferred_entries(&ports)).map_err(|(one, other)| {
                let connects = |a: &UsablePort| usable[other].iter().any(|b| a.should_reach(b));
                let should_connect = usable[one].iter().any(|port| connects(port));
                Obstacle::Pair { one, other, should_connect }
            }),
        };
        NcclPorts { ports, shape }
    }
}

/// Selects the ports that work without the RDMA connection manager; software devices only if there are
/// no others.
fn usable_without_cm(ports: &[UsablePort]) -> Vec<&UsablePort> {
    let without_cm = ports.iter().filter(|port| port.nic.transport != rank_table::Transport::Iwarp);
    let (software, hardware): (Vec<_>, Vec<_>) = without_cm.partition(|port| port.nic.software);
    if hardware.is_empty() { software } else { hardware }
}

/// Returns the node's ports that reach another node, or all its ports if none does.
fn reaching_ports<'a>(usable: &[Vec<&'a UsablePort>], node: usize) -> Vec<&'a UsablePort> {
    let others = || usable.iter().enumerate().filter(|(other, _)| *other != node);
    let is_used =
        |port: &&&UsablePort| others().flat_map(|(_, ports)| ports).any(|other| port.reach(other));
    let reaching: Vec<&UsablePort> = usable[node].iter().filter(is_used).copied().collect();
    if reaching.is_empty() { usable[node].clone() } else { reaching }
}

/// Keeps, for each port, only the entry with the preferred address, which is the one that NCCL uses.
fn preferred_entries<'a>(ports: &[Vec<&'a UsablePort>]) -> Vec<Vec<&'a UsablePort>> {
    ports.iter().map(|ports| first_of_each(ports).collect()).collect()
}

/// Determines the topology. The error has the indexes of two nodes that RDMA does not connect.
fn shape(ports: &[Vec<&UsablePort>]) -> Result<Shape, (usize, usize)> {
    let common = |ports: &mut dyn Iterator<Item = &&UsablePort>| {
        let Some(first) = ports.next() else { return true };
        let mut networks = first.nic.networks.clone();
        ports.for_each(|port| networks.retain(|network| port.nic.networks.contains(network)));
        !networks.is_empty()
    };
    // The networks decide for nearly all clusters, in a time that is linear in the number of nodes.
    // Otherwise, all pairs of nodes are compared below.
    let all_work = ports.iter().flatten().all(|port| port.failed_proofs.is_empty());
    if all_work && common(&mut ports.iter().flatten()) {
        return Ok(Shape::Flat);
    }
    let rails = |rail| ports.iter().flatten().filter(move |port| port.nic.rail == rail);
    let mut numbers: Vec<u32> = ports.iter().flatten().map(|port| port.nic.rail).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let whole = |&rail: &u32| rails(rail).count() >= ports.len() && common(&mut rails(rail));
    if all_work && numbers.iter().all(whole) {
        return Ok(Shape::Rails);
    }
    let (mut flat, mut aligned) = (true, true);
    for (one, own) in ports.iter().enumerate() {
        for (other, theirs) in ports.iter().enumerate().skip(one + 1) {
            let mut connected = false;
            for (a, b) in own.iter().flat_map(|a| theirs.iter().map(move |b| (a, b))) {
                let reach = a.reach(b);
                connected |= reach;
                flat &= reach;
                aligned &= reach || a.nic.rail != b.nic.rail;
            }
            if !connected {
                return Err((one, other));
            }
            let rails =
                |ports: &[&UsablePort]| ports.iter().map(|p| p.nic.rail).collect::<Vec<_>>();
            aligned &= rails(own) == rails(theirs);
        }
    }
    Ok(match (flat, aligned) {
        (true, _) => Shape::Flat,
        (_, true) => Shape::Rails,
        _ => Shape::Mesh,
    })
}

/// Returns the first entry of each port, which has the port's preferred address.
pub(super) fn first_of_each<'a>(ports: &[&'a UsablePort]) -> impl Iterator<Item = &'a UsablePort> {
    let before = move |at: usize| at.checked_sub(1).and_then(|at| ports.get(at));
    let is_first = move |(at, port): &(usize, &&UsablePort)| {
        before(*at).is_none_or(|before| before.nic.rail != port.nic.rail)
    };
    ports.iter().enumerate().filter(is_first).map(|(_, port)| *port)
}

/// Maximum number of addresses that a listening device offers.
const MAX_OFFERED: usize = 2;

/// Pair of nodes between which a cable runs that NCCL may not find. Nodes are indexes of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MissingEdge {
    pub one: usize,
    pub other: usize,
    /// Ports at the ends of a cable between the nodes, numbered in NCCL's order, from 0.
    pub ports: (usize, usize),
    /// Node of the two that listens on a port which may face elsewhere.
    pub listener: usize,
    /// Names of that node's ports, such as `mlx5_0`, which are not merged.
    pub(crate) unmerged: Vec<String>,
}

/// Tells whether NCCL may merge the ports of one card that are in different subnets. Versions that choose ports by
/// subnet must do so, to find every cable; older ones pair the ports of merged devices by their order and must not.
/// An unknown version may merge in a mesh, where older versions fail in any case.
pub(super) fn merges_ports(inventories: &[Inventory], network: &NcclNetwork) -> bool {
    match lowest_version(inventories) {
        Some(version) => version >= Version::SUBNET_AWARE,
        None => *network == NcclNetwork::Verbs(Shape::Mesh),
    }
}

/// Returns the lowest version of NCCL on these nodes, or `None` if none is known.
fn lowest_version<'a>(inventories: impl IntoIterator<Item = &'a Inventory>) -> Option<Version> {
    inventories.into_iter().filter_map(version).min()
}

fn version(inventory: &Inventory) -> Option<Version> {
    inventory.system.nccl.as_ref()?.version.parse().ok()
}

/// Returns the node's NCCL library if it cannot choose ports by subnet.
pub(crate) fn too_old(inventory: &Inventory) -> Option<&InstalledLibrary> {
    let is_old = version(inventory).is_some_and(|version| version < Version::SUBNET_AWARE);
    inventory.system.nccl.as_ref().filter(|_| is_old)
}

/// Returns the PCI address of a port's card, without the function; `None` for a software device.
pub(super) fn card<'a>(inventory: &'a Inventory, port: &UsablePort) -> Option<&'a str> {
    let device = inventory.rdma.iter().find(|device| device.name == port.nic.device)?;
    device.pci.as_ref()?.slot()
}

/// Lists the pairs of nodes with a cable that NCCL may not find, for versions that choose ports by subnet. Empty
/// unless which ports meet depends on the nodes.
pub(crate) fn missing_edges(inventories: &[&Inventory], plan: &Plan) -> Vec<MissingEdge> {
    let NcclPorts { ports, shape } = NcclPorts::from_plan(plan);
    let is_new = lowest_version(inventories.iter().copied())
        .is_some_and(|version| version >= Version::SUBNET_AWARE);
    if shape != Ok(Shape::Mesh) || !is_new {
        return Vec::new();
    }
    let ports: Vec<Vec<&UsablePort>> =
        ports.iter().map(|ports| first_of_each(ports).collect()).collect();
    let nodes = 0..ports.len();
    let pairs = nodes.clone().flat_map(|one| nodes.clone().skip(one + 1).map(move |o| (one, o)));
    let edge = |(one, other): (usize, usize)| {
        let ends = [(one, other), (other, one)];
        let (listener, _) = ends.into_iter().find(|&(listener, peer)| {
            let devices = devices(inventories[listener], &ports[listener]);
            !devices.iter().all(|device| faces(device, &ports[peer]))
        })?;
        let cable = cable(&ports[one], &ports[other])?;
        let names = ports[listener].iter().map(|port| port.nic.device.clone());
        Some(MissingEdge { one, other, ports: cable, listener, unmerged: names.collect() })
    };
    pairs.filter_map(edge).collect()
}

/// Groups a node's ports by NCCL's network devices: the ports of one card are one device.
fn devices<'a>(inventory: &Inventory, ports: &[&'a UsablePort]) -> Vec<Vec<&'a UsablePort>> {
    let mut devices: Vec<(Option<&str>, Vec<&UsablePort>)> = Vec::new();
    for port in ports {
        let card = card(inventory, port);
        match devices.iter_mut().find(|(known, _)| card.is_some() && *known == card) {
            Some((_, device)) => device.push(port),
            None => devices.push((card, vec![port])),
        }
    }
    devices.into_iter().map(|(_, ports)| ports).collect()
}

/// Tells whether a listening device offers an address that a port of the peer reaches.
fn faces(device: &[&UsablePort], peers: &[&UsablePort]) -> bool {
    device.iter().take(MAX_OFFERED).any(|port| peers.iter().any(|peer| port.reach(peer)))
}

/// Returns the numbers of two ports that reach each other, different ones if there are any.
fn cable(own: &[&UsablePort], theirs: &[&UsablePort]) -> Option<(usize, usize)> {
    let pairs = (0..own.len()).flat_map(|own| (0..theirs.len()).map(move |theirs| (own, theirs)));
    let joined = pairs.filter(|&(a, b)| own[a].reach(theirs[b]));
    joined.min_by_key(|(a, b)| a == b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::PortOptions;
    use crate::testing::{inventory, triangle};

    fn with_nccl(nodes: &[Inventory], version: &str) -> Vec<Inventory> {
        let library = InstalledLibrary { version: version.into(), path: "/nccl".into() };
        let with = |node: &Inventory| {
            let mut node = node.clone();
            node.system.nccl = Some(library.clone());
            node
        };
        nodes.iter().map(with).collect()
    }

    /// Moves each second port to a card of its own.
    fn on_single_port_cards(mut nodes: [Inventory; 3]) -> [Inventory; 3] {
        for device in nodes.iter_mut().flat_map(|node| &mut node.rdma) {
            let pci = device.pci.as_mut().unwrap();
            pci.address = match pci.address.as_str() {
                "0000:01:00.1" => "0000:02:00.0".into(),
                other => other.into(),
            };
        }
        nodes
    }

    fn found(nodes: &[Inventory]) -> Vec<(usize, usize, (usize, usize))> {
        let plan = Plan::new(nodes, &PortOptions::default());
        let nodes: Vec<&Inventory> = nodes.iter().collect();
        missing_edges(&nodes, &plan).into_iter().map(|e| (e.one, e.other, e.ports)).collect()
    }

    #[test]
    fn merged_ports_offer_every_cable() {
        assert!(found(&with_nccl(&triangle(), "2.30.7")).is_empty());
    }

    #[test]
    fn cards_with_one_port_offer_one_cable() {
        let nodes = on_single_port_cards(triangle());
        let expected = [(0, 1, (0, 0)), (0, 2, (1, 1)), (1, 2, (1, 0))];
        assert_eq!(found(&with_nccl(&nodes, "2.30.7")), expected);
        assert!(found(&with_nccl(&nodes, "2.28.9")).is_empty(), "it fails whatever the cabling");
        assert!(found(&nodes).is_empty(), "nobody knows");
    }

    #[test]
    fn rails_need_no_choice() {
        let nodes = vec![inventory("dgx"); 3];
        assert!(found(&with_nccl(&nodes, "2.30.7")).is_empty());
    }

    #[test]
    fn the_oldest_version_decides_about_merging() {
        let (mesh, rails) = (NcclNetwork::Verbs(Shape::Mesh), NcclNetwork::Verbs(Shape::Rails));
        let unknown = triangle();
        assert!(merges_ports(&unknown, &mesh) && !merges_ports(&unknown, &rails));
        let new = with_nccl(&unknown, "2.32.3");
        assert!(merges_ports(&new, &mesh) && merges_ports(&new, &rails));
        let mut mixed = new;
        mixed[1] = with_nccl(&unknown[..1], "2.28.9").remove(0);
        assert!(!merges_ports(&mixed, &mesh) && !merges_ports(&mixed, &rails));
    }
}
