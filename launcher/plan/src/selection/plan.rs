//! Ports of a job, and which of them reach each other.

use super::{PortOptions, Reachability, UsablePort, usable};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::rank_table::{NicId, PairException, Transport};
use std::collections::{BTreeMap, BTreeSet};

/// Usable RDMA ports of all nodes, and which of them reach each other.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Usable ports by node. A node's ports are in the order of its NICs in the rank table.
    pub ports: Vec<Vec<UsablePort>>,
    /// Exceptions to the rule that two ports reach each other if they share a network: pairs of ports that
    /// differ from the rule, and pairs with a limited MTU.
    pub exceptions: Vec<PairException>,
}

impl Plan {
    /// Makes the plan from the inventories of all nodes, by node.
    pub fn new(inventories: &[Inventory], options: &PortOptions) -> Plan {
        let ports: Vec<Vec<UsablePort>> =
            inventories.iter().map(|inventory| usable(inventory, options)).collect();
        let exceptions = exceptions(&ports);
        Plan { ports, exceptions }
    }

    /// Tells whether any two nodes have ports that reach each other.
    pub fn connects_any(&self) -> bool {
        let nodes = 0..self.ports.len();
        nodes.clone().any(|a| nodes.clone().any(|b| a != b && self.nodes_connect(a, b)))
    }

    /// Tells whether a port of one node reaches a port of another.
    pub fn nodes_connect(&self, one: usize, other: usize) -> bool {
        let reach = |a: &UsablePort| self.ports[other].iter().any(|b| a.reach(b));
        self.ports[one].iter().any(reach)
    }

    /// Records that two ports do not reach each other, as a failed proof has shown. The port of the node with
    /// the lower id is first.
    pub(crate) fn exclude_pair(&mut self, (one, other): (NicId, NicId)) {
        let identities = [one, other].map(|end| self.port(end).identity());
        let [of_one, of_other] = identities;
        let can_reach_by_rule = self.port(one).nic.can_reach(&self.port(other).nic);
        self.port_mut(one).failed_proofs.push(of_other);
        self.port_mut(other).failed_proofs.push(of_one);
        self.set_exception((one, other), can_reach_by_rule.then_some((false, None)));
    }

    /// Limits the MTU between two ports to `mtu` bytes. The port of the node with the lower id is first.
    pub(crate) fn limit_mtu(&mut self, nics: (NicId, NicId), mtu: u32) {
        self.set_exception(nics, Some((true, Some(mtu))));
    }

    /// Replaces the entry for two ports in `exceptions`, or removes it if `reach` is `None`. `reach` has
    /// whether the ports reach each other and, if limited, their MTU in bytes.
    fn set_exception(&mut self, (a, b): (NicId, NicId), reach: Option<(bool, Option<u32>)>) {
        self.exceptions.retain(|known| (known.a, known.b) != (a, b));
        self.exceptions.extend(reach.map(|(reach, mtu)| PairException { a, b, reach, mtu }));
        self.exceptions.sort_unstable_by_key(|exception| (exception.a, exception.b));
    }

    fn port(&self, end: NicId) -> &UsablePort {
        &self.ports[end.node.index()][end.nic as usize]
    }

    fn port_mut(&mut self, end: NicId) -> &mut UsablePort {
        &mut self.ports[end.node.index()][end.nic as usize]
    }

    /// Lists the nodes without a usable port.
    pub(crate) fn nodes_without_ports(&self) -> impl Iterator<Item = usize> {
        let empty = self.ports.iter().enumerate().filter(|(_, ports)| ports.is_empty());
        empty.map(|(node, _)| node)
    }

