//! Ranks onto nodes: by slot, the first host's slots first, or by node, one for each host in turn.

use crate::hosts::Host;
use crate::report;
use rlaunch_bootstrap::id::{LocalRank, NodeId, Rank};

/// The order in which ranks fill the hosts' slots, as `--map-by` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum MapBy {
    /// All of a host's, then those of the next.
    #[default]
    Slot,
    /// One of each host, then one more.
    Node,
}

/// A host taken into the job and the ranks it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MappedNode {
    pub(crate) id: NodeId,
    pub(crate) host: Host,
    /// By local rank.
    pub(crate) ranks: Vec<Rank>,
}

/// Where every rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankMap {
    pub(crate) nodes: Vec<MappedNode>,
    pub(crate) world_size: u32,
    /// Listed hosts that get no rank.
    pub(crate) unused: Vec<Host>,
    by_rank: Vec<(NodeId, LocalRank)>,
    /// The first rank of every program but the first, in their order.
    firsts: Vec<Rank>,
}

/// More ranks than slots.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.describe())]
pub(crate) struct TooFewSlots {
    ranks: u32,
    hosts: Vec<Host>,
}

impl TooFewSlots {
    /// `4 ranks asked, 3 slots (a 1, b 1, c 1): use a:2 or --oversubscribe`.
    fn describe(&self) -> String {
        const SHOWN: usize = 8;
        let slots: u64 = self.hosts.iter().map(|h| u64::from(h.slots)).sum();
        let mut list: Vec<_> =
            self.hosts.iter().take(SHOWN).map(|h| format!("{h} {}", h.slots)).collect();
        if self.hosts.len() > SHOWN {
            list.push(format!("and {} more", self.hosts.len() - SHOWN));
        }
        let missing = u64::from(self.ranks) - slots;
        let (name, more) = match self.hosts.first() {
            Some(first) => (first.to_string(), u64::from(first.slots) + missing),
            None => ("a".to_owned(), missing),
        };
        format!(
            "{} ranks asked, {slots} slot{} ({}): use {name}:{more} or --oversubscribe",
            self.ranks,
            if slots == 1 { "" } else { "s" },
            list.join(", "),
        )
    }
}

impl RankMap {
    /// [`RankMap::by`] slot.
    #[cfg(test)]
    pub(crate) fn by_slot(
        hosts: &[Host],
        ranks: Option<u32>,
        oversubscribe: bool,
    ) -> Result<RankMap, TooFewSlots> {
        RankMap::by(MapBy::Slot, hosts, ranks, oversubscribe)
    }

    /// Fills the slots in this order; `ranks` defaults to all of them. What is beyond the slots,
    /// where that is allowed, is dealt out evenly.
    pub(crate) fn by(
        order: MapBy,
        hosts: &[Host],
        ranks: Option<u32>,
        oversubscribe: bool,
    ) -> Result<RankMap, TooFewSlots> {
        let slots: u64 = hosts.iter().map(|host| u64::from(host.slots)).sum();
        let world_size = ranks.unwrap_or_else(|| u32::try_from(slots).unwrap_or(u32::MAX));
        if u64::from(world_size) > slots && (!oversubscribe || hosts.is_empty()) {
            return Err(TooFewSlots { ranks: world_size, hosts: hosts.to_vec() });
        }
        let ranks = match order {
            MapBy::Slot => in_a_row(&counts(hosts, world_size)),
            MapBy::Node => in_turn(hosts, world_size),
        };
        Ok(RankMap::of(hosts.iter().cloned().zip(ranks).collect(), Vec::new()))
    }

    /// Out of the ranks of each host, in the order in which hosts become nodes. `firsts` are the
    /// first ranks of the programs behind the first.
    pub(crate) fn of(hosts: Vec<(Host, Vec<Rank>)>, firsts: Vec<Rank>) -> RankMap {
        let ranks: usize = hosts.iter().map(|(_, ranks)| ranks.len()).sum();
        let world_size = u32::try_from(ranks).unwrap_or(u32::MAX);
        let by_rank = vec![(NodeId(0), LocalRank(0)); ranks];
        let mut map = RankMap { nodes: vec![], world_size, unused: vec![], by_rank, firsts };
        for (host, ranks) in hosts {
            map.add(&host, ranks);
        }
        map
    }

    /// Which of the job's programs a rank runs, from 0.
    pub(crate) fn application_of(&self, rank: Rank) -> usize {
        self.firsts.partition_point(|first| *first <= rank)
    }

    fn add(&mut self, host: &Host, ranks: Vec<Rank>) {
        if ranks.is_empty() {
            self.unused.push(host.clone());
            return;
        }
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        for (local, rank) in (0..).map(LocalRank).zip(&ranks) {
            self.by_rank[rank.index()] = (id, local);
        }
        self.nodes.push(MappedNode { id, host: host.clone(), ranks });
    }

