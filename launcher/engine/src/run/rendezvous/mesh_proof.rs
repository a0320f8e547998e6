//! Proof of the mesh of RDMA paths.
//!
//! In each round, nodes prove paths between the ports of the plan. Pairs of ports that fail are removed from
//! the plan, and the next round proves the paths that replace theirs. [`rlaunch_plan::mesh`] decides which
//! paths are proved and what follows from the results; [`links`] monitors the proved paths while the job
//! runs.

use super::{JoinState, RankPlan};
use crate::run::links;
use crate::run::nodes::{Agents, HelperUpload, Node};
use crate::run::pump::{self, Pump};
use rlaunch_bootstrap::deadline::CHECK_INTERVAL;
use rlaunch_bootstrap::protocol::control::{Helper, ToAgent};
use rlaunch_bootstrap::protocol::mesh::{PathProof, RoundTimeouts};
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::messages;
use rlaunch_plan::mesh::outcome::{PathReports, ProofOutcome};
use rlaunch_plan::mesh::paths::{self, Proof};
use rlaunch_plan::mesh::{Mesh, ProofResult};
use rlaunch_plan::options::{MeshMode, MeshOptions};
use rlaunch_plan::selection::Plan;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::path::Path;
use std::time::Duration;

/// Minimum time that must be left for another round.
const MIN_ROUND: Duration = Duration::from_millis(70);
/// Time, in addition to the limits of a round, in which nodes must report its result. It is long enough for
/// an agent to give up a prover that hangs, and to report that.
const SLACK: Duration = Duration::from_secs(2);
/// Time for which a path is measured, in milliseconds.
const MEASURE_MS: u32 = 1000;

/// Sends the digest of the prover to every node that has a usable RDMA port. `given` is the path from `--agent`. If the
/// prover is missing for some node, returns an error with `--mesh full`, and otherwise prints a warning and returns
/// `None`.
pub(super) fn offer_prover(
    agents: &Agents,
    nodes: &[Node],
    given: Option<&Path>,
    plan: &Plan,
    options: &MeshOptions,
) -> Result<Option<HelperUpload>, Failed> {
    let mut upload = HelperUpload::new(Helper::Prover);
    let with_ports = nodes.iter().zip(&plan.ports).filter(|(_, ports)| !ports.is_empty());
    for (node, _) in with_ports {
        if let Err(failed) = upload.offer(agents, node, given) {
            if options.mode == MeshMode::Full {
                return Err(failed);
            }
            messages::warn(&format!("the mesh is not tested: {}", failed.message));
            failed.hints.iter().for_each(|hint| messages::hint(hint));
            return Ok(None);
        }
    }
    Ok(Some(upload))
}

/// Proves the paths between the ports of `plan`, and removes pairs of ports that fail from `plan`.
/// `rank_plan` computes the configuration of ranks from a plan; the configuration for the final plan is
/// returned.
pub(super) async fn prove(
    pump: &mut Pump<'_>,
    state: &mut JoinState<'_>,
    options: &MeshOptions,
    plan: &mut Plan,
    rank_plan: impl Fn(&Plan) -> Result<RankPlan, Failed>,
) -> Result<(Mesh, RankPlan), Failed> {
    let (started, mut budget) = (pump::now(), Deadline::after(options.timeout));
    let mut proving = Proving { pump, state, options, mesh: Mesh::default() };
    let mut planned = rank_plan(plan)?;
    loop {
        let mesh = &mut proving.mesh;
        let todo = mesh.unproved(paths::wanted(&planned.table, options.mode));
        if todo.is_empty() {
            break;
        }
        let left = budget.left();
        let from = mesh.results.len();
        if left < MIN_ROUND {
            mesh.give_up(&todo, options.timeout);
        } else {
            let limits = RoundTimeouts::within(options.timeout, left);
            if proving.prove(&planned.table, &todo, limits).await? {
                budget.restart();
            }
        }
        let mesh = &mut proving.mesh;
        if mesh.apply_remedies(plan, &planned.table, from) {
            planned = rank_plan(plan)?;
        }
        mesh.duration = pump::now().saturating_duration_since(started);
    }
    if options.measure {
        proving.measure(&planned.table, plan).await?;
    }
    proving.send_watched_paths(&planned.table);
    Ok((proving.mesh, planned))
}

