//! Ports of a job, and which of them reach each other.

use super::{PortWishes, Reachability, Reachable, usable};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::rank_table::{NicId, PairException, Transport};
use std::collections::{BTreeMap, BTreeSet};

/// Usable RDMA ports of all nodes, and which of them reach each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Usable ports by node. A node's ports are in the order of its NICs in the rank table.
    pub(crate) ports: Vec<Vec<Reachable>>,
    /// Exceptions to the rule that two ports reach each other if they share a network: pairs of ports that
    /// differ from the rule, and pairs with a limited MTU.
    pub(crate) exceptions: Vec<PairException>,
}

impl Plan {
    /// Makes the plan from the inventories of all nodes, by node.
    pub(crate) fn new(inventories: &[Inventory], wishes: &PortWishes) -> Plan {
        let ports: Vec<Vec<Reachable>> =
            inventories.iter().map(|inventory| usable(inventory, wishes)).collect();
        let exceptions = exceptions(&ports);
        Plan { ports, exceptions }
    }

    /// Tells whether a port of one node reaches a port of another.
    pub(crate) fn meet(&self, one: usize, other: usize) -> bool {
        let reach = |a: &Reachable| self.ports[other].iter().any(|b| a.reach(b));
        self.ports[one].iter().any(reach)
    }

    /// Records that two ports do not reach each other, as a failed proof has shown. The port of the lower
    /// node is first.
    pub(crate) fn cut(&mut self, (one, other): (NicId, NicId)) {
        let identities = [one, other].map(|end| self.port(end).identity());
        let [of_one, of_other] = identities;
        let meets = self.port(one).nic.can_reach(&self.port(other).nic);
        self.port_mut(one).cut_off.push(of_other);
        self.port_mut(other).cut_off.push(of_one);
        self.except((one, other), meets.then_some((false, None)));
    }

    /// Limits the MTU between two ports to `mtu` bytes; the port of the lower node is first.
    pub(crate) fn limit(&mut self, nics: (NicId, NicId), mtu: u32) {
        self.except(nics, Some((true, Some(mtu))));
    }

    /// Replaces the entry for two ports in `exceptions`, or removes it if `reach` is `None`. `reach` has
    /// whether the ports reach each other and, if limited, their MTU in bytes.
    fn except(&mut self, (a, b): (NicId, NicId), reach: Option<(bool, Option<u32>)>) {
        self.exceptions.retain(|known| (known.a, known.b) != (a, b));
        self.exceptions.extend(reach.map(|(reach, mtu)| PairException { a, b, reach, mtu }));
        self.exceptions.sort_unstable_by_key(|exception| (exception.a, exception.b));
    }

    fn port(&self, end: NicId) -> &Reachable {
        &self.ports[end.node.index()][end.nic as usize]
    }

    fn port_mut(&mut self, end: NicId) -> &mut Reachable {
        &mut self.ports[end.node.index()][end.nic as usize]
    }

    /// Lists the nodes without a usable port.
    pub(crate) fn without(&self) -> impl Iterator<Item = usize> {
        let empty = self.ports.iter().enumerate().filter(|(_, ports)| ports.is_empty());
        empty.map(|(node, _)| node)
    }

    /// Lists the pairs of nodes that both have usable ports, but no two ports that reach each other. The
    /// lower node is first.
    pub(crate) fn apart(&self) -> Vec<(usize, usize)> {
        // Nodes whose ports are in the same networks reach the same other nodes. In large jobs nearly all
        // nodes are alike, so comparing groups is much cheaper than comparing nodes.
        let mut alike: BTreeMap<Vec<PortKind<'_>>, Vec<usize>> = BTreeMap::new();
        for (node, ports) in self.ports.iter().enumerate().filter(|(_, ports)| !ports.is_empty()) {
            alike.entry(ports.iter().map(kind).collect()).or_default().push(node);
        }
        let groups: Vec<(&Vec<PortKind<'_>>, &Vec<usize>)> = alike.iter().collect();
        let mut apart = Vec::new();
        for (at, (kinds, nodes)) in groups.iter().enumerate() {
            for (other_kinds, others) in &groups[at..] {
                let common = kinds.iter().any(|one| other_kinds.iter().any(|two| share(one, two)));
                if common {
                    continue;
                }
                let pairs = nodes.iter().flat_map(|&a| others.iter().map(move |&b| (a, b)));
                let ordered = pairs.map(|(a, b)| (a.min(b), a.max(b))).filter(|(a, b)| a < b);
                apart.extend(ordered.filter(|&(a, b)| !self.meet(a, b)));
            }
        }
        apart.sort_unstable();
        apart.dedup();
        apart
    }
}

/// Transport and networks of a port, which decide whether ports share a network.
type PortKind<'a> = (u8, &'a [String]);

fn kind(port: &Reachable) -> PortKind<'_> {
    let transport = match port.nic.transport {
        Transport::Infiniband => 0,
        Transport::Roce => 1,
        Transport::Iwarp => 2,
    };
    (transport, &port.nic.networks)
}

fn share(one: &PortKind<'_>, other: &PortKind<'_>) -> bool {
    one.0 == other.0 && one.1.iter().any(|network| other.1.contains(network))
}

/// Finds ports of different nodes that reach each other without a common network: by routes, or because
/// their prefix lengths differ.
fn exceptions(ports: &[Vec<Reachable>]) -> Vec<PairException> {
    // Ports that reach the same networks differ only in their addresses.
    let mut alike: BTreeMap<(PortKind<'_>, SameNetworks<'_>), Vec<(NicId, &Reachable)>> =
        BTreeMap::new();
    for (node, ports) in (0..).map(NodeId).zip(ports) {
        for (nic, port) in (0..).zip(ports) {
            let end = NicId { node, nic };
            alike.entry((kind(port), SameNetworks::of(&port.leads))).or_default().push((end, port));
        }
    }
    let groups: Vec<_> = alike.iter().collect();
    let mut found = BTreeSet::new();
    for (at, ((kind, _), members)) in groups.iter().enumerate() {
        for ((other_kind, _), others) in &groups[at..] {
            let (Some((_, one)), Some((_, other))) = (members.first(), others.first()) else {
                continue;
            };
            let is_open = kind.0 == other_kind.0 && !share(kind, other_kind);
            if !is_open || !one.leads.may_reach(&other.leads) {
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
    fn of(leads: &Reachability) -> SameNetworks<'_> {
        match leads {
            Reachability::Subnet(prefix) => SameNetworks::Subnet(*prefix),
            Reachability::Networks(_, networks) => SameNetworks::Networks(networks),
            Reachability::Nowhere => SameNetworks::Nowhere,
        }
    }
}
