//! The mesh: the RDMA paths between ranks, which are proved before any rank starts.
//!
//! The proofs take one or more rounds: [`paths`] chooses the paths to prove, [`round`] makes each node's part
//! of a round, [`outcome`] evaluates the nodes' reports and chooses remedies for the next round. [`messages`]
//! and [`show`] write what the user reads.

mod advice;
mod messages;
pub(crate) mod outcome;
pub(crate) mod paths;
pub(crate) mod round;
pub(crate) mod show;
#[cfg(test)]
mod tests;

pub(crate) use paths::Mode;
pub(crate) use show::{for_people, for_programs};

use crate::plan::options::{Options, Transport};
use crate::plan::selection::Plan;
use outcome::{Failure, ProofOutcome, Remedy};
use paths::Proof;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::mesh::{QpSettings, RoundCost};
use rlaunch_bootstrap::rank_table::{NicId, PairTransport, RankTable};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Options of the user for the mesh.
#[derive(Clone, Debug)]
pub(crate) struct MeshOptions {
    pub(crate) mode: Mode,
    /// Time limit for all rounds together.
    pub(crate) timeout: Duration,
    pub(crate) settings: QpSettings,
    /// Watch the paths while the job runs.
    pub(crate) watch: bool,
    /// End the job when a watched path goes down.
    pub(crate) abort_on_link_down: bool,
}

impl Default for MeshOptions {
    fn default() -> MeshOptions {
        let (mode, settings) = (Mode::default(), QpSettings::default());
        let timeout = Duration::from_secs(5);
        MeshOptions { mode, timeout, settings, watch: true, abort_on_link_down: false }
    }
}

/// Proof with its outcome.
#[derive(Clone, Debug)]
pub(crate) struct ProofResult {
    /// Id of the path in messages between launcher and nodes.
    pub(crate) id: u32,
    pub(crate) proof: Proof,
    pub(crate) verdict: ProofOutcome,
}

/// Results of all proofs of a job.
#[derive(Debug, Default)]
pub(crate) struct Mesh {
    /// Proofs in the order in which they ran; the id of a proof is its index.
    pub(crate) tried: Vec<ProofResult>,
    /// Pairs of NICs whose MTU was lowered.
    pub(crate) lowered: BTreeSet<(NicId, NicId)>,
    /// Pairs of NICs whose proof was repeated.
    pub(crate) repeated: BTreeSet<(NicId, NicId)>,
    /// Duration of all rounds together.
    pub(crate) took: Duration,
    /// Number of rounds; 0 if nothing was proved.
    pub(crate) rounds: u32,
    /// Resources that all rounds used, by node. The memory is that of the largest round.
    pub(crate) costs: BTreeMap<NodeId, RoundCost>,
}

/// Tells whether paths are proved: the options allow it, and at least two nodes have usable ports.
pub(crate) fn is_wanted(options: &Options, plan: &Plan) -> bool {
    let with_ports = plan.ports.iter().filter(|ports| !ports.is_empty()).count();
    options.transport != Transport::Tcp && options.mesh.mode != Mode::Off && with_ports > 1
}

impl Mesh {
    /// Returns the paths of `wanted` that are not proved yet.
    pub(crate) fn unproved(&self, wanted: Vec<Proof>) -> Vec<Proof> {
        let up: BTreeSet<&Proof> = self.up().map(|tried| &tried.proof).collect();
        wanted.into_iter().filter(|proof| !up.contains(proof)).collect()
    }

    /// Lists the paths that work.
    pub(crate) fn up(&self) -> impl Iterator<Item = &ProofResult> {
        self.tried.iter().filter(|tried| matches!(tried.verdict, ProofOutcome::Up(_)))
    }

    /// Lists the working paths that ranks use according to `table`. After a failure between two NICs, ranks
    /// use no path between these NICs, not even one that works.
    pub(crate) fn in_use(&self, table: &RankTable) -> impl Iterator<Item = &ProofResult> {
        let is_current = |tried: &&ProofResult| {
            let pair = table.pair(tried.proof.a, tried.proof.b);
            pair.and_then(|pair| paths::proof(table, &pair)).as_ref() == Some(&tried.proof)
        };
        self.up().filter(is_current)
    }

