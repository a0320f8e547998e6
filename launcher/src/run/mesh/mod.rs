//! Proof of the mesh of RDMA paths, and monitoring of the paths that ranks use.
//!
//! In each round, nodes prove paths between the ports of the plan. Pairs of ports that fail are removed from
//! the plan, and the next round proves the paths that replace theirs. [`crate::plan::mesh`] decides which
//! paths are proved and what follows from the results; [`links`] monitors the proved paths while the job
//! runs.

mod links;

pub(crate) use links::{LinkChange, LinkMonitor};

use crate::plan::mesh::outcome::{PathReports, ProofOutcome};
use crate::plan::mesh::paths::{self, Proof};
use crate::plan::mesh::{Mesh, MeshOptions, Mode, ProofResult, measured, round};
use crate::plan::selection::Plan;
use crate::run::helper_upload::HelperUpload;
use crate::run::nodes::Nodes;
use crate::run::rendezvous::{JoinState, RankPlan};
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_bootstrap::protocol::helper::Helper;
use rlaunch_bootstrap::protocol::mesh::{PathProof, QpSettings, RoundTimeouts};
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::messages;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::path::Path;
use std::time::{Duration, Instant};

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
pub(crate) fn offer_prover(
    nodes: &Nodes,
    given: Option<&Path>,
    plan: &Plan,
    options: &MeshOptions,
) -> Result<Option<HelperUpload>, Failed> {
    let mut upload = HelperUpload::new(Helper::Prover);
    let with_ports = nodes.reached.iter().zip(&plan.ports).filter(|(_, ports)| !ports.is_empty());
    for (node, _) in with_ports {
        if let Err(failed) = upload.offer(node, given) {
            if options.mode == Mode::Full {
                return Err(failed);
            }
            messages::warn(&format!("the mesh is not proved: {}", failed.message));
            failed.hints.iter().for_each(|hint| messages::hint(hint));
            return Ok(None);
        }
    }
    Ok(Some(upload))
}

/// Proves the paths between the ports of `plan`, and removes pairs of ports that fail from `plan`.
/// `rank_plan` computes the configuration of ranks from a plan; the configuration for the final plan is
/// returned.
pub(crate) async fn prove(
    nodes: &mut Nodes,
    state: &mut JoinState,
    options: &MeshOptions,
    plan: &mut Plan,
    rank_plan: impl Fn(&Plan) -> Result<RankPlan, Failed>,
) -> Result<(Mesh, RankPlan), Failed> {
    let (started, mut budget) = (Instant::now(), Deadline::after(options.timeout));
    let mut mesh = Mesh::default();
    let mut planned = rank_plan(plan)?;
    loop {
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
            let how = (options.settings, limits);
            if mesh.round(nodes, state, &planned.table, &todo, how).await? {
                budget.restart();
            }
        }
        if mesh.apply_remedies(plan, &planned.table, from) {
            planned = rank_plan(plan)?;
        }
        mesh.duration = started.elapsed();
    }
    if options.measure {
        mesh.measure(nodes, state, &planned.table, (plan, options)).await?;
    }
    mesh.send_watched_paths(nodes, &planned.table, options);
    Ok((mesh, planned))
}

impl Mesh {
    /// Proves the paths of `todo` in one round of all nodes. Returns true if this process was suspended
    /// meanwhile.
    async fn round(
        &mut self,
        nodes: &mut Nodes,
        state: &mut JoinState,
        table: &RankTable,
        todo: &[Proof],
        (settings, limits): (QpSettings, RoundTimeouts),
    ) -> Result<bool, Failed> {
        let first = self.next_id();
        let (reports, was_restarted) =
            self.reports(nodes, state, table, (todo, first), (settings, limits)).await?;
        for (id, proof) in (first..).zip(todo) {
            let outcome = reports.outcome(id, proof, "no answer from its prover");
            self.results.push(ProofResult { id, proof: *proof, outcome });
        }
        Ok(was_restarted)
    }

    /// Measures the bandwidth of the cables between the ports of `plan`. Paths that do not work are left out.
    async fn measure(
        &mut self,
        nodes: &mut Nodes,
        state: &mut JoinState,
        table: &RankTable,
        (plan, options): (&Plan, &MeshOptions),
    ) -> Result<(), Failed> {
        let limits = RoundTimeouts::within(options.timeout, options.timeout);
        let limits = RoundTimeouts { measure_ms: MEASURE_MS, ..limits };
        for todo in measured::rounds(plan) {
            let first = self.next_id();
            let how = (options.settings, limits);
            let (reports, _) = self.reports(nodes, state, table, (&todo, first), how).await?;
            for (id, proof) in (first..).zip(&todo) {
                if let ProofOutcome::Up(PathProof { write_mbps: Some(rate), .. }) =
                    reports.outcome(id, proof, "no answer from its prover")
                {
                    self.measured.push((proof.from, proof.to, rate));
                }
            }
        }
        Ok(())
    }

    /// Carries out a round of all nodes with the paths of `todo`, which get ids from `first` on. Returns their
    /// reports, and whether this process was suspended meanwhile.
    async fn reports(
        &mut self,
        nodes: &mut Nodes,
        state: &mut JoinState,
        table: &RankTable,
        (todo, first): (&[Proof], u32),
        (settings, limits): (QpSettings, RoundTimeouts),
    ) -> Result<(PathReports, bool), Failed> {
        let number = self.rounds;
        self.rounds += 1;
        let parts = round::parts(table, todo, (number, first), settings, limits);
        for (node, round) in nodes.reached.iter().zip(parts) {
            node.commands.try_queue_message(&ToAgent::Prove(round)).map_err(|error| {
                let message = format!("the paths of {} do not fit a frame: {error}", node.host);
                Failed::new(Exit::MESH, message).hint(Some("--mesh auto"))
            })?;
        }
        let limit = limits.total() + Duration::from_millis(limits.connect_ms.into()) + SLACK;
        let mut deadline = Deadline::after(limit).check_often();
        let answers = state.proved(nodes, number, &mut deadline).await?;
        let mut reports = PathReports::default();
        for (node, (outcomes, cost)) in answers {
            reports.add(node, outcomes);
            self.add_cost(node, cost);
        }
        Ok((reports, deadline.was_restarted()))
    }

    /// Sends every node the list of the paths that are monitored. The node closes the queue pairs of all
    /// other paths.
    fn send_watched_paths(&self, nodes: &Nodes, table: &RankTable, options: &MeshOptions) {
        if self.rounds == 0 {
            return;
        }
        let watched = if options.watch { self.watched(table) } else { Vec::new() };
        for node in &nodes.reached {
            let own = |result: &&&ProofResult| {
                [result.proof.from.node, result.proof.to.node].contains(&node.id)
            };
            let ids = watched.iter().filter(own).map(|result| result.id).collect();
            node.commands.queue_command(&ToAgent::WatchPaths { ids, beat_ms: links::BEAT_MS });
        }
    }
}
