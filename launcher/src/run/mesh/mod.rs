//! The mesh: which paths RDMA has between ranks, proved before any rank starts. In reading order:
//! [`paths`] says what is to be proved, [`round`] what each node is told of it, [`verdict`] what
//! follows from the answers, [`words`] and [`show`] what the user reads, [`watch`] what becomes of
//! the paths while the job runs.

mod advice;
mod offer;
mod paths;
mod round;
mod show;
#[cfg(test)]
mod tests;
mod verdict;
mod watch;
mod words;

pub(crate) use offer::Offer;
pub(crate) use paths::Mode;
pub(crate) use show::{for_people, for_programs};
pub(crate) use watch::{LinkWatch, News};

use crate::console::deadline::Deadline;
use crate::console::report::Failed;
use crate::plan::selection::Plan;
use crate::plan::setup::{Options, Transport};
use crate::run::crew::Crew;
use crate::run::rendezvous::{Decided, Gathering};
use paths::Proof;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::mesh::{Cost, Limits, Settings};
use rlaunch_bootstrap::table::{Connect, End, RankTable};
use rlaunch_bootstrap::wire::ToAgent;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use verdict::{Failure, Remedy, Said, Verdict};

/// With less time left than this nothing more is tried.
const LEAST: Duration = Duration::from_millis(70);
/// How much longer than its limits a round may take before those who are silent are given up:
/// agents give up their provers before that, and say so.
const SLACK: Duration = Duration::from_secs(2);

/// What was asked for of the mesh.
#[derive(Clone, Debug)]
pub(crate) struct MeshOptions {
    pub(crate) mode: Mode,
    /// For all rounds together.
    pub(crate) timeout: Duration,
    pub(crate) settings: Settings,
    /// Keep an eye on the paths while the job runs.
    pub(crate) watch: bool,
    /// End the job when one of them goes down.
    pub(crate) abort_on_link_down: bool,
}

impl Default for MeshOptions {
    fn default() -> MeshOptions {
        let (mode, settings) = (Mode::default(), Settings::default());
        let timeout = Duration::from_secs(5);
        MeshOptions { mode, timeout, settings, watch: true, abort_on_link_down: false }
    }
}

/// A proof and how it came out.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    /// By which the nodes know it.
    pub(crate) id: u32,
    pub(crate) proof: Proof,
    pub(crate) verdict: Verdict,
}

/// The proved mesh.
#[derive(Debug, Default)]
pub(crate) struct Mesh {
    /// In the order in which they were tried.
    pub(crate) tried: Vec<Tried>,
    /// Pairs of NICs for which packets had to be made smaller.
    lowered: BTreeSet<(End, End)>,
    /// Those that were given a second chance.
    repeated: BTreeSet<(End, End)>,
    /// All rounds together.
    pub(crate) took: Duration,
    /// Rounds that there were.
    pub(crate) rounds: u32,
    /// By node, of all rounds.
    pub(crate) costs: BTreeMap<NodeId, Cost>,
}

