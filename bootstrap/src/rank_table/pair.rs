//! Connection between two ranks. It is computed from the rank table alone, so that both ranks come
//! to the same result.

use super::{Nic, NicId, PairException, PairRule, RankRow, RankTable};
use crate::id::Rank;
use crate::inventory::pci::Distance;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Means by which two ranks communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairTransport {
    /// Memory that is mapped by both processes.
    SharedMemory,
    /// TCP between the addresses of the two nodes.
    Tcp,
    /// RDMA queue pair whose endpoints are exchanged out of band.
    Rdma,
    /// RDMA queue pair made by the RDMA connection manager.
    RdmaCm,
}

impl PairTransport {
    /// Returns the name for people, in which both ways to connect are `RDMA`.
    pub fn name(self) -> &'static str {
        match self {
            PairTransport::SharedMemory => "shared memory",
            PairTransport::Tcp => "TCP",
            PairTransport::Rdma | PairTransport::RdmaCm => "RDMA",
        }
    }
}

/// Connection between the ranks `a` and `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Rank at one end.
    pub a: Rank,
    /// Rank at the other end.
    pub b: Rank,
    /// Index of the NIC of `a` in [`super::NodeRow::nics`]; `None` without RDMA.
    pub nic_a: Option<u32>,
    /// Index of the NIC of `b` in [`super::NodeRow::nics`]; `None` without RDMA.
    pub nic_b: Option<u32>,
    /// Means by which the ranks communicate.
    pub connect: PairTransport,
    /// Maximum packet size between the two NICs, in bytes; `None` without RDMA or if unknown.
    pub mtu: Option<u32>,
}

/// Cost of using one pair of NICs; the lowest is best. Compared from left to right: whether a NIC
/// is emulated by software, the larger and the smaller of the two ranks' distances to their NICs,
/// the rate (higher is better), whether the rails differ, the positions of the NICs in the two
/// ranks' lists.
type PairCost = (bool, Distance, Distance, Reverse<u32>, bool, usize, usize);

impl Nic {
    /// Tells whether two NICs reach each other if no [`super::PairException`] says otherwise: they
    /// have the same transport and a network in common.
    pub fn can_reach(&self, other: &Nic) -> bool {
        let common = || self.networks.iter().any(|network| other.networks.contains(network));
        self.transport == other.transport && common()
    }
}

impl RankTable {
    /// Returns the connection between `a` and `b`, or `None` if the job does not have both ranks. A
    /// rank reaches itself through shared memory.
    pub fn pair(&self, a: Rank, b: Rank) -> Option<Pair> {
        let (row_a, row_b) = (self.ranks().get(a.index())?, self.ranks().get(b.index())?);
        let by = |connect| Pair { a, b, nic_a: None, nic_b: None, connect, mtu: None };
        if row_a.node == row_b.node {
            return Some(by(PairTransport::SharedMemory));
        }
        // Both ends start from the lower rank, so that they get the same result.
        let (low, high) = if a < b { (row_a, row_b) } else { (row_b, row_a) };
        let Some((low, high)) = self.best_nics(low, high) else {
            return Some(by(PairTransport::Tcp));
        };
        let (one, other) = (self.nic(low)?, self.nic(high)?);
        let (nic_a, nic_b) = if a < b { (low.nic, high.nic) } else { (high.nic, low.nic) };
        let by_manager = one.by_manager || other.by_manager;
        let connect = if by_manager { PairTransport::RdmaCm } else { PairTransport::Rdma };
        let between = self.exception(low, high).and_then(|exception| exception.mtu);
        let mtu = one.mtu.into_iter().chain(other.mtu).chain(between).min();
        Some(Pair { nic_a: Some(nic_a), nic_b: Some(nic_b), mtu, ..by(connect) })
    }

    /// Tells whether two NICs of different nodes reach each other, according to the exceptions and
    /// the rule.
    pub fn can_reach(&self, one: NicId, other: NicId) -> bool {
        let (low, high) = if one.node < other.node { (one, other) } else { (other, one) };
        match self.exception(low, high) {
            Some(exception) => exception.reach,
            None => match (self.nic(low), self.nic(high)) {
                (Some(one), Some(other)) => one.can_reach(other),
                _ => false,
            },
        }
    }

    fn exception(&self, low: NicId, high: NicId) -> Option<&PairException> {
        let exceptions = &self.rows.exceptions;
        let at = exceptions.binary_search_by_key(&(low, high), |e| (e.a, e.b)).ok()?;
        exceptions.get(at)
    }

    /// Returns the NICs with which two ranks should communicate, or `None` if no NIC of one rank
    /// reaches a NIC of the other. A hardware NIC is better than one emulated by software. Next in
    /// importance are a short distance, a high rate and a common rail, in this order. Among equal
    /// pairs, the pair with the earliest NIC in the list of the lower rank wins, so that the ranks
    /// of a node each use their own NIC.
    fn best_nics(&self, low: &RankRow, high: &RankRow) -> Option<(NicId, NicId)> {
        if self.rows.rule == PairRule::SharedMemoryThenTcp {
            return None;
        }
        let mut best: Option<(PairCost, (NicId, NicId))> = None;
        for (at_low, own) in low.nics.iter().enumerate() {
            for (at_high, theirs) in high.nics.iter().enumerate() {
                let ends = [(low.node, own.nic), (high.node, theirs.nic)];
                let [one, other] = ends.map(|(node, nic)| NicId { node, nic });
                if !self.can_reach(one, other) {
                    continue;
                }
                let distances = [own.distance, theirs.distance];
                let cost = self.cost([one, other], distances, [at_low, at_high])?;
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, (one, other)));
                }
            }
        }
        best.map(|(_, nics)| nics)
    }

    /// Returns the cost of a pair of NICs. Each array has the value of the lower rank first; `places` are the
    /// positions of the NICs in the ranks' lists.
    fn cost(
        &self,
        [low, high]: [NicId; 2],
        [own, theirs]: [Distance; 2],
        places: [usize; 2],
    ) -> Option<PairCost> {
        let (one, other) = (self.nic(low)?, self.nic(high)?);
        let rate = one.rate_mbps.unwrap_or(0).min(other.rate_mbps.unwrap_or(0));
        Some((
            one.software || other.software,
            own.max(theirs),
            own.min(theirs),
            Reverse(rate),
            one.rail != other.rail,
            places[0],
            places[1],
        ))
    }
}