/// Proof of a job's paths by its nodes.
struct Proving<'a, 's, 'n> {
    pump: &'a mut Pump<'s>,
    state: &'a mut JoinState<'n>,
    options: &'a MeshOptions,
    mesh: Mesh,
}

impl Proving<'_, '_, '_> {
    /// Proves the paths of `todo` in one round of all nodes. Returns true if this process was suspended
    /// meanwhile.
    async fn prove(
        &mut self,
        table: &RankTable,
        todo: &[Proof],
        limits: RoundTimeouts,
    ) -> Result<bool, Failed> {
        let first = self.mesh.next_id();
        let (reports, was_restarted) = self.run_round(table, todo, limits).await?;
        for (id, proof) in (first..).zip(todo) {
            let outcome = reports.outcome(id, proof, "no answer from its prover");
            self.mesh.results.push(ProofResult { id, proof: *proof, outcome });
        }
        Ok(was_restarted)
    }

    /// Measures the bandwidth of the cables between the ports of `plan`. Paths that do not work are left out.
    async fn measure(&mut self, table: &RankTable, plan: &Plan) -> Result<(), Failed> {
        let options = self.options;
        let limits = RoundTimeouts::within(options.timeout, options.timeout);
        let limits = RoundTimeouts { measure_ms: MEASURE_MS, ..limits };
        for todo in paths::measured_rounds(plan) {
            let first = self.mesh.next_id();
            let (reports, _) = self.run_round(table, &todo, limits).await?;
            for (id, proof) in (first..).zip(&todo) {
                if let ProofOutcome::Up(PathProof { write_mbps: Some(rate), .. }) =
                    reports.outcome(id, proof, "no answer from its prover")
                {
                    self.mesh.measured.push((proof.from, proof.to, rate));
                }
            }
        }
        Ok(())
    }

    /// Carries out a round of all nodes with the paths of `todo`, which get the next ids. Returns their
    /// reports, and whether this process was suspended meanwhile.
    async fn run_round(
        &mut self,
        table: &RankTable,
        todo: &[Proof],
        limits: RoundTimeouts,
    ) -> Result<(PathReports, bool), Failed> {
        let Proving { pump, state, options, mesh } = self;
        let first = mesh.next_id();
        let number = mesh.rounds;
        mesh.rounds += 1;
        let parts = paths::parts(table, todo, number, first, options.settings, limits);
        for (node, round) in state.nodes.iter().zip(parts) {
            let agent = pump.agents.outbox(node.id);
            agent.try_queue_message(&ToAgent::Prove(round)).map_err(|error| {
                let message = format!("the paths of {} do not fit a frame: {error}", node.host);
                Failed::new(Exit::MESH, message).hint(Some("--mesh auto"))
            })?;
        }
        let limit = limits.total() + Duration::from_millis(limits.connect_ms.into()) + SLACK;
        let mut deadline = Deadline::after(limit).checked_every(CHECK_INTERVAL);
        let answers = state.await_proofs(pump, number, &mut deadline).await?;
        let mut reports = PathReports::default();
        for (node, (outcomes, cost)) in answers {
            reports.add(node, outcomes);
            mesh.add_cost(node, cost);
        }
        Ok((reports, deadline.was_restarted()))
    }

    /// Sends every node the list of the paths that are monitored. The node closes the queue pairs of all
    /// other paths.
    fn send_watched_paths(&self, table: &RankTable) {
        if self.mesh.rounds == 0 {
            return;
        }
        let watched = if self.options.watch { self.mesh.watched(table) } else { Vec::new() };
        for node in self.state.nodes {
            let own = |result: &&&ProofResult| {
                [result.proof.from.node, result.proof.to.node].contains(&node.id)
            };
            let ids = watched.iter().filter(own).map(|result| result.id).collect();
            let message = ToAgent::WatchPaths { ids, beat_ms: links::BEAT_MS };
            self.pump.agents.queue_command(node.id, &message);
        }
    }
}
