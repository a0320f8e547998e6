//! Networks that a port reaches, and the ports of a job that reach each other.
//!
//! A port reaches the subnet of its interface and the destinations of routes through that interface. RDMA packets of a
//! port are bound to its interface, so routes through other interfaces do not matter.

use super::{PortOptions, usable};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::rank_table::{Nic, NicId, PairException, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// IP subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subnet {
    /// Number of host bits. As this field is the first, smaller subnets sort first.
    host_bits: u8,
    address: IpAddr,
}

impl Subnet {
    /// Returns the subnet of an address, for a prefix length in bits.
    pub fn new(address: IpAddr, prefix: u8) -> Subnet {
        let bits = width(address);
        let host_bits = bits.saturating_sub(prefix);
        Subnet { host_bits, address: masked(address, host_bits) }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && masked(address, self.host_bits) == self.address
    }

    /// Tells whether some address is in both subnets.
    pub fn overlaps(&self, other: &Subnet) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// Returns the first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the prefix length in bits.
    pub fn prefix(&self) -> u8 {
        width(self.address) - self.host_bits
    }
}

/// Writes address and prefix length, such as `10.3.0.0/16`.
impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix())
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Clears the host bits of an address.
fn masked(address: IpAddr, host_bits: u8) -> IpAddr {
    let host_bits = u32::from(host_bits);
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
            IpAddr::from((v4.to_bits() & mask).to_be_bytes())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
            IpAddr::from((v6.to_bits() & mask).to_be_bytes())
        }
    }
}

/// Networks that a port reaches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reachability {
    /// The InfiniBand subnet with this prefix.
    Subnet(u64),
    /// The IP subnets that packets from this source address reach, smallest subnet first.
    Networks(IpAddr, Vec<Subnet>),
    /// No networks, since the port has no address.
    Nowhere,
}

impl Reachability {
    /// Returns the networks that packets from an address of the interface `netdev` reach.
    pub(crate) fn from_interface(
        inventory: &Inventory,
        netdev: &str,
        address: IpAddr,
    ) -> Reachability {
        let routes = inventory.routes.iter().filter(|route| route.netdev == netdev);
        let routes = routes.map(|route| Subnet::new(route.destination, route.prefix));
        let own = inventory.netdevs.iter().filter(|candidate| candidate.name == netdev);
        let own = own.flat_map(|netdev| &netdev.addresses);
        let own =
            own.filter(|(own, _)| *own == address).map(|(own, bits)| Subnet::new(*own, *bits));
        let same_family = |network: &Subnet| network.address.is_ipv4() == address.is_ipv4();
        let mut networks: Vec<Subnet> = own.chain(routes).filter(same_family).collect();
        networks.sort_unstable();
        networks.dedup();
        Reachability::Networks(address, networks)
    }

    /// Returns the networks that contain the port's own address, in the format of the rank table.
    pub(crate) fn networks(&self) -> Vec<String> {
        match self {
            Reachability::Subnet(prefix) => vec![format!("ib {prefix:016x}")],
            Reachability::Networks(own, networks) => {
                let around = networks.iter().filter(|network| network.contains(*own));
                around.map(Subnet::to_string).collect()
            }
            Reachability::Nowhere => Vec::new(),
        }
    }

    /// Returns the smallest subnet that contains the port's address.
    pub(crate) fn own_subnet(&self) -> Option<Subnet> {
        match self {
            Reachability::Networks(own, networks) => {
                networks.iter().copied().find(|n| n.contains(*own))
            }
            Reachability::Subnet(_) | Reachability::Nowhere => None,
        }
    }

    /// Tells whether each of two ports reaches the other's address. The ports must have the same transport.
    pub(crate) fn reach(&self, other: &Reachability) -> bool {
        match (self, other) {
            (Reachability::Subnet(one), Reachability::Subnet(other)) => one == other,
            (Reachability::Networks(own, ours), Reachability::Networks(other, theirs)) => {
                let is_routed =
                    |networks: &[Subnet], to: IpAddr| networks.iter().any(|n| n.contains(to));
                is_routed(ours, *other) && is_routed(theirs, *own)
            }
            _ => false,
        }
    }

    /// Tells whether the networks of each port overlap the other port's own subnet. If they do not, no port
    /// in one of these subnets reaches a port in the other, so that addresses need not be compared one by
    /// one.
    pub(crate) fn may_reach(&self, other: &Reachability) -> bool {
        let (Reachability::Networks(_, ours), Reachability::Networks(_, theirs)) = (self, other)
        else {
            return false;
        };
        let is_routed = |networks: &[Subnet], to: Option<Subnet>| {
            to.is_some_and(|to| networks.iter().any(|network| network.overlaps(&to)))
        };
        is_routed(ours, other.own_subnet()) && is_routed(theirs, self.own_subnet())
    }
}

