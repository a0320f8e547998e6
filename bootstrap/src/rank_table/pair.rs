//! Connection of two ranks, computed from the table alone, so that both ends come to the same
//! result.

use super::{Nic, NicId, PairException, PairRule, RankNic, RankRow, RankTable};
use crate::id::Rank;
use crate::inventory::pci::Distance;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Means of communication between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairTransport {
    /// Memory mapped by both processes.
    SharedMemory,
    /// TCP between the addresses of their nodes.
    Tcp,
    /// RDMA queue pair whose endpoints are exchanged out of band.
    Rdma,
    /// RDMA queue pair made by the RDMA connection manager.
    RdmaCm,
}

/// Connection between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// First rank.
    pub a: Rank,
    /// Second rank.
    pub b: Rank,
    /// Index of the NIC of `a` in [`super::NodeRow::nics`]; `None` without RDMA.
    pub nic_a: Option<u32>,
    /// Index of the NIC of `b` in [`super::NodeRow::nics`]; `None` without RDMA.
    pub nic_b: Option<u32>,
    /// Means of communication.
    pub connect: PairTransport,
    /// Largest packet between the two NICs, in bytes.
    pub mtu: Option<u32>,
}

/// Cost of a pair of NICs; the pair with the lowest is taken.
type PairCost = (bool, Distance, Distance, Reverse<u32>, bool, usize, usize);

impl Nic {
    /// Tells whether the rule connects two NICs: they have the same transport and a common network.
    pub fn can_reach(&self, other: &Nic) -> bool {
        let common = || self.networks.iter().any(|network| other.networks.contains(network));
        self.transport == other.transport && common()
    }
}

impl RankTable {
    /// Returns the connection between `a` and `b`, or `None` if the job lacks one of them. A rank
    /// reaches itself through shared memory.
    pub fn pair(&self, a: Rank, b: Rank) -> Option<Pair> {
        let (row_a, row_b) = (self.ranks().get(a.index())?, self.ranks().get(b.index())?);
        let by = |connect| Pair { a, b, nic_a: None, nic_b: None, connect, mtu: None };
        if row_a.node == row_b.node {
            return Some(by(PairTransport::SharedMemory));
        }
        // Both ends compute from the lower rank's side.
        let (low, high) = if a < b { (row_a, row_b) } else { (row_b, row_a) };
        let Some((nic_low, nic_high)) = self.best_nics(low, high) else {
            return Some(by(PairTransport::Tcp));
        };
        let (one, other) = (self.nic(low, nic_low)?, self.nic(high, nic_high)?);
        let (nic_a, nic_b) = if a < b { (nic_low, nic_high) } else { (nic_high, nic_low) };
        let connect = match one.by_manager || other.by_manager {
            true => PairTransport::RdmaCm,
            false => PairTransport::Rdma,
        };
        let (low, high) =
            (NicId { node: low.node, nic: nic_low }, NicId { node: high.node, nic: nic_high });
        let between = self.exception(low, high).and_then(|exception| exception.mtu);
        let mtu = one.mtu.into_iter().chain(other.mtu).chain(between).min();
        Some(Pair { nic_a: Some(nic_a), nic_b: Some(nic_b), mtu, ..by(connect) })
    }

    /// Tells whether two NICs of different nodes reach each other, by an exception or by the rule.
    pub fn can_reach(&self, one: NicId, other: NicId) -> bool {
        let (low, high) = if one.node < other.node { (one, other) } else { (other, one) };
        match self.exception(low, high) {
            Some(exception) => exception.reach,
            None => match (self.rows.nic(low), self.rows.nic(high)) {
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

    /// Returns the best NICs for two ranks, or `None` if no two reach each other. Hardware is
    /// better than software, then near, fast, and on the same rail. Among equals the first NIC of
    /// the lower rank is taken, so that ranks of one node use their own NICs.
    fn best_nics(&self, low: &RankRow, high: &RankRow) -> Option<(u32, u32)> {
        if self.rows.rule == PairRule::SharedMemoryThenTcp {
            return None;
        }
        let mut best: Option<(PairCost, (u32, u32))> = None;
        for (at_low, own) in low.nics.iter().enumerate() {
            for (at_high, theirs) in high.nics.iter().enumerate() {
                let ends = [(low.node, own.nic), (high.node, theirs.nic)];
                let [one, other] = ends.map(|(node, nic)| NicId { node, nic });
                if !self.can_reach(one, other) {
                    continue;
                }
                let cost = self.cost((low, own, at_low), (high, theirs, at_high))?;
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, (own.nic, theirs.nic)));
                }
            }
        }
        best.map(|(_, nics)| nics)
    }

    fn cost(
        &self,
        (low, own, at_low): (&RankRow, &RankNic, usize),
        (high, theirs, at_high): (&RankRow, &RankNic, usize),
    ) -> Option<PairCost> {
        let (one, other) = (self.nic(low, own.nic)?, self.nic(high, theirs.nic)?);
        let rate = one.rate_mbps.unwrap_or(0).min(other.rate_mbps.unwrap_or(0));
        Some((
            one.software || other.software,
            own.distance.max(theirs.distance),
            own.distance.min(theirs.distance),
            Reverse(rate),
            one.rail != other.rail,
            at_low,
            at_high,
        ))
    }

    fn nic(&self, rank: &RankRow, nic: u32) -> Option<&Nic> {
        self.rows.nic(NicId { node: rank.node, nic })
    }
}
