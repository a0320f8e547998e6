//! Addresses of the out-of-band network, by which agents connect to each other: which addresses of a node
//! are worth trying, and in which order a child in the tree of agents dials its parent. Agents test a
//! chosen pair of addresses in both directions before they use it.

use rlaunch_bootstrap::job::{InterfaceAddress, NodeFacts};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use rlaunch_text::text;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Maximum number of addresses on which a node listens.
const MAX_ADDRESSES: usize = 8;
/// Maximum number of address pairs that a child in the tree of agents tries when it connects to its parent.
const MAX_PAIRS: usize = 12;

/// IP network in CIDR notation, such as `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl std::str::FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wanted = || "a network like 10.1.0.0/16 or fd00:1::/64".to_owned();
        let (address, prefix) = text.trim().split_once('/').ok_or_else(wanted)?;
        let address: IpAddr = address.parse().map_err(|_| wanted())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.parse().ok().filter(|&prefix: &u8| prefix <= bits);
        Ok(Network { address, prefix: prefix.ok_or_else(wanted)? })
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Network {
    fn contains(self, address: IpAddr) -> bool {
        let Network { address: own, prefix } = self;
        InterfaceAddress { interface: String::new(), address: own, prefix }.same_network(address)
    }
}

/// Constraints by the user on the addresses of the out-of-band network. An empty list allows all addresses.
#[derive(Clone, Debug, Default)]
pub struct AddressConstraints {
    pub interfaces: Vec<String>,
    pub networks: Vec<Network>,
    /// Addresses on the fabric, from the `[hosts.NAME]` tables of the configuration file. They are tried
    /// before all others.
    pub preferred: Vec<IpAddr>,
    /// Interfaces and networks to prefer on nodes that have them.
    pub preferences: Vec<Preference>,
}

impl AddressConstraints {
    /// Tells whether an address meets all of `preferences`.
    fn prefers(&self, address: &InterfaceAddress) -> bool {
        self.preferences.iter().all(|preference| preference.permits(address))
    }

    /// Tells whether an address is on an allowed interface and in an allowed network.
    pub fn allows(&self, address: &InterfaceAddress) -> bool {
        let interface = self.interfaces.is_empty() || self.interfaces.contains(&address.interface);
        let network = self.networks.is_empty()
            || self.networks.iter().any(|network| network.contains(address.address));
        interface && network
    }

    /// Returns the options `--oob-if` and `--oob-net` as the user gave them.
    fn describe(&self) -> String {
        let networks: Vec<String> = self.networks.iter().map(Network::to_string).collect();
        let mut options = Vec::new();
        if !self.interfaces.is_empty() {
            options.push(format!("--oob-if {}", self.interfaces.join(",")));
        }
        if !networks.is_empty() {
            options.push(format!("--oob-net {}", networks.join(",")));
        }
        options.join(" ")
    }
}

/// Lists the addresses of each node that are worth trying, best first.
///
/// # Errors
///
/// Returns an error if there are several nodes and one of them has no address that `constraints` allow.
pub fn candidates(
    nodes: &[(&str, &NodeFacts)],
    constraints: &AddressConstraints,
) -> Result<Vec<Vec<InterfaceAddress>>, Failed> {
    let mut found = Vec::with_capacity(nodes.len());
    let has_preferred = |facts: &NodeFacts| {
        facts.addresses.iter().any(|a| constraints.allows(a) && constraints.prefers(a))
    };
    let all_have = nodes.iter().all(|(_, facts)| has_preferred(facts));
    for (host, facts) in nodes {
        let mut addresses: Vec<InterfaceAddress> =
            facts.addresses.iter().filter(|a| constraints.allows(a)).cloned().collect();
        // If a node has no preferred address, it is reached by another address, so the other nodes keep
        // theirs too.
        addresses.retain(|address| !all_have || constraints.prefers(address));
        let own = |address: &InterfaceAddress| !is_shared(address.address, facts, nodes);
        // An address that other nodes have too, such as the address of a container engine's bridge, does
        // not lead to this node.
        if addresses.iter().any(own) {
            addresses.retain(own);
        }
        addresses.sort_by_key(|address| {
            let elsewhere = nodes.iter().filter(|(_, other)| reaches(address, other)).count();
            let is_preferred = constraints.preferred.contains(&address.address);
            let is_ssh = Some(address.address) == facts.ssh_address;
            (!is_preferred, !constraints.prefers(address), std::cmp::Reverse(elsewhere), !is_ssh)
        });
        addresses.truncate(MAX_ADDRESSES);
        if addresses.is_empty() && nodes.len() > 1 {
            return Err(no_address(host, facts, constraints));
        }
        found.push(addresses);
    }
    Ok(found)
}