/// Whether a job has anything to prove, or to fall back from.
pub(crate) fn is_wanted(options: &Options, plan: &Plan) -> bool {
    let with_ports = plan.ports.iter().filter(|ports| !ports.is_empty()).count();
    options.transport != Transport::Tcp && options.mesh.mode != Mode::Off && with_ports > 1
}

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
            let limits = Limits::within(options.timeout, left);
            let how = (options.settings, limits);
            if mesh.round(crew, gathering, &decided.table, &todo, how).await? {
                budget.renew();
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
    /// Of these what has not been found to work.
    fn unproved(&self, wanted: Vec<Proof>) -> Vec<Proof> {
        let up: BTreeSet<&Proof> = self.up().map(|tried| &tried.proof).collect();
        wanted.into_iter().filter(|proof| !up.contains(proof)).collect()
    }

    /// What works.
    fn up(&self) -> impl Iterator<Item = &Tried> {
        self.tried.iter().filter(|tried| matches!(tried.verdict, Verdict::Up(_)))
    }

    /// What works and is what ranks use: of NICs between which another path failed nothing is.
    fn in_use(&self, table: &RankTable) -> impl Iterator<Item = &Tried> {
        let is_current = |tried: &&Tried| {
            let pair = table.pair(tried.proof.a, tried.proof.b);
            pair.and_then(|pair| paths::proof(table, &pair)).as_ref() == Some(&tried.proof)
        };
        self.up().filter(is_current)
    }

    /// Has every node prove its ends of `todo`; whether this process stood still meanwhile.
    async fn round(
        &mut self,
        crew: &mut Crew,
        gathering: &mut Gathering,
        table: &RankTable,
        todo: &[Proof],
        (settings, limits): (Settings, Limits),
    ) -> Result<bool, Failed> {
        let first = self.next_id();
        let number = self.rounds;
        self.rounds += 1;
        let of_nodes = round::of_nodes(table, todo, (number, first), settings, limits);
        for (node, round) in crew.nodes.iter().zip(of_nodes) {
            node.commands.try_tell(&ToAgent::Prove(round)).map_err(|error| {
                let message = format!("the paths of {} do not fit a frame: {error}", node.host);
                Failed::new(crate::console::exit::Exit::MESH, message).hint(Some("--mesh auto"))
            })?;
        }
        let limit = limits.total() + Duration::from_millis(limits.connect_ms.into()) + SLACK;
        let mut deadline = Deadline::after(limit).often();
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
        Ok(deadline.has_begun_anew())
    }

    /// Everything that was tried has a number of its own.
    fn next_id(&self) -> u32 {
        u32::try_from(self.tried.len()).unwrap_or(u32::MAX)
    }

    fn add_cost(&mut self, node: NodeId, cost: Cost) {
        let all = self.costs.entry(node).or_default();
        all.queue_pairs += cost.queue_pairs;
        all.connect_us += cost.connect_us;
        all.memory = all.memory.max(cost.memory);
    }

    /// There is no time left for these.
    fn give_up(&mut self, todo: &[Proof], timeout: Duration) {
        for proof in todo {
            let verdict = verdict::out_of_time(proof, timeout);
            self.tried.push(Tried { id: self.next_id(), proof: *proof, verdict });
        }
    }

    /// Takes out of the plan what has failed since `from`, or makes its packets smaller. Whether the
    /// plan is another one now.
    fn take_out(&mut self, plan: &mut Plan, table: &RankTable, from: usize) -> bool {
        let failed = self.tried[from..].iter().filter_map(|tried| match &tried.verdict {
            Verdict::Failed(failure) => Some((&tried.proof, failure)),
            Verdict::Up(_) => None,
        });
        let carried = |(one, other): (End, End)| {
            let of = |end: End| table.nodes()[end.node.index()].nics[end.nic as usize].mtu;
            of(one).into_iter().chain(of(other)).min()
        };
        let had = verdict::Had { lowered: &self.lowered, repeated: &self.repeated };
        let remedies = verdict::remedies(failed, carried, had);
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

    /// One path of each pair of nodes that has any.
    fn watched(&self, table: &RankTable) -> Vec<&Tried> {
        let mut seen = BTreeSet::new();
        let nodes = |proof: &Proof| {
            let (one, other) = proof.nics();
            (one.node, other.node)
        };
        self.in_use(table).filter(|tried| seen.insert(nodes(&tried.proof))).collect()
    }

    /// What is known of a pair of ranks: the path that it uses, by its own proof or that of its NICs.
    pub(crate) fn of(&self, (a, b): (Rank, Rank), nics: (End, End)) -> Option<&Tried> {
        let between = || self.up().filter(|tried| tried.proof.nics() == nics);
        let own = between().find(|tried| (tried.proof.a, tried.proof.b) == (a, b));
        own.or_else(|| between().next())
    }

    /// Every failure of two nodes' NICs that did not pass, once for each pair of NICs and MTU.
    pub(crate) fn failures(&self) -> Vec<(&Tried, &Failure)> {
        let up: BTreeSet<&Proof> = self.up().map(|tried| &tried.proof).collect();
        let mut seen = BTreeSet::new();
        let failed = self.tried.iter().filter_map(|tried| match &tried.verdict {
            Verdict::Failed(failure) => Some((tried, failure)),
            Verdict::Up(_) => None,
        });
        let failed = failed.filter(|(tried, _)| !up.contains(&tried.proof));
        failed.filter(|(tried, _)| seen.insert((tried.proof.nics(), tried.proof.mtu))).collect()
    }
}

/// Whether a pair goes by RDMA.
fn is_rdma(connect: Connect) -> bool {
    matches!(connect, Connect::Rdma | Connect::RdmaCm)
}
