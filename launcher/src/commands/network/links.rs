//! Links between hosts, from the beacons that arrived, and the shape that they make: which pairs of hosts have a link, and
//! whether the links form a ring.

use std::collections::{BTreeMap, BTreeSet};

/// Interface of a host, as an end of a cable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CableEnd {
    /// Index of the host.
    pub(super) host: usize,
    pub(super) interface: String,
}

/// Beacon that arrived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Observation {
    pub(super) from: CableEnd,
    pub(super) at: CableEnd,
}

/// Interfaces that hear each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundLink {
    pub(super) kind: LinkKind,
    /// Interfaces in order of hosts and names. A socket, the place on a card that takes one cable,
    /// may have several of them.
    pub(super) ends: Vec<CableEnd>,
    /// Directions between two sockets in which nothing arrived. Each names one interface of either
    /// socket.
    pub(super) silent: Vec<Observation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkKind {
    /// Two hosts, and nothing else between them that sends.
    Cable,
    /// Two sockets of one host.
    Loop,
    /// Three or more sockets: a switch or a bridge.
    Switch,
}

/// Finds links. `socket_of` names the socket of an interface if it shares it with other interfaces. Links are in order
/// of their first ends.
pub(super) fn find(
    observations: &[Observation],
    socket_of: impl Fn(&CableEnd) -> Option<String>,
) -> Vec<FoundLink> {
    let heard: BTreeSet<&Observation> = observations.iter().filter(|o| o.from != o.at).collect();
    let groups = group(&heard);
    let link = |ends: Vec<CableEnd>| {
        let mut sockets: BTreeMap<(usize, String), Vec<&CableEnd>> = BTreeMap::new();
        for end in &ends {
            let socket = socket_of(end).unwrap_or_else(|| end.interface.clone());
            sockets.entry((end.host, socket)).or_default().push(end);
        }
        let hosts: BTreeSet<usize> = ends.iter().map(|end| end.host).collect();
        let kind = match (sockets.len(), hosts.len()) {
            // Interfaces of one socket hear each other within the card.
            (0 | 1, _) => return None,
            (2, 1) => LinkKind::Loop,
            (2, _) => LinkKind::Cable,
            _ => LinkKind::Switch,
        };
        let sockets: Vec<Vec<&CableEnd>> = sockets.into_values().collect();
        let silent = silent_directions(&heard, &sockets);
        Some(FoundLink { kind, ends, silent })
    };
    groups.into_iter().filter_map(link).collect()
}

/// Groups ends that are connected by beacons, in either direction.
fn group(heard: &BTreeSet<&Observation>) -> Vec<Vec<CableEnd>> {
    let mut groups: Vec<BTreeSet<CableEnd>> = Vec::new();
    for observation in heard {
        let pair = [&observation.from, &observation.at];
        let (touched, mut others): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| pair.iter().any(|end| group.contains(*end)));
        let mut merged: BTreeSet<CableEnd> = touched.into_iter().flatten().collect();
        merged.extend(pair.into_iter().cloned());
        others.push(merged);
        groups = others;
    }
    let mut groups: Vec<Vec<CableEnd>> =
        groups.into_iter().map(|group| group.into_iter().collect()).collect();
    groups.sort();
    groups
}

fn silent_directions(
    heard: &BTreeSet<&Observation>,
    sockets: &[Vec<&CableEnd>],
) -> Vec<Observation> {
    let pairs = sockets.iter().flat_map(|from| sockets.iter().map(move |at| (from, at)));
    let is_silent = |(from, at): &(&Vec<&CableEnd>, &Vec<&CableEnd>)| {
        let of = |observation: &&&Observation| {
            from.contains(&&observation.from) && at.contains(&&observation.at)
        };
        from != at && !heard.iter().any(|observation| of(&observation))
    };
    let direction = |(from, at): (&Vec<&CableEnd>, &Vec<&CableEnd>)| {
        Some(Observation { from: (*from.first()?).clone(), at: (*at.first()?).clone() })
    };
    pairs.filter(is_silent).filter_map(direction).collect()
}

impl FoundLink {
    /// Returns the pairs of interfaces at the two ends of a cable or loop. If the ends share sockets with other
    /// interfaces, these are paired in the order of their names. A switch has none.
    pub(super) fn strands(&self) -> Vec<(&CableEnd, &CableEnd)> {
        let Some(first) = self.ends.first() else { return Vec::new() };
        match self.kind {
            LinkKind::Cable => {
                let (own, other): (Vec<_>, Vec<_>) =
                    self.ends.iter().partition(|end| end.host == first.host);
                own.into_iter().zip(other).collect()
            }
            LinkKind::Loop => self.ends.last().map(|last| (first, last)).into_iter().collect(),
            LinkKind::Switch => Vec::new(),
        }
    }

