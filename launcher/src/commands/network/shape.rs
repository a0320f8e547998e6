//! Shape of a network: which pairs of hosts have a link, and whether the links form a ring.

use super::links::FoundLink;
use std::collections::BTreeSet;

/// Maximum number of steps in the search for a ring. Networks of cables have few hosts.
const MAX_STEPS: usize = 200_000;

/// Lists the pairs of hosts without a link.
pub(super) fn missing_pairs(hosts: usize, links: &[FoundLink]) -> Vec<(usize, usize)> {
    let connected = connected_pairs(links);
    let pairs = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b)));
    pairs.filter(|pair| !connected.contains(pair)).collect()
}

fn connected_pairs(links: &[FoundLink]) -> BTreeSet<(usize, usize)> {
    links.iter().flat_map(FoundLink::pairs).collect()
}

/// Finds a way along links that passes all hosts once and returns to the first one. Needs three hosts or more.
pub(super) fn find_ring(hosts: usize, links: &[FoundLink]) -> Option<Vec<usize>> {
    let connected = connected_pairs(links);
    let mut search = RingSearch { hosts, connected, way: vec![0], steps: 0 };
    (hosts >= 3 && search.extend()).then_some(search.way)
}

/// Lists the pairs of neighbours in a ring, smaller index first.
pub(super) fn neighbours(ring: &[usize]) -> Vec<(usize, usize)> {
    let next = ring.iter().cycle().skip(1);
    ring.iter().zip(next).map(|(&a, &b)| (a.min(b), a.max(b))).collect()
}

struct RingSearch {
    hosts: usize,
    connected: BTreeSet<(usize, usize)>,
    way: Vec<usize>,
    steps: usize,
}

impl RingSearch {
    /// Extends the way to a ring; leaves it unchanged if that is impossible.
    fn extend(&mut self) -> bool {
        self.steps += 1;
        let last = self.way.last().copied().unwrap_or_default();
        if self.way.len() == self.hosts {
            return self.are_connected(last, 0);
        }
        for next in 1..self.hosts {
            let is_free = !self.way.contains(&next) && self.are_connected(last, next);
            if is_free && self.steps < MAX_STEPS {
                self.way.push(next);
                if self.extend() {
                    return true;
                }
                self.way.pop();
            }
        }
        false
    }

    fn are_connected(&self, a: usize, b: usize) -> bool {
        self.connected.contains(&(a.min(b), a.max(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::links::{CableEnd, LinkKind};
    use super::*;

    fn cables(pairs: &[(usize, usize)]) -> Vec<FoundLink> {
        let end = |host| CableEnd { host, interface: "p0".into() };
        let cable = |&(a, b): &(usize, usize)| FoundLink {
            kind: LinkKind::Cable,
            ends: vec![end(a), end(b)],
            silent: Vec::new(),
        };
        pairs.iter().map(cable).collect()
    }

    #[test]
    fn pairs_without_a_link_are_listed() {
        assert_eq!(missing_pairs(3, &cables(&[(0, 1), (0, 2), (1, 2)])), []);
        assert_eq!(missing_pairs(3, &cables(&[(0, 1), (0, 1)])), [(0, 2), (1, 2)]);
        assert_eq!(missing_pairs(1, &[]), []);
    }

    #[test]
    fn rings_are_found_whatever_the_order_of_hosts() {
        let ring = |hosts, pairs: &[(usize, usize)]| find_ring(hosts, &cables(pairs));
        assert_eq!(ring(4, &[(0, 1), (1, 2), (2, 3), (0, 3)]), Some(vec![0, 1, 2, 3]));
        assert_eq!(ring(4, &[(0, 2), (1, 2), (1, 3), (0, 3)]), Some(vec![0, 2, 1, 3]));
        assert_eq!(ring(4, &[(0, 1), (1, 2), (2, 3)]), None, "a line");
        assert_eq!(ring(5, &[(0, 1), (0, 2), (1, 2), (3, 4)]), None);
        assert_eq!(ring(2, &[(0, 1)]), None);
        assert_eq!(ring(0, &[]), None);
        assert_eq!(neighbours(&[0, 2, 1, 3]), [(0, 2), (1, 2), (1, 3), (0, 3)]);
    }

    #[test]
    fn the_search_for_a_ring_ends() {
        // Every way is a dead end: a host in the middle of 40.
        let star: Vec<(usize, usize)> = (1..40).map(|other| (0, other)).collect();
        assert_eq!(find_ring(40, &cables(&star)), None);
        // 20 hosts in a full mesh and one apart.
        let mesh = |hosts: usize| (0..hosts).flat_map(move |a| (a + 1..hosts).map(move |b| (a, b)));
        let mesh: Vec<(usize, usize)> = mesh(20).collect();
        assert_eq!(find_ring(21, &cables(&mesh)), None);
    }
}
