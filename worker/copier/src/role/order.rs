//! Order of the chain, and addresses by which neighbours reach each other.
//!
//! Every rank computes both from the rank table, so all agree without a word. A network that only
//! two hosts have is a cable between them. The chain goes along cables where it can: then each
//! carries a byte once, and what all hosts have in common, which is often the slow network that they
//! are managed by, carries none.

use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::InterfaceAddress;
use rlaunch_bootstrap::rank_table::{NodeRow, RankTable};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Network with the length of its prefix.
type Network = (IpAddr, u8);

/// Number of hosts above which a network tells nothing of cables: it is left in the order of ranks.
const MANY: usize = 64;

/// Which ranks' hosts have an address in which network.
struct Networks<'a> {
    /// Hosts of the ranks.
    hosts: Vec<&'a NodeRow>,
    members: BTreeMap<Network, BTreeSet<usize>>,
    /// Addresses that several hosts have, such as those of bridges for containers. They lead to the
    /// host itself.
    ambiguous: BTreeSet<IpAddr>,
}

impl<'a> Networks<'a> {
    fn of(table: &'a RankTable) -> Networks<'a> {
        // A table has a row for the node of each rank.
        let hosts: Vec<&NodeRow> =
            table.ranks().iter().filter_map(|row| table.nodes().get(row.node.index())).collect();
        let mut owners: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for own in hosts.iter().flat_map(|host| &host.addresses) {
            *owners.entry(own.address).or_default() += 1;
        }
        let several = owners.into_iter().filter(|(_, count)| *count > 1);
        let ambiguous = several.map(|(address, _)| address).collect();
        let mut networks = Networks { hosts, members: BTreeMap::new(), ambiguous };
        for rank in 0..networks.hosts.len() {
            let own: Vec<Network> = networks.clear(rank).map(network).collect();
            for network in own {
                networks.members.entry(network).or_default().insert(rank);
            }
        }
        networks
    }

    /// Returns the addresses of a rank's host that no other has.
    fn clear(&self, rank: usize) -> impl Iterator<Item = &'a InterfaceAddress> {
        let host = self.hosts.get(rank).copied();
        let all = host.into_iter().flat_map(|host| &host.addresses);
        all.filter(|own| !self.ambiguous.contains(&own.address))
    }

    /// Returns the number of hosts in a network.
    fn size(&self, of: &InterfaceAddress) -> usize {
        self.members.get(&network(of)).map_or(0, BTreeSet::len)
    }

    /// Returns those ranks of `left` that a rank has its smallest network in common with; of a network with
    /// many hosts only the first.
    fn nearest(&self, rank: usize, left: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut own: Vec<&BTreeSet<usize>> =
            self.clear(rank).filter_map(|own| self.members.get(&network(own))).collect();
        own.sort_by_key(|members| members.len());
        let mut nearest = BTreeSet::new();
        let mut size = usize::MAX;
        for members in own {
            if members.len() > size {
                break;
            }
            if members.len() > MANY {
                let is_other = |other: &&usize| **other != rank && members.contains(*other);
                nearest.extend(left.iter().find(is_other));
            } else {
                let others = members.iter().filter(|&&other| other != rank);
                nearest.extend(others.filter(|other| left.contains(*other)));
            }
            if !nearest.is_empty() {
                size = members.len();
            }
        }
        nearest
    }
}

fn network(of: &InterfaceAddress) -> Network {
    let prefix = u32::from(of.prefix);
    let network = match of.address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    };
    (network, of.prefix)
}

/// Returns the ranks, of which each host has one, in the order of the chain. Rank 0 is the first.
///
/// The next one is always the nearest that is left: on a cable of its own with the one before, then
/// in the smallest network in common. Of several the one with the fewest near ones left goes first,
/// so that it is not left over, and then the one with the lowest number.
pub fn order(table: &RankTable) -> Vec<Rank> {
    let networks = Networks::of(table);
    let mut left: BTreeSet<usize> = (1..networks.hosts.len()).collect();
    let mut last = 0;
    let mut chain = vec![Rank(0)];
    while !left.is_empty() {
        let near = networks.nearest(last, &left);
        let next = near.into_iter().min_by_key(|&to| (networks.nearest(to, &left).len(), to));
        // Without a network in common they may reach each other through a router.
        let Some(next) = next.or_else(|| left.first().copied()) else { break };
        left.remove(&next);
        chain.push(Rank(next as u32));
        last = next;
    }
    chain
}