    /// Returns the pairs of hosts that the link connects, smaller index first.
    pub(super) fn pairs(&self) -> BTreeSet<(usize, usize)> {
        let hosts: BTreeSet<usize> = self.ends.iter().map(|end| end.host).collect();
        let pair = |&a: &usize| hosts.iter().filter(move |b| **b > a).map(move |&b| (a, b));
        hosts.iter().flat_map(pair).collect()
    }
}

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
    use super::*;

    /// Parses `a.eth1`: host `a` is 0.
    fn end(text: &str) -> CableEnd {
        let (host, interface) = text.split_once('.').unwrap();
        let host = usize::from(host.as_bytes()[0] - b'a');
        CableEnd { host, interface: interface.to_owned() }
    }

    /// Finds links in lines like `a.eth1>b.eth1 b.eth1>a.eth1`. Names of interfaces up to `/` are sockets.
    fn found(text: &str) -> Vec<String> {
        let observation = |word: &str| {
            let (from, at) = word.split_once('>').unwrap();
            Observation { from: end(from), at: end(at) }
        };
        let observations: Vec<Observation> = text.split_whitespace().map(observation).collect();
        let socket = |end: &CableEnd| {
            let (socket, _) = end.interface.split_once('/')?;
            Some(socket.to_owned())
        };
        let name = |end: &CableEnd| {
            format!("{}.{}", char::from(b'a' + u8::try_from(end.host).unwrap()), end.interface)
        };
        let shown = |link: FoundLink| {
            let ends: Vec<String> = link.ends.iter().map(name).collect();
            let silent: String = link
                .silent
                .iter()
                .map(|o| format!(" -{}>{}", name(&o.from), name(&o.at)))
                .collect();
            format!("{:?} {}{silent}", link.kind, ends.join(" "))
        };
        find(&observations, socket).into_iter().map(shown).collect()
    }

    #[test]
    fn crossed_cables_are_told_apart() {
        let text = "a.p0>b.p1 b.p1>a.p0 a.p1>b.p0 b.p0>a.p1";
        assert_eq!(found(text), ["Cable a.p0 b.p1", "Cable a.p1 b.p0"]);
    }

    #[test]
    fn one_direction_is_enough_for_a_cable_and_is_told() {
        assert_eq!(found("a.p0>b.p0"), ["Cable a.p0 b.p0 -b.p0>a.p0"]);
    }

    #[test]
    fn three_ends_are_a_switch() {
        let all = "a.p0>b.p0 a.p0>c.p0 b.p0>a.p0 b.p0>c.p0 c.p0>a.p0 c.p0>b.p0";
        assert_eq!(found(all), ["Switch a.p0 b.p0 c.p0"]);
        // Two ports of one host are at one switch.
        let text = "a.p0>b.p0 b.p0>a.p0 a.p1>b.p0 b.p0>a.p1 a.p0>a.p1 a.p1>a.p0";
        assert_eq!(found(text), ["Switch a.p0 a.p1 b.p0"]);
        // One host hears the two others, which do not hear each other.
        let some = "a.p0>b.p0 b.p0>a.p0 b.p0>c.p0 c.p0>b.p0";
        assert_eq!(found(some), ["Switch a.p0 b.p0 c.p0 -a.p0>c.p0 -c.p0>a.p0"]);
    }

    #[test]
    fn a_cable_may_lead_back_to_its_host() {
        assert_eq!(found("a.p0>a.p1 a.p1>a.p0 a.p0>a.p0"), ["Loop a.p0 a.p1"]);
    }

    #[test]
    fn interfaces_of_one_socket_are_one_end() {
        let halves = "a.p0/1>b.p0/1 a.p0/2>b.p0/2 b.p0/1>a.p0/1 b.p0/2>a.p0/1 a.p0/1>a.p0/2";
        assert_eq!(found(halves), ["Cable a.p0/1 a.p0/2 b.p0/1 b.p0/2"]);
        assert_eq!(found("a.p0/1>a.p0/2 a.p0/2>a.p0/1"), [""; 0]);
    }

    #[test]
    fn duplicates_and_order_change_nothing() {
        let text = "c.x>a.y b.p0>a.p0 a.p0>b.p0 b.p0>a.p0 a.y>c.x c.x>a.y";
        assert_eq!(found(text), ["Cable a.p0 b.p0", "Cable a.y c.x"]);
        assert_eq!(found(""), [""; 0]);
    }

    #[test]
    fn a_link_connects_each_pair_of_its_hosts() {
        let ends = ["a.p0", "a.p1", "b.p0", "c.p0"].map(end).to_vec();
        let link = FoundLink { kind: LinkKind::Switch, ends, silent: Vec::new() };
        assert_eq!(link.pairs(), BTreeSet::from([(0, 1), (0, 2), (1, 2)]));
    }

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