    /// Returns an id that no earlier proof has.
    pub(crate) fn next_id(&self) -> u32 {
        u32::try_from(self.tried.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn add_cost(&mut self, node: NodeId, cost: RoundCost) {
        let all = self.costs.entry(node).or_default();
        all.queue_pairs += cost.queue_pairs;
        all.connect_us += cost.connect_us;
        all.memory = all.memory.max(cost.memory);
    }

    /// Records the paths of `todo` as failed, because no time is left to prove them.
    pub(crate) fn give_up(&mut self, todo: &[Proof], timeout: Duration) {
        for proof in todo {
            let verdict = outcome::out_of_time(proof, timeout);
            self.tried.push(ProofResult { id: self.next_id(), proof: *proof, verdict });
        }
    }

    /// Applies the remedy for each pair of NICs with a failed proof at index `from` or later: a retry, a
    /// lower MTU, or removal from the plan. Returns whether the plan has changed.
    pub(crate) fn take_out(&mut self, plan: &mut Plan, table: &RankTable, from: usize) -> bool {
        let failed = self.tried[from..].iter().filter_map(|tried| match &tried.verdict {
            ProofOutcome::Failed(failure) => Some((&tried.proof, failure)),
            ProofOutcome::Up(_) => None,
        });
        let carried = |(one, other): (NicId, NicId)| {
            let of = |end: NicId| table.nodes()[end.node.index()].nics[end.nic as usize].mtu;
            of(one).into_iter().chain(of(other)).min()
        };
        let had = outcome::AppliedRemedies { lowered: &self.lowered, repeated: &self.repeated };
        let remedies = outcome::remedies(failed, carried, had);
        let changes = remedies.values().any(|remedy| *remedy != Remedy::Again);
        for (nics, remedy) in remedies {
            match remedy {
                Remedy::Again => {
                    self.repeated.insert(nics);
                }
                Remedy::Smaller(mtu) => {
                    self.lowered.insert(nics);
                    plan.limit(nics, mtu);
                }
                Remedy::Cut => plan.cut(nics),
            }
        }
        changes
    }

    /// Chooses one working path for each pair of nodes, to be watched.
    pub(crate) fn watched(&self, table: &RankTable) -> Vec<&ProofResult> {
        let mut seen = BTreeSet::new();
        let nodes = |proof: &Proof| {
            let (one, other) = proof.nics();
            (one.node, other.node)
        };
        self.in_use(table).filter(|tried| seen.insert(nodes(&tried.proof))).collect()
    }

    /// Returns the successful proof of the path between two ranks over two NICs, or else between any ranks
    /// over the same NICs. The NIC of the lower node is first.
    pub(crate) fn of(&self, (a, b): (Rank, Rank), nics: (NicId, NicId)) -> Option<&ProofResult> {
        let between = || self.up().filter(|tried| tried.proof.nics() == nics);
        let own = between().find(|tried| (tried.proof.a, tried.proof.b) == (a, b));
        own.or_else(|| between().next())
    }

    /// Lists the failures of paths that no proof showed to work, one for each pair of NICs and MTU.
    pub(crate) fn failures(&self) -> Vec<(&ProofResult, &Failure)> {
        let up: BTreeSet<&Proof> = self.up().map(|tried| &tried.proof).collect();
        let mut seen = BTreeSet::new();
        let failed = self.tried.iter().filter_map(|tried| match &tried.verdict {
            ProofOutcome::Failed(failure) => Some((tried, failure)),
            ProofOutcome::Up(_) => None,
        });
        let failed = failed.filter(|(tried, _)| !up.contains(&tried.proof));
        failed.filter(|(tried, _)| seen.insert((tried.proof.nics(), tried.proof.mtu))).collect()
    }
}

fn is_rdma(connect: PairTransport) -> bool {
    matches!(connect, PairTransport::Rdma | PairTransport::RdmaCm)
}