/// Usable RDMA port with one of its addresses, and the networks that it reaches from this address.
#[derive(Clone, Debug)]
pub struct UsablePort {
    pub nic: Nic,
    pub(crate) reachability: Reachability,
    /// Ports that this one does not reach according to a failed proof, although their networks say otherwise.
    pub(crate) failed_proofs: Vec<PortIdentity>,
}

/// GID and IP address of a port, by which it differs from all other ports of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortIdentity(Option<String>, Option<IpAddr>);

pub fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

impl UsablePort {
    /// Tells whether this is a RoCE port and the address in this entry is link-local.
    pub(super) fn is_link_local(&self) -> bool {
        self.nic.transport == Transport::Roce && self.nic.address.is_some_and(is_link_local)
    }

    pub fn identity(&self) -> PortIdentity {
        PortIdentity(self.nic.gid.clone(), self.nic.address)
    }

    pub fn reach(&self, other: &UsablePort) -> bool {
        self.should_reach(other)
            && (self.failed_proofs.is_empty() || !self.failed_proofs.contains(&other.identity()))
    }

    /// Tells whether two ports reach each other according to their networks, regardless of failed proofs.
    pub fn should_reach(&self, other: &UsablePort) -> bool {
        self.nic.transport == other.nic.transport && self.reachability.reach(&other.reachability)
    }
}

/// Writes port, address and interface, such as `mlx5_0/1 192.168.1.2/24 (eth1)`.
impl fmt::Display for UsablePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Nic { device, port, netdev, address, transport, .. } = &self.nic;
        write!(f, "{device}/{port}")?;
        match (&self.reachability, address) {
            (Reachability::Subnet(prefix), _) => {
                return write!(f, " InfiniBand subnet {prefix:016x}");
            }
            (reachability, Some(address)) => {
                let prefix =
                    reachability.own_subnet().map(|network| format!("/{}", network.prefix()));
                write!(f, " {address}{}", prefix.unwrap_or_default())?;
            }
            (_, None) => f.write_str(" without an address")?,
        }
        if let Some(netdev) = netdev {
            write!(f, " ({netdev})")?;
        }
        if *transport == Transport::Iwarp { f.write_str(" RDMA_CM") } else { Ok(()) }
    }
}

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

/// Transport and networks of a port, which decide whether ports share a network. The transport is a number, because the
/// type has no order.
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
    Networks(&'a [Subnet]),
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

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::inventory::net::Netdev;

    /// Returns the networks reached from an interface `eth1` with this address and these routes.
    fn reachability(address: &str, routes: &[&str]) -> Reachability {
        let (ip, prefix) = address.split_once('/').unwrap();
        let ip = ip.parse().unwrap();
        let addresses = vec![(ip, prefix.parse().unwrap())];
        let inventory = Inventory {
            netdevs: vec![Netdev { name: "eth1".into(), addresses, ..Netdev::default() }],
            routes: routes.iter().map(|route| route.parse().unwrap()).collect(),
            ..Inventory::default()
        };
        Reachability::from_interface(&inventory, "eth1", ip)
    }

    #[test]
    fn networks_are_those_of_the_interface() {
        let one = reachability(
            "10.3.7.1/31",
            &["eth1 10.3.0.0/16 via 10.3.7.0", "eth1 10.9.0.0/16", "eth0 0.0.0.0/0", "eth1 ::/0"],
        );
        assert_eq!(one.networks(), ["10.3.7.0/31", "10.3.0.0/16"]);
        assert_eq!(one.own_subnet().unwrap().to_string(), "10.3.7.0/31");
        let everything = reachability("fd00::1/64", &["eth1 ::/0 via fe80::1"]);
        assert_eq!(everything.networks(), ["fd00::/64", "::/0"]);
    }

    #[test]
    fn each_must_lead_to_the_other() {
        let rail = |address: &str| reachability(address, &["eth1 10.3.0.0/16 via 10.3.0.0"]);
        assert!(rail("10.3.7.1/31").reach(&rail("10.3.9.1/31")));
        assert!(!rail("10.3.7.1/31").reach(&reachability("10.3.9.1/31", &[])));
        assert!(reachability("10.0.0.1/16", &[]).reach(&reachability("10.0.0.2/24", &[])));
        assert!(!reachability("10.0.0.1/16", &[]).reach(&reachability("10.0.1.2/24", &[])));
        assert!(!reachability("10.0.0.1/8", &[]).reach(&reachability("fd00::1/8", &[])));
        assert!(!reachability("10.0.0.1/8", &[]).reach(&Reachability::Subnet(1)));
        assert!(!Reachability::Nowhere.reach(&Reachability::Nowhere));
        assert!(Reachability::Subnet(1).reach(&Reachability::Subnet(1)));
    }
}
