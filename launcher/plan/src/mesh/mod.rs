//! The mesh: the RDMA paths between ranks, which are proved before any rank starts.
//!
//! The proofs take one or more rounds: [`paths`] chooses the paths to prove and makes each node's part of a round,
//! [`outcome`] evaluates the nodes' reports and chooses remedies for the next round. [`paths`] also chooses those whose
//! bandwidth `rlaunch doctor --probe` measures. [`messages`] and [`show`] write what the user reads.

mod messages;
pub mod outcome;
pub mod paths;
pub mod show;
#[cfg(test)]
mod tests;

pub use messages::{finding_of, hint_of};
pub use show::{format_table, json_rows};

use crate::options::{MeshMode, Options, Transport};
use crate::selection::Plan;
use outcome::{Failure, ProofOutcome, Remedy};
use paths::Proof;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::mesh::RoundCost;
use rlaunch_bootstrap::rank_table::{NicId, PairTransport, RankTable};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Proof with its outcome.
#[derive(Clone, Debug)]
pub struct ProofResult {
    /// Id of the path in messages between launcher and nodes.
    pub id: u32,
    pub proof: Proof,
    pub outcome: ProofOutcome,
}

/// Results of all proofs of a job.
#[derive(Debug, Default)]
pub struct Mesh {
    /// Proofs in the order in which they ran; the id of a proof is its index.
    pub results: Vec<ProofResult>,
    /// Pairs of NICs whose MTU was lowered.
    pub lowered: BTreeSet<(NicId, NicId)>,
    /// Pairs of NICs whose proof was repeated.
    pub repeated: BTreeSet<(NicId, NicId)>,
    /// Duration of all rounds together.
    pub duration: Duration,
    /// Number of rounds; 0 if nothing was proved.
    pub rounds: u32,
    /// Paths that were measured, with the write bandwidth from the first to the second NIC, in Mb/s.
    pub measured: Vec<(NicId, NicId, u32)>,
    /// Resources that all rounds used, by node. The memory is that of the largest round.
    pub costs: BTreeMap<NodeId, RoundCost>,
}

/// Tells whether paths are proved: the options allow it, and at least two nodes have usable ports.
pub fn is_wanted(options: &Options, plan: &Plan) -> bool {
    let with_ports = plan.ports.iter().filter(|ports| !ports.is_empty()).count();
    options.transport != Transport::Tcp && options.mesh.mode != MeshMode::Off && with_ports > 1
}

impl Mesh {
    /// Returns the paths of `wanted` that are not proved yet.
    pub fn unproved(&self, wanted: Vec<Proof>) -> Vec<Proof> {
        let up: BTreeSet<&Proof> = self.up().map(|result| &result.proof).collect();
        wanted.into_iter().filter(|proof| !up.contains(proof)).collect()
    }

    /// Lists the paths that work.
    pub fn up(&self) -> impl Iterator<Item = &ProofResult> {
        self.results.iter().filter(|result| matches!(result.outcome, ProofOutcome::Up(_)))
    }

    /// Lists the working paths that ranks use according to `table`. After a failure between two NICs, ranks
    /// use no path between these NICs, not even one that works.
    pub(crate) fn in_use(&self, table: &RankTable) -> impl Iterator<Item = &ProofResult> {
        let is_current = |result: &&ProofResult| {
            let pair = table.pair(result.proof.a, result.proof.b);
            pair.and_then(|pair| paths::proof(table, &pair)).as_ref() == Some(&result.proof)
        };
        self.up().filter(is_current)
    }

    /// Returns an id that no earlier proof has.
    pub fn next_id(&self) -> u32 {
        u32::try_from(self.results.len()).unwrap_or(u32::MAX)
    }

    pub fn add_cost(&mut self, node: NodeId, cost: RoundCost) {
        let all = self.costs.entry(node).or_default();
        all.queue_pairs += cost.queue_pairs;
        all.connect_us += cost.connect_us;
        all.memory = all.memory.max(cost.memory);
    }