/// Returns a warning for each preference that some nodes cannot meet. A job with a single node gets no
/// warnings.
pub fn unmet_preferences(
    nodes: &[(&str, &NodeFacts)],
    constraints: &AddressConstraints,
) -> Vec<String> {
    let preferences = constraints.preferences.iter().filter(|_| nodes.len() > 1);
    let lacks = |preference: &Preference, facts: &NodeFacts| {
        !facts.addresses.iter().any(|a| constraints.allows(a) && preference.permits(a))
    };
    let warning = |preference: &Preference| {
        let hosts = nodes.iter().filter(|(_, facts)| lacks(preference, facts));
        let hosts: Vec<&str> = hosts.map(|(host, _)| *host).collect();
        (!hosts.is_empty()).then(|| preference.unmet_warning(&text::list(&hosts), hosts.len()))
    };
    preferences.filter_map(warning).collect()
}

fn is_shared(address: IpAddr, facts: &NodeFacts, nodes: &[(&str, &NodeFacts)]) -> bool {
    let others = nodes.iter().filter(|(_, other)| !std::ptr::eq(*other, facts));
    others.flat_map(|(_, other)| &other.addresses).any(|other| other.address == address)
}

fn reaches(address: &InterfaceAddress, node: &NodeFacts) -> bool {
    node.addresses.iter().any(|other| address.same_network(other.address))
}

fn no_address(host: &str, facts: &NodeFacts, constraints: &AddressConstraints) -> Failed {
    let has: Vec<String> = facts
        .addresses
        .iter()
        .map(|a| format!("{} {}/{}", a.interface, a.address, a.prefix))
        .collect();
    let options = constraints.describe();
    if options.is_empty() {
        let message = format!("{host} has no address that the other nodes could reach");
        let hint = format!("`ip address` on {host} shows only loopback");
        return Failed::new(Exit::RENDEZVOUS, message).hint(Some(hint));
    }
    let has = if has.is_empty() { "none but loopback".to_owned() } else { has.join(", ") };
    let message = format!("{host} has no address for {options}: it has {has}");
    Failed::new(Exit::RENDEZVOUS, message)
}

/// Lists pairs of a local and a remote address by which a child in the tree of agents dials its parent,
/// best first: pairs within one subnet precede pairs that need a router. `listeners` are the addresses on
/// which the parent listens.
pub fn pairs(
    child: &[InterfaceAddress],
    parent: &[InterfaceAddress],
    listeners: &[SocketAddr],
) -> Vec<(IpAddr, SocketAddr)> {
    let mut pairs = Vec::new();
    for (far, there) in parent.iter().enumerate() {
        let Some(listener) = listeners.iter().find(|l| l.ip() == there.address) else { continue };
        for (near, here) in child.iter().enumerate() {
            let same_family = here.address.is_ipv4() == there.address.is_ipv4();
            if same_family && here.address != there.address {
                let apart = !here.same_network(there.address) || !there.same_network(here.address);
                pairs.push(((apart, far + near), (here.address, *listener)));
            }
        }
    }
    pairs.sort_by_key(|(order, _)| *order);
    pairs.truncate(MAX_PAIRS);
    pairs.into_iter().map(|(_, pair)| pair).collect()
}

/// Interfaces and networks to use or, for a parameter `…_exclude`, to avoid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Name of mpirun's parameter. If it ends in `_exclude`, the list names interfaces and networks to
    /// avoid.
    parameter: String,
    list: String,
    entries: Vec<InterfaceOrNetwork>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum InterfaceOrNetwork {
    Interface(String),
    Network(Network),
}

impl FromStr for Preference {
    type Err = String;

    /// Parses the name and the value of a parameter: `oob_tcp_if_include eth0,10.1.0.0/16`.
    fn from_str(text: &str) -> Result<Preference, String> {
        let wanted =
            || "interfaces or networks separated by commas, such as eth0,10.1.0.0/16".to_owned();
        let (parameter, list) = text.split_once(' ').ok_or_else(wanted)?;
        let entry = |text: &str| match text.trim() {
            "" => Err(wanted()),
            network if network.contains('/') => network.parse().map(InterfaceOrNetwork::Network),
            interface => Ok(InterfaceOrNetwork::Interface(interface.to_owned())),
        };
        let entries = list.split(',').map(entry).collect::<Result<_, _>>()?;
        Ok(Preference { parameter: parameter.to_owned(), list: list.to_owned(), entries })
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--mca {} {}", self.parameter, self.list)
    }
}

