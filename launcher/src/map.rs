//! Ranks onto nodes, by slot: the first host's slots first.

use crate::hosts::Host;
use crate::report;
use rlaunch_bootstrap::id::{LocalRank, NodeId, Rank};

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
    /// Fills the slots in the order of the hosts; `ranks` defaults to all of them. What is beyond
    /// the slots, where that is allowed, is dealt out evenly.
    pub(crate) fn by_slot(
        hosts: &[Host],
        ranks: Option<u32>,
        oversubscribe: bool,
    ) -> Result<RankMap, TooFewSlots> {
        let slots: u64 = hosts.iter().map(|host| u64::from(host.slots)).sum();
        let world_size = ranks.unwrap_or_else(|| u32::try_from(slots).unwrap_or(u32::MAX));
        if u64::from(world_size) > slots && (!oversubscribe || hosts.is_empty()) {
            return Err(TooFewSlots { ranks: world_size, hosts: hosts.to_vec() });
        }
        let counts = counts(hosts, world_size);
        let mut map = RankMap { nodes: vec![], world_size, unused: vec![], by_rank: vec![] };
        for (host, count) in hosts.iter().zip(counts) {
            map.add(host, count);
        }
        Ok(map)
    }

    fn add(&mut self, host: &Host, count: u32) {
        if count == 0 {
            self.unused.push(host.clone());
            return;
        }
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        let first = u32::try_from(self.by_rank.len()).unwrap_or(u32::MAX);
        let ranks = (first..first + count).map(Rank).collect();
        self.by_rank.extend((0..count).map(|local| (id, LocalRank(local))));
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
    fn too_few_slots_say_what_to_type() {
        let text = "4 ranks asked, 3 slots (a 1, b 1, c 1): use a:2 or --oversubscribe";
        assert_eq!(map("a,b,c", Some(4), false), Err(text.into()));
    }

    #[test]
    fn oversubscription_is_dealt_out() {
        assert_eq!(map("a,b,c", Some(8), true), counts(&[("a", 3), ("b", 3), ("c", 2)]));
    }
}