/// Returns the addresses at which `from` reaches `to`, the best first: those in a common network, of
/// which the smallest is the most direct, then the one at which agents reach it, then all others.
pub(super) fn addresses_toward(table: &RankTable, from: Rank, to: Rank) -> Vec<IpAddr> {
    let networks = Networks::of(table);
    let own: BTreeSet<Network> = networks.clear(from.index()).map(network).collect();
    let its: Vec<&InterfaceAddress> = networks.clear(to.index()).collect();
    let is_common = |its: &&InterfaceAddress| own.contains(&network(its));
    let (mut common, others): (Vec<_>, Vec<_>) = its.into_iter().partition(is_common);
    common.sort_by_key(|its| networks.size(its));
    let mut addresses: Vec<IpAddr> = common.into_iter().map(|its| its.address).collect();
    let of_agents = table.ranks().get(to.index()).map(|row| row.address);
    for address in of_agents.into_iter().chain(others.into_iter().map(|its| its.address)) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::{JobId, LocalRank, NodeId};
    use rlaunch_bootstrap::rank_table::{Connectivity, RankRow};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Makes a table of hosts with these addresses; the first of each is its own.
    fn table(hosts: &[&[&str]]) -> RankTable {
        let interface = |text: &&str| {
            let (address, prefix) = text.split_once('/').unwrap();
            let (address, prefix) = (address.parse().unwrap(), prefix.parse().unwrap());
            InterfaceAddress { interface: "eth0".into(), address, prefix }
        };
        let (mut nodes, mut ranks) = (Vec::new(), Vec::new());
        for (number, host) in (0..).zip(hosts) {
            let addresses: Vec<InterfaceAddress> = host.iter().map(interface).collect();
            let address = addresses[0].address;
            nodes.push(NodeRow {
                node: NodeId(number),
                host: format!("h{number}"),
                hostname: format!("h{number}"),
                arch: "x86_64".into(),
                address,
                addresses,
                nics: Vec::new(),
            });
            ranks.push(RankRow {
                rank: Rank(number),
                node: NodeId(number),
                local_rank: LocalRank(0),
                address,
                gpu: None,
                numa_node: None,
                cpus: None,
                nics: Vec::new(),
            });
        }
        let size = ranks.len() as u32;
        RankTable::new(JobId(1), size, nodes, ranks, Connectivity::default()).unwrap()
    }

    fn chain(hosts: &[&[&str]]) -> Vec<u32> {
        order(&table(hosts)).into_iter().map(|rank| rank.0).collect()
    }

    #[test]
    fn neighbours_on_a_ring_of_cables_follow_each_other() {
        // Cables 0-2, 2-1, 1-3 and 3-0, and a network that all are managed by.
        let ring: [&[&str]; 4] = [
            &["10.0.0.1/24", "10.1.2.1/30", "10.1.30.1/30"],
            &["10.0.0.2/24", "10.1.21.2/30", "10.1.13.1/30"],
            &["10.0.0.3/24", "10.1.2.2/30", "10.1.21.1/30"],
            &["10.0.0.4/24", "10.1.13.2/30", "10.1.30.2/30"],
        ];
        assert_eq!(chain(&ring), [0, 2, 1, 3]);
        // Each goes over its cable.
        let toward = addresses_toward(&table(&ring), Rank(0), Rank(2));
        assert_eq!(toward, ["10.1.2.2", "10.0.0.3", "10.1.21.1"].map(address));
    }

    #[test]
    fn hosts_of_one_network_stay_in_their_order() {
        let hosts: [&[&str]; 4] =
            [&["10.0.0.4/16"], &["10.0.0.3/16"], &["10.0.0.2/16"], &["10.0.0.1/16"]];
        assert_eq!(chain(&hosts), [0, 1, 2, 3]);
        assert_eq!(chain(&hosts[..1]), [0]);
        let apart: [&[&str]; 3] = [&["10.0.0.1/24"], &["10.0.1.1/24"], &["10.0.2.1/24"]];
        assert_eq!(chain(&apart), [0, 1, 2]);
        let toward = addresses_toward(&table(&apart), Rank(0), Rank(1));
        assert_eq!(toward, [address("10.0.1.1")]);
    }

    #[test]
    fn one_switch_is_left_before_the_next_is_entered() {
        let hosts: [&[&str]; 6] = [
            &["10.0.0.1/24", "10.8.0.1/24"],
            &["10.0.0.2/24", "10.9.0.1/24"],
            &["10.0.0.3/24", "10.8.0.2/24"],
            &["10.0.0.4/24", "10.9.0.2/24"],
            &["10.0.0.5/24", "10.8.0.3/24"],
            &["10.0.0.6/24", "10.9.0.3/24"],
        ];
        assert_eq!(chain(&hosts), [0, 2, 4, 1, 3, 5]);
    }

    #[test]
    fn the_end_of_a_line_is_not_left_over() {
        // Cables 0-1, 0-2, 2-1 and 1-3. Rank 1 right after rank 0 would leave 3 without its cable.
        let hosts: [&[&str]; 4] = [
            &["10.0.0.1/24", "10.1.1.1/30", "10.1.2.1/30"],
            &["10.0.0.2/24", "10.1.1.2/30", "10.1.3.1/30", "10.1.4.1/30"],
            &["10.0.0.3/24", "10.1.2.2/30", "10.1.3.2/30"],
            &["10.0.0.4/24", "10.1.4.2/30"],
        ];
        assert_eq!(chain(&hosts), [0, 2, 1, 3]);
    }

    #[test]
    fn thousands_of_hosts_have_an_order_at_once() {
        let texts: Vec<String> =
            (0..3000).map(|host| format!("10.0.{}.{}/16", host / 250, host % 250 + 1)).collect();
        let hosts: Vec<Vec<&str>> = texts.iter().map(|text| vec![text.as_str()]).collect();
        let hosts: Vec<&[&str]> = hosts.iter().map(Vec::as_slice).collect();
        assert_eq!(chain(&hosts), (0..3000).collect::<Vec<u32>>());
    }

    #[test]
    fn bridges_for_containers_are_no_cables() {
        let hosts: [&[&str]; 3] = [
            &["10.0.0.1/24", "172.17.0.1/16", "fd00::1/64"],
            &["10.0.0.2/24", "192.168.7.1/30"],
            &["10.0.0.3/24", "172.17.0.1/16", "fd00::2/64"],
        ];
        assert_eq!(chain(&hosts), [0, 2, 1], "by IPv6");
        let toward = addresses_toward(&table(&hosts), Rank(0), Rank(2));
        assert_eq!(toward, ["fd00::2", "10.0.0.3"].map(address));
        let toward = addresses_toward(&table(&hosts), Rank(0), Rank(1));
        assert_eq!(toward, ["10.0.0.2", "192.168.7.1"].map(address));
    }
}