impl Preference {
    fn excludes(&self) -> bool {
        self.parameter.ends_with("_exclude")
    }

    /// Tells whether the preference permits the use of an address.
    fn permits(&self, address: &InterfaceAddress) -> bool {
        let is_named = self.entries.iter().any(|entry| match entry {
            InterfaceOrNetwork::Interface(name) => *name == address.interface,
            InterfaceOrNetwork::Network(network) => network.contains(address.address),
        });
        is_named != self.excludes()
    }

    /// Returns the warning for `count` hosts without a suitable address; `hosts` has their names, separated
    /// by commas.
    fn unmet_warning(&self, hosts: &str, count: usize) -> String {
        let (have, agents, use_) = match count {
            1 => ("has", "its agent", "uses"),
            _ => ("have", "their agents", "use"),
        };
        let another = if count == 1 { "another" } else { "others" };
        if self.excludes() {
            format!("{hosts} {have} no interface but those of {self}: {agents} {use_} them")
        } else {
            format!("{hosts} {have} no interface of {self}: {agents} {use_} {another}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(ssh: &str, addresses: &[(&str, &str)]) -> NodeFacts {
        let address = |&(interface, text): &(&str, &str)| {
            let (address, prefix) = text.split_once('/').unwrap();
            InterfaceAddress {
                interface: interface.into(),
                address: address.parse().unwrap(),
                prefix: prefix.parse().unwrap(),
            }
        };
        NodeFacts {
            hostname: "n".into(),
            arch: "x86_64".into(),
            pid: 1,
            guardian: 1,
            uid: 0,
            addresses: addresses.iter().map(address).collect(),
            ssh_address: ssh.parse().ok(),
            gpus: 0,
            machine: String::new(),
        }
    }

    fn candidates_as_text(
        nodes: &[NodeFacts],
        constraints: &AddressConstraints,
    ) -> Result<Vec<Vec<String>>, Failed> {
        let named: Vec<(&str, &NodeFacts)> = ["a", "b", "c"].into_iter().zip(nodes).collect();
        let found = candidates(&named, constraints)?;
        let text =
            |list: &Vec<InterfaceAddress>| list.iter().map(|a| a.address.to_string()).collect();
        Ok(found.iter().map(text).collect())
    }

    fn constraints(interfaces: &[&str], networks: &[&str]) -> AddressConstraints {
        let interfaces = interfaces.iter().map(ToString::to_string).collect();
        let networks = networks.iter().map(|n| n.parse().unwrap()).collect();
        AddressConstraints { interfaces, networks, ..AddressConstraints::default() }
    }

    fn preferring(preferences: &[&str]) -> AddressConstraints {
        let preferences = preferences.iter().map(|text| text.parse().unwrap()).collect();
        AddressConstraints { preferences, ..AddressConstraints::default() }
    }

    #[test]
    fn networks_of_all_come_first_and_bridges_of_all_never() {
        let docker = ("docker0", "172.17.0.1/16");
        let a = facts("192.0.2.1", &[docker, ("eth0", "192.0.2.1/24"), ("eth1", "10.1.0.1/16")]);
        let b =
            facts("198.51.100.2", &[docker, ("eth0", "198.51.100.2/24"), ("eth1", "10.1.0.2/16")]);
        let found = candidates_as_text(&[a, b], &AddressConstraints::default()).unwrap();
        assert_eq!(found, [["10.1.0.1", "192.0.2.1"], ["10.1.0.2", "198.51.100.2"]]);
    }

    #[test]
    fn addresses_of_the_fabric_come_before_others() {
        let a = facts("10.1.0.1", &[("eth0", "10.1.0.1/16"), ("ib0", "10.2.0.1/24")]);
        let b = facts("10.1.0.2", &[("eth0", "10.1.0.2/16"), ("ib0", "10.2.0.2/24")]);
        let mut constraints = AddressConstraints::default();
        let found = candidates_as_text(&[a.clone(), b.clone()], &constraints).unwrap();
        assert_eq!(found, [["10.1.0.1", "10.2.0.1"], ["10.1.0.2", "10.2.0.2"]]);
        constraints.preferred = vec!["10.2.0.1".parse().unwrap()];
        let found = candidates_as_text(&[a, b], &constraints).unwrap();
        assert_eq!(found, [["10.2.0.1", "10.1.0.1"], ["10.1.0.2", "10.2.0.2"]]);
    }

    #[test]
    fn the_user_chooses_and_is_told_what_there_is() {
        let a = facts("", &[("eth0", "10.1.0.1/16"), ("eth1", "10.2.0.1/16")]);
        let b = facts("", &[("eth0", "10.1.0.2/16")]);
        let nodes = [a, b];
        let found = candidates_as_text(&nodes, &constraints(&["eth0"], &[])).unwrap();
        assert_eq!(found, [["10.1.0.1"], ["10.1.0.2"]]);
        assert_eq!(found, candidates_as_text(&nodes, &constraints(&[], &["10.1.0.0/16"])).unwrap());
        let failed = candidates_as_text(&nodes, &constraints(&["eth1"], &[])).unwrap_err();
        assert_eq!(failed.message, "b has no address for --oob-if eth1: it has eth0 10.1.0.2/16");
        assert_eq!(failed.exit, Exit::RENDEZVOUS);
    }

    #[test]
    fn what_is_preferred_is_used_where_it_is_there() {
        let a = facts("10.1.0.1", &[("eth0", "10.1.0.1/16"), ("bond0", "10.2.0.1/16")]);
        let b = facts("10.1.0.2", &[("eth0", "10.1.0.2/16"), ("bond0", "10.2.0.2/16")]);
        let c = facts("10.1.0.3", &[("eth0", "10.1.0.3/16")]);
        let two_nodes = [a.clone(), b.clone()];
        for text in ["oob_tcp_if_include bond0", "oob_tcp_if_include 10.2.0.0/16, eth7"] {
            let found = candidates_as_text(&two_nodes, &preferring(&[text])).unwrap();
            assert_eq!(found, [["10.2.0.1"], ["10.2.0.2"]], "{text}");
        }
        let not = preferring(&["btl_tcp_if_exclude lo,eth0"]);
        assert_eq!(candidates_as_text(&two_nodes, &not).unwrap(), [["10.2.0.1"], ["10.2.0.2"]]);
        // One host lacks the preferred network. The other hosts keep an address by which they reach that
        // host, in second place.
        let of_three_nodes =
            candidates_as_text(&[a.clone(), b, c.clone()], &preferring(&["prte_if_include bond0"]));
        let expected =
            [vec!["10.2.0.1", "10.1.0.1"], vec!["10.2.0.2", "10.1.0.2"], vec!["10.1.0.3"]];
        assert_eq!(of_three_nodes.unwrap(), expected);
        let nodes = [("a", &a), ("c", &c)];
        let warnings = unmet_preferences(&nodes, &preferring(&["prte_if_include bond0"]));
        let expected = "c has no interface of --mca prte_if_include bond0: its agent uses another";
        assert_eq!(warnings, [expected]);
        let warnings = unmet_preferences(&nodes, &preferring(&["prte_if_include bond1"]));
        let expected =
            "a, c have no interface of --mca prte_if_include bond1: their agents use others";
        assert_eq!(warnings, [expected]);
        assert!(unmet_preferences(&nodes[1..], &preferring(&["prte_if_include bond0"])).is_empty());
        let warnings = unmet_preferences(&nodes, &not);
        let expected = "c has no interface but those of --mca btl_tcp_if_exclude lo,eth0: its agent \
                        uses them";
        assert_eq!(warnings, [expected]);
        for bad in ["", "oob_tcp_if_include", "x 10.1.0.0/33", "x a,,b"] {
            assert!(bad.parse::<Preference>().is_err(), "{bad}");
        }
    }

    #[test]
    fn one_network_is_dialled_before_two() {
        let child =
            facts("", &[("eth0", "10.1.0.2/16"), ("eth1", "10.2.0.2/16"), ("eth1", "fd00::2/64")]);
        let parent = facts("", &[("eth1", "10.2.0.1/16"), ("eth1", "fd00::1/64")]);
        let listeners: Vec<SocketAddr> =
            vec!["10.2.0.1:21000".parse().unwrap(), "[fd00::1]:21001".parse().unwrap()];
        let pairs = pairs(&child.addresses, &parent.addresses, &listeners);
        let text: Vec<String> = pairs.iter().map(|(l, r)| format!("{l} {r}")).collect();
        assert_eq!(
            text,
            ["10.2.0.2 10.2.0.1:21000", "fd00::2 [fd00::1]:21001", "10.1.0.2 10.2.0.1:21000",]
        );
    }

    #[test]
    fn networks_are_parsed_with_care() {
        for bad in ["10.1.0.0", "10.1.0.0/33", "x/8", "fd00::/129", ""] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        assert!("fd00::/64".parse::<Network>().unwrap().contains("fd00::7".parse().unwrap()));
    }
}
