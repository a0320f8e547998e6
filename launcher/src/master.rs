//! MASTER_ADDR: an address of rank 0's node that every other node can reach.

use rlaunch_bootstrap::job::NodeFacts;
use std::net::IpAddr;

/// Chooses by what the nodes say of themselves: an address in whose network every other node is;
/// else the one that SSH arrived at; else any. `None` when the node has no address but loopback.
pub(crate) fn address(nodes: &[NodeFacts]) -> Option<IpAddr> {
    let (first, others) = nodes.split_first()?;
    if others.is_empty() {
        return Some(IpAddr::from([127, 0, 0, 1]));
    }
    let shared = |address: &&rlaunch_bootstrap::job::InterfaceAddress| {
        others.iter().all(|node| node.addresses.iter().any(|o| address.same_network(o.address)))
    };
    // An address that other nodes have as well (a bridge made by a container engine) is no way to
    // this node.
    let unique = |address: &&rlaunch_bootstrap::job::InterfaceAddress| {
        others.iter().all(|node| node.addresses.iter().all(|o| o.address != address.address))
    };
    let candidates: Vec<_> = first.addresses.iter().filter(unique).collect();
    let in_shared_network: Vec<IpAddr> =
        candidates.iter().copied().filter(shared).map(|a| a.address).collect();
    let by_ssh =
        first.ssh_address.filter(|address| candidates.iter().any(|c| c.address == *address));
    by_ssh
        .filter(|address| in_shared_network.contains(address))
        .or_else(|| in_shared_network.first().copied())
        .or(by_ssh)
        .or_else(|| candidates.first().map(|a| a.address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::job::InterfaceAddress;

    fn node(ssh: Option<&str>, addresses: &[&str]) -> NodeFacts {
        let interface = |text: &&str| {
            let (address, prefix) = text.split_once('/').unwrap();
            InterfaceAddress {
                interface: "eth0".into(),
                address: address.parse().unwrap(),
                prefix: prefix.parse().unwrap(),
            }
        };
        NodeFacts {
            hostname: "n".into(),
            arch: "x86_64".into(),
            pid: 1,
            uid: 0,
            addresses: addresses.iter().map(interface).collect(),
            ssh_address: ssh.map(|a| a.parse().unwrap()),
        }
    }

    fn chosen(nodes: &[NodeFacts]) -> String {
        address(nodes).map_or_else(|| "none".into(), |a| a.to_string())
    }

    #[test]
    fn a_network_of_all_nodes_comes_first() {
        let a = node(Some("192.0.2.1"), &["192.0.2.1/24", "10.1.0.1/16"]);
        let b = node(Some("198.51.100.2"), &["198.51.100.2/24", "10.1.0.2/16"]);
        assert_eq!(chosen(&[a.clone(), b]), "10.1.0.1");
        let c = node(None, &["203.0.113.9/24"]);
        assert_eq!(chosen(&[a, c]), "192.0.2.1");
    }

    #[test]
    fn bridges_that_every_node_has_are_passed_over() {
        let a = node(None, &["172.17.0.1/16", "10.1.0.1/16"]);
        let b = node(None, &["172.17.0.1/16", "10.1.0.2/16"]);
        assert_eq!(chosen(&[a, b]), "10.1.0.1");
    }

    #[test]
    fn one_node_meets_on_loopback() {
        assert_eq!(chosen(&[node(None, &[])]), "127.0.0.1");
        assert_eq!(chosen(&[node(None, &[]), node(None, &[])]), "none");
    }
}