    /// Records the paths of `todo` as failed, because no time is left to prove them.
    pub fn give_up(&mut self, todo: &[Proof], timeout: Duration) {
        for proof in todo {
            let outcome = outcome::out_of_time(proof, timeout);
            self.results.push(ProofResult { id: self.next_id(), proof: *proof, outcome });
        }
    }

    /// Applies the remedy for each pair of NICs with a failed proof at index `from` or later: a retry, a
    /// lower MTU, or removal from the plan. Returns whether the plan has changed.
    pub fn apply_remedies(&mut self, plan: &mut Plan, table: &RankTable, from: usize) -> bool {
        let failed = self.results[from..].iter().filter_map(|result| match &result.outcome {
            ProofOutcome::Failed(failure) => Some((&result.proof, failure)),
            ProofOutcome::Up(_) => None,
        });
        let lower_mtu = |(one, other): (NicId, NicId)| {
            let port_mtu = |end: NicId| table.nic(end)?.mtu;
            port_mtu(one).into_iter().chain(port_mtu(other)).min()
        };
        let applied = outcome::AppliedRemedies { lowered: &self.lowered, repeated: &self.repeated };
        let of_size = |proof: &Proof| (proof.nics(), proof.mtu);
        let passed: BTreeSet<_> = self.up().map(|result| of_size(&result.proof)).collect();
        let passed = |proof: &Proof| passed.contains(&of_size(proof));
        let remedies = outcome::remedies(failed, lower_mtu, passed, applied);
        let changes = remedies.values().any(|remedy| *remedy != Remedy::Retry);
        for (nics, remedy) in remedies {
            match remedy {
                Remedy::Retry => {
                    self.repeated.insert(nics);
                }
                Remedy::LowerMtu(mtu) => {
                    self.lowered.insert(nics);
                    plan.limit_mtu(nics, mtu);
                }
                Remedy::Exclude => plan.exclude_pair(nics),
            }
        }
        changes
    }

    /// Chooses one working path for each pair of nodes, to be watched.
    pub fn watched(&self, table: &RankTable) -> Vec<&ProofResult> {
        let mut seen = BTreeSet::new();
        let nodes = |proof: &Proof| {
            let (one, other) = proof.nics();
            (one.node, other.node)
        };
        self.in_use(table).filter(|result| seen.insert(nodes(&result.proof))).collect()
    }

    /// Returns the successful proof for ranks `a` and `b` over these two NICs. If there is none, returns a
    /// successful proof for any two ranks over the same NICs. `nics` begins with the NIC of the node with the
    /// lower id.
    pub(crate) fn proof_between(
        &self,
        (a, b): (Rank, Rank),
        nics: (NicId, NicId),
    ) -> Option<&ProofResult> {
        let between = || self.up().filter(|result| result.proof.nics() == nics);
        let own = between().find(|result| (result.proof.a, result.proof.b) == (a, b));
        own.or_else(|| between().next())
    }

    /// Lists failed proofs, at most one for each pair of NICs and MTU. Leaves out a proof that succeeded when
    /// it was repeated.
    pub fn failures(&self) -> Vec<(&ProofResult, &Failure)> {
        let up: BTreeSet<&Proof> = self.up().map(|result| &result.proof).collect();
        let mut seen = BTreeSet::new();
        let failed = self.results.iter().filter_map(|result| match &result.outcome {
            ProofOutcome::Failed(failure) => Some((result, failure)),
            ProofOutcome::Up(_) => None,
        });
        let failed = failed.filter(|(result, _)| !up.contains(&result.proof));
        failed.filter(|(result, _)| seen.insert((result.proof.nics(), result.proof.mtu))).collect()
    }
}

fn is_rdma(connect: PairTransport) -> bool {
    matches!(connect, PairTransport::Rdma | PairTransport::RdmaCm)
}
