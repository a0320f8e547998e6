//! Secrets of a job, authentication and encryption of connections, and admission of
//! unauthenticated ones.

pub mod callback;
pub mod handshake;

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Secret that every rank of a job has in its environment, and shows to its agent to prove that it
/// belongs to the job.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// Parses 32 hexadecimal digits, as formatted by [`Token::reveal`].
    pub fn parse(text: &str) -> Option<Token> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
        Some(Token(number.to_be_bytes()))
    }

    /// Formats the token as 32 hexadecimal digits, for the environment of ranks.
    pub fn reveal(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Secret that all agents of a job have in common. It is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Makes a secret from random bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Length of the network prefix by which IPv6 connections are counted, in bits. A host can use
/// every address of its network.
const NETWORK_BITS: u32 = 64;

/// Bounded queue of connections whose peers have not authenticated yet, in order of arrival, each with the network that it
/// came from.
///
/// When the queue is full, the oldest connection is closed among those of the network with the most
/// connections in the queue. So a flood from one network evicts connections of that network only.
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

    #[test]
    fn tokens_are_shown_to_ranks_alone() {
        let token = Token([0x0f; 16]);
        assert_eq!(Token::parse(&token.reveal()), Some(token));
        assert_eq!(format!("{token:?}"), "Token(..)");
        for bad in
            ["", "0f", "+0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0", "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0g"]
        {
            assert_eq!(Token::parse(bad), None, "{bad}");
        }
    }

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