    /// Lists the pairs of nodes that both have usable ports, but no two ports that reach each other. The node
    /// with the lower id is first.
    pub(crate) fn unconnected_pairs(&self) -> Vec<(usize, usize)> {
        // Nodes whose ports are in the same networks reach the same other nodes. In large jobs nearly all
        // nodes are alike, so comparing groups is much cheaper than comparing nodes.
        let mut by_kinds: BTreeMap<Vec<PortKind<'_>>, Vec<usize>> = BTreeMap::new();
        for (node, ports) in self.ports.iter().enumerate().filter(|(_, ports)| !ports.is_empty()) {
            by_kinds.entry(ports.iter().map(kind).collect()).or_default().push(node);
        }
        let groups: Vec<(&Vec<PortKind<'_>>, &Vec<usize>)> = by_kinds.iter().collect();
        let mut unconnected = Vec::new();
        for (at, (kinds, nodes)) in groups.iter().enumerate() {
            for (other_kinds, others) in &groups[at..] {
                let common =
                    kinds.iter().any(|one| other_kinds.iter().any(|two| share_network(one, two)));
                if common {
                    continue;
                }
                let pairs = nodes.iter().flat_map(|&a| others.iter().map(move |&b| (a, b)));
                let ordered = pairs.map(|(a, b)| (a.min(b), a.max(b))).filter(|(a, b)| a < b);
                unconnected.extend(ordered.filter(|&(a, b)| !self.nodes_connect(a, b)));
            }
        }
        unconnected.sort_unstable();
        unconnected.dedup();
        unconnected
    }
}

/// Transport and networks of a port, which decide whether ports share a network.
type PortKind<'a> = (u8, &'a [String]);

fn kind(port: &UsablePort) -> PortKind<'_> {
    let transport = match port.nic.transport {
        Transport::Infiniband => 0,
        Transport::Roce => 1,
        Transport::Iwarp => 2,
    };
    (transport, &port.nic.networks)
}

fn share_network(one: &PortKind<'_>, other: &PortKind<'_>) -> bool {
    one.0 == other.0 && one.1.iter().any(|network| other.1.contains(network))
}

/// Finds ports of different nodes that reach each other without a common network: by routes, or because
/// their prefix lengths differ.
fn exceptions(ports: &[Vec<UsablePort>]) -> Vec<PairException> {
    // Ports that reach the same networks differ only in their addresses.
    let mut by_networks: BTreeMap<(PortKind<'_>, SameNetworks<'_>), Vec<(NicId, &UsablePort)>> =
        BTreeMap::new();
    for (node, ports) in (0..).map(NodeId).zip(ports) {
        for (nic, port) in (0..).zip(ports) {
            let end = NicId { node, nic };
            by_networks
                .entry((kind(port), SameNetworks::from_reachability(&port.reachability)))
                .or_default()
                .push((end, port));
        }
    }
    let groups: Vec<_> = by_networks.iter().collect();
    let mut found = BTreeSet::new();
    for (at, ((kind, _), members)) in groups.iter().enumerate() {
        for ((other_kind, _), others) in &groups[at..] {
            let (Some((_, one)), Some((_, other))) = (members.first(), others.first()) else {
                continue;
            };
            let is_open = kind.0 == other_kind.0 && !share_network(kind, other_kind);
            if !is_open || !one.reachability.may_reach(&other.reachability) {
                continue;
            }
            for ((a, one), (b, other)) in
                members.iter().flat_map(|a| others.iter().map(move |b| (a, b)))
            {
                if a.node != b.node && one.reach(other) {
                    found.insert((*a.min(b), *a.max(b)));
                }
            }
        }
    }
    found.into_iter().map(|(a, b)| PairException { a, b, reach: true, mtu: None }).collect()
}

/// Networks that a port reaches, without the port's own address. Ports with equal values are treated as a
/// group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SameNetworks<'a> {
    Subnet(u64),
    Networks(&'a [super::network::Subnet]),
    Nowhere,
}

impl SameNetworks<'_> {
    fn from_reachability(reachability: &Reachability) -> SameNetworks<'_> {
        match reachability {
            Reachability::Subnet(prefix) => SameNetworks::Subnet(*prefix),
            Reachability::Networks(_, networks) => SameNetworks::Networks(networks),
            Reachability::Nowhere => SameNetworks::Nowhere,
        }
    }
}