    /// A host that was listed and gets nothing to do is rarely meant.
    pub(crate) fn warn_of_unused(&self) {
        if !self.unused.is_empty() {
            let (hosts, ranks) = (report::list(&self.unused), self.world_size);
            report::warn(&format!("{hosts} gets no rank: {ranks} fill the slots before it"));
        }
    }

    /// The node a rank runs on.
    pub(crate) fn node_of(&self, rank: Rank) -> Option<&MappedNode> {
        let (node, _) = self.by_rank.get(rank.index())?;
        self.nodes.get(node.index())
    }
}

/// How many ranks each host runs.
fn counts(hosts: &[Host], world_size: u32) -> Vec<u32> {
    let mut left = world_size;
    let mut counts: Vec<u32> = hosts
        .iter()
        .map(|host| {
            let count = host.slots.min(left);
            left -= count;
            count
        })
        .collect();
    let hosts = u32::try_from(hosts.len()).unwrap_or(u32::MAX).max(1);
    for (at, count) in (0u32..).zip(&mut counts) {
        *count += left / hosts + u32::from(at < left % hosts);
    }
    counts
}

/// Each host's ranks, one host's after the other's.
fn in_a_row(counts: &[u32]) -> Vec<Vec<Rank>> {
    let mut next = 0;
    let of_host = |&count: &u32| {
        let first = next;
        next += count;
        (first..next).map(Rank).collect()
    };
    counts.iter().map(of_host).collect()
}

/// Each host's ranks, dealt to every host in turn while it has a slot, and to all of them beyond.
fn in_turn(hosts: &[Host], world_size: u32) -> Vec<Vec<Rank>> {
    let most = hosts.iter().map(|host| host.slots).max().unwrap_or(0);
    let mut ranks: Vec<Vec<Rank>> = vec![Vec::new(); hosts.len()];
    let (mut next, mut round) = (0, 0);
    while next < world_size && !hosts.is_empty() {
        for (host, ranks) in hosts.iter().zip(&mut ranks) {
            if next < world_size && (round < host.slots || round >= most) {
                ranks.push(Rank(next));
                next += 1;
            }
        }
        round += 1;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &str, ranks: Option<u32>, over: bool) -> Result<Vec<(String, u32)>, String> {
        let hosts = crate::hosts::parse(&[list.to_owned()]).unwrap();
        let map = RankMap::by_slot(&hosts, ranks, over).map_err(|e| e.to_string())?;
        let ranks: Vec<_> = map.nodes.iter().flat_map(|n| n.ranks.clone()).collect();
        assert_eq!(ranks, (0..map.world_size).map(Rank).collect::<Vec<_>>());
        for node in &map.nodes {
            assert!(node.ranks.iter().all(|&r| map.node_of(r) == Some(node)));
        }
        let row = |n: &MappedNode| (n.host.name.clone(), n.ranks.len() as u32);
        Ok(map.nodes.iter().map(row).collect())
    }

    fn counts(list: &[(&str, u32)]) -> Result<Vec<(String, u32)>, String> {
        Ok(list.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect())
    }

    #[test]
    fn slots_fill_in_order() {
        assert_eq!(map("a:2,b", Some(3), false), counts(&[("a", 2), ("b", 1)]));
        assert_eq!(map("a:2,b", None, false), counts(&[("a", 2), ("b", 1)]));
        assert_eq!(map("a,b,c", Some(2), false), counts(&[("a", 1), ("b", 1)]));
    }

    #[test]
    fn by_node_each_host_takes_one_in_turn() {
        let deal = |list: &str, ranks, over| {
            let hosts = crate::hosts::parse(&[list.to_owned()]).unwrap();
            let map = RankMap::by(MapBy::Node, &hosts, ranks, over).unwrap();
            for node in &map.nodes {
                assert!(node.ranks.iter().all(|&rank| map.node_of(rank) == Some(node)));
            }
            let of_node = |node: &MappedNode| node.ranks.iter().map(|r| r.0).collect::<Vec<_>>();
            map.nodes.iter().map(of_node).collect::<Vec<_>>()
        };
        assert_eq!(deal("a:8,b:8", Some(2), false), [[0], [1]]);
        assert_eq!(deal("a:3,b:1,c:2", None, false), [vec![0, 3, 5], vec![1], vec![2, 4]]);
        assert_eq!(deal("a,b:2", Some(5), true), [vec![0, 3], vec![1, 2, 4]]);
    }

    #[test]
    fn too_few_slots_say_what_to_type() {
        let text = "4 ranks asked, 3 slots (a 1, b 1, c 1): use a:2 or --oversubscribe";
        assert_eq!(map("a,b,c", Some(4), false), Err(text.into()));
    }

    #[test]
    fn oversubscription_is_dealt_out() {
        assert_eq!(map("a,b,c", Some(8), true), counts(&[("a", 3), ("b", 3), ("c", 2)]));
    }
}
