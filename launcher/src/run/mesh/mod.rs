//! Proving the mesh: rounds in which the nodes prove its paths, and the watch over those that ranks use.
//! [`crate::plan::mesh`] says what is to be proved and what follows from it.

mod offer;
mod watch;

pub(crate) use offer::Offer;
pub(crate) use watch::{LinkWatch, News};

use crate::plan::mesh::paths::{self, Proof};
use crate::plan::mesh::verdict::Said;
use crate::plan::mesh::{Mesh, MeshOptions, Tried, round};
use crate::plan::selection::Plan;
use crate::run::crew::Crew;
use crate::run::rendezvous::{Decided, Gathering};
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_bootstrap::protocol::mesh::{QpSettings, RoundTimeouts};
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_console::deadline::Deadline;
use rlaunch_console::exit::Exit;
use rlaunch_console::messages::Failed;
use std::time::{Duration, Instant};

/// With less time left than this nothing more is tried.
const LEAST: Duration = Duration::from_millis(70);
/// How much longer than its limits a round may take before those who are silent are given up:
/// agents give up their provers before that, and say so.
const SLACK: Duration = Duration::from_secs(2);

/// Proves what `plan` wants, and takes out of it what does not work. `decide` says what follows from
/// a plan; returns what follows from the last one as well.
pub(crate) async fn prove(
    crew: &mut Crew,
    gathering: &mut Gathering,
    options: &MeshOptions,
    plan: &mut Plan,
    decide: impl Fn(&Plan) -> Result<Decided, Failed>,
) -> Result<(Mesh, Decided), Failed> {
    let (started, mut budget) = (Instant::now(), Deadline::after(options.timeout));
    let mut mesh = Mesh::default();
    let mut decided = decide(plan)?;
    loop {
        let todo = mesh.unproved(paths::wanted(&decided.table, options.mode));
        if todo.is_empty() {
            break;
        }
        let left = budget.left();
        let from = mesh.tried.len();
        if left < LEAST {
            mesh.give_up(&todo, options.timeout);
        } else {
            let limits = RoundTimeouts::within(options.timeout, left);
            let how = (options.settings, limits);
            if mesh.round(crew, gathering, &decided.table, &todo, how).await? {
                budget.restart();
            }
        }
        if mesh.take_out(plan, &decided.table, from) {
            decided = decide(plan)?;
        }
        mesh.took = started.elapsed();
    }
    mesh.keep(crew, &decided.table, options);
    Ok((mesh, decided))
}

impl Mesh {
    /// Has every node prove its ends of `todo`; whether this process stood still meanwhile.
    async fn round(
        &mut self,
        crew: &mut Crew,
        gathering: &mut Gathering,
        table: &RankTable,
        todo: &[Proof],
        (settings, limits): (QpSettings, RoundTimeouts),
    ) -> Result<bool, Failed> {
        let first = self.next_id();
        let number = self.rounds;
        self.rounds += 1;
        let of_nodes = round::of_nodes(table, todo, (number, first), settings, limits);
        for (node, round) in crew.nodes.iter().zip(of_nodes) {
            node.commands.try_tell(&ToAgent::Prove(round)).map_err(|error| {
                let message = format!("the paths of {} do not fit a frame: {error}", node.host);
                Failed::new(Exit::MESH, message).hint(Some("--mesh auto"))
            })?;
        }
        let limit = limits.total() + Duration::from_millis(limits.connect_ms.into()) + SLACK;
        let mut deadline = Deadline::after(limit).check_often();
        let answers = gathering.proved(crew, number, &mut deadline).await?;
        let mut said = Said::default();
        for (node, (outcomes, cost)) in answers {
            said.by(node, outcomes);
            self.add_cost(node, cost);
        }
        for (id, proof) in (first..).zip(todo) {
            let verdict = said.verdict(id, proof, "no answer from its prover");
            self.tried.push(Tried { id, proof: *proof, verdict });
        }
        Ok(deadline.was_restarted())
    }

    /// Tells every node which queue pairs to keep for the watch; all others are closed.
    fn keep(&self, crew: &Crew, table: &RankTable, options: &MeshOptions) {
        if self.rounds == 0 {
            return;
        }
        let kept = if options.watch { self.watched(table) } else { Vec::new() };
        for node in &crew.nodes {
            let own =
                |tried: &&&Tried| [tried.proof.from.node, tried.proof.to.node].contains(&node.id);
            let ids = kept.iter().filter(own).map(|tried| tried.id).collect();
            node.commands.tell(&ToAgent::WatchPaths { ids, beat_ms: watch::BEAT_MS });
        }
    }
}
