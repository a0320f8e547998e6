//! Bounded queue of connections whose peers have not authenticated yet.
//!
//! When the queue is full, the oldest connection is closed among those of the network with the most
//! connections in the queue. So a flood from one network evicts connections of that network only.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Length of the network prefix by which IPv6 connections are counted, in bits. A host can use
/// every address of its network.
const NETWORK_BITS: u32 = 64;

/// Unauthenticated connections in order of arrival, each with the network that it came from.
#[derive(Debug)]
pub struct AdmissionQueue<T> {
    capacity: usize,
    connections: VecDeque<(IpAddr, T)>,
}

impl<T> AdmissionQueue<T> {
    /// Makes a queue for `capacity` connections. The capacity is at least 1.
    pub fn new(capacity: usize) -> AdmissionQueue<T> {
        AdmissionQueue { capacity: capacity.max(1), connections: VecDeque::new() }
    }

    /// Removes the connections for which `keep` returns `false`, such as closed ones.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.connections.retain(|(_, connection)| keep(connection));
    }

    /// Adds a connection. Returns the connection that must be closed if the queue was full.
    pub fn admit(&mut self, from: IpAddr, connection: T) -> Option<T> {
        self.connections.push_back((source_network(from), connection));
        if self.connections.len() <= self.capacity {
            return None;
        }
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (from, _) in &self.connections {
            *counts.entry(*from).or_default() += 1;
        }
        let largest = counts.values().copied().max().unwrap_or_default();
        let is_of_largest = |(from, _): &(IpAddr, T)| counts.get(from) == Some(&largest);
        let oldest = self.connections.iter().position(is_of_largest)?;
        self.connections.remove(oldest).map(|(_, connection)| connection)
    }
}

/// Returns the network under which connections from an address are counted: the address itself for
/// IPv4, the /64 network for IPv6.
pub fn source_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let network = u128::MAX << (u128::BITS - NETWORK_BITS);
            Ipv6Addr::from_bits(v6.to_bits() & network).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_flood_pushes_out_its_own() {
        let mut queue = AdmissionQueue::new(4);
        assert_eq!(queue.admit(v4(9), 0), None);
        let pushed: Vec<Option<i32>> =
            (1..8).map(|connection| queue.admit(v4(1), connection)).collect();
        assert_eq!(pushed, [None, None, None, Some(1), Some(2), Some(3), Some(4)]);
        // A connection from another network is still admitted.
        assert_eq!(queue.admit(v4(2), 8), Some(5));
    }

    #[test]
    fn among_equals_the_oldest_goes() {
        let mut queue = AdmissionQueue::new(2);
        let pushed: Vec<Option<u8>> = (0..5).map(|host| queue.admit(v4(host), host)).collect();
        assert_eq!(pushed, [None, None, Some(0), Some(1), Some(2)]);
        queue.retain(|host| *host == 4);
        assert_eq!(queue.admit(v4(5), 5), None);
    }

    #[test]
    fn a_host_is_one_however_many_addresses_it_has() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(source_network(address("fd00::1")), source_network(address("fd00::ffff:2")));
        assert_ne!(source_network(address("fd00::1")), source_network(address("fd00:0:0:1::1")));
        assert_eq!(source_network(address("::ffff:10.0.0.1")), v4(1));
        assert_ne!(source_network(v4(1)), source_network(v4(2)));
    }
}
