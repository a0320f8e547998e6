//! The watch over the fabric while the job runs: each pair of nodes keeps one queue pair, whose ends
//! let each other know that they are there. What goes down is said, and is proved anew every few
//! seconds until it is up again.

use crate::plan::mesh::paths::Proof;
use crate::plan::mesh::show::Side;
use crate::plan::mesh::verdict::{Said, Verdict};
use crate::plan::mesh::{Mesh, MeshOptions, round};
use crate::run::crew::Crew;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_bootstrap::protocol::mesh::{PathEvent, PathOutcome, QpSettings, RoundTimeouts};
use rlaunch_bootstrap::rank_table::RankTable;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How often each end lets the other know, in milliseconds.
pub(super) const BEAT_MS: u32 = 2000;
/// How long after its loss, or after a try in vain, a path is proved anew.
const TRY_AGAIN: Duration = Duration::from_secs(3);
/// When it is looked again whether a node is done with another path.
const BUSY: Duration = Duration::from_millis(200);
/// How long such a proof may take.
const LIMIT: Duration = Duration::from_secs(5);

/// A path that is down.
#[derive(Debug)]
struct Down {
    since: Instant,
    next_try: Instant,
    attempt: Option<Attempt>,
    /// What ranks are told once it is certain.
    line: Option<String>,
}

/// A path that is being proved anew.
#[derive(Debug)]
struct Attempt {
    round: u32,
    id: u32,
    /// What its two nodes have given, until both have.
    given: BTreeMap<NodeId, Vec<Vec<u8>>>,
    said: Said,
    done: BTreeSet<NodeId>,
}

/// Something the user should know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// What, and between which nodes.
    Down(String),
    /// It cannot be proved anew either: between which nodes.
    Dead(String, [NodeId; 2]),
    Up(String),
}

/// The watched paths of a job.
pub(crate) struct LinkWatch {
    table: RankTable,
    /// By what its nodes call it.
    paths: BTreeMap<u32, Proof>,
    down: BTreeMap<u32, Down>,
    settings: QpSettings,
    started: Instant,
    next_id: u32,
    next_round: u32,
}

impl LinkWatch {
    /// Over the paths that `mesh` has kept.
    pub(crate) fn over(mesh: &Mesh, table: &RankTable, options: &MeshOptions) -> LinkWatch {
        let kept = if options.watch { mesh.watched(table) } else { Vec::new() };
        LinkWatch {
            table: table.clone(),
            paths: kept.into_iter().map(|tried| (tried.id, tried.proof)).collect(),
            down: BTreeMap::new(),
            settings: options.settings,
            started: Instant::now(),
            next_id: mesh.next_id(),
            next_round: mesh.rounds,
        }
    }

    /// An end of a path has noticed something.
    pub(crate) fn on_watched(&mut self, watched: PathEvent) -> Option<News> {
        match watched {
            PathEvent::Down { id, how } => {
                let proof = *self.paths.get(&id)?;
                let now = Instant::now();
                // Both ends notice.
                if self.down.contains_key(&id) {
                    return None;
                }
                let seconds = self.started.elapsed().as_secs();
                let (ends, ranks) = (self.ends(&proof), self.users(&proof));
                let line = format!("link down: {ends} after {seconds} s ({how}); {ranks} use it");
                let (next_try, line) = (now + TRY_AGAIN, line);
                let down = Down { since: now, next_try, attempt: None, line: Some(line.clone()) };
                self.down.insert(id, down);
                Some(News::Down(line))
            }
            PathEvent::PortUp { id } => {
                if let Some(down) = self.down.get_mut(&id).filter(|down| down.attempt.is_none()) {
                    down.next_try = Instant::now();
                }
                None
            }
        }
    }

    /// When [`LinkWatch::on_time`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.down.values().map(|down| down.next_try).min()
    }

    /// Has paths that are down proved anew. A node proves one at a time.
    pub(crate) fn on_time(&mut self, crew: &Crew) {
        let now = Instant::now();
        let attempted = self.down.iter().filter(|(_, down)| down.attempt.is_some());
        let attempted = attempted.filter_map(|(path, _)| self.paths.get(path));
        let mut busy: BTreeSet<NodeId> = attempted.flat_map(Proof::nodes).collect();
        for (path, down) in self.down.iter_mut().filter(|(_, down)| down.next_try <= now) {
            let Some(proof) = self.paths.get(path) else { continue };
            if proof.nodes().iter().any(|node| busy.contains(node)) {
                down.next_try = now + BUSY;
                continue;
            }
            busy.extend(proof.nodes());
            // It ends before that, one way or the other.
            down.next_try = now + 2 * LIMIT;
            let (number, id) = (self.next_round, self.next_id);
            self.next_round += 1;
            self.next_id += 1;
            let limits = RoundTimeouts::within(LIMIT, LIMIT);
            let rounds = round::again(&self.table, proof, (number, id), self.settings, limits);
            for (node, round) in rounds {
                crew.nodes[node.index()].commands.tell(&ToAgent::Prove(round));
            }
            let (given, said, done) = (BTreeMap::new(), Said::default(), BTreeSet::new());
            down.attempt = Some(Attempt { round: number, id, given, said, done });
        }
    }

    /// An end has come so far; both are told once the other has.
    pub(crate) fn on_meets(&mut self, crew: &Crew, node: NodeId, number: u32, given: Vec<Vec<u8>>) {
        let attempts = self.down.values_mut().filter_map(|down| down.attempt.as_mut());
        let Some(attempt) = attempts.into_iter().find(|a| a.round == number) else { return };
        attempt.given.insert(node, given);
        if attempt.given.len() < 2 {
            return;
        }
        let given = std::mem::take(&mut attempt.given);
        for (of, blobs) in &given {
            let others = given.keys().filter(|other| *other != of);
            for other in others {
                crew.nodes[other.index()].commands.tell(&ToAgent::PeerEndpoints(blobs.clone()));
            }
        }
    }

    /// An end has proved a path anew, or not.
    pub(crate) fn on_proved(
        &mut self,
        crew: &Crew,
        node: NodeId,
        number: u32,
        outcomes: Vec<PathOutcome>,
    ) -> Option<News> {
        let is_it = |down: &Down| down.attempt.as_ref().is_some_and(|a| a.round == number);
        let path = *self.down.iter().find(|(_, down)| is_it(down))?.0;
        let proof = *self.paths.get(&path)?;
        let down = self.down.get_mut(&path)?;
        let attempt = down.attempt.as_mut()?;
        attempt.said.by(node, outcomes);
        attempt.done.insert(node);
        if attempt.done.len() < 2 {
            return None;
        }
        let (id, since) = (attempt.id, down.since);
        let verdict = attempt.said.verdict(id, &proof, "no answer from its prover");
        down.attempt = None;
        down.next_try = Instant::now() + TRY_AGAIN;
        if let Verdict::Failed(failure) = verdict {
            // A sign may be a machine's that had something else to do: this one is none.
            let dead = down.line.take().map(|line| News::Dead(line, proof.nodes()));
            tracing::info!("{} is still down: {}", self.ends(&proof), failure.fault.cause);
            return dead;
        }
        self.down.remove(&path);
        self.paths.remove(&path);
        self.paths.insert(id, proof);
        self.keep(crew, proof.nodes());
        let seconds = since.elapsed().as_secs();
        Some(News::Up(format!("link up: {} after {seconds} s without it", self.ends(&proof))))
    }

    /// Tells nodes which queue pairs are theirs to watch now.
    fn keep(&self, crew: &Crew, nodes: [NodeId; 2]) {
        for node in nodes {
            let own = |proof: &Proof| proof.nodes().contains(&node);
            let ids = self.paths.iter().filter(|(_, proof)| own(proof)).map(|(id, _)| *id);
            let message = ToAgent::WatchPaths { ids: ids.collect(), beat_ms: BEAT_MS };
            crew.nodes[node.index()].commands.tell(&message);
        }
    }

    /// `a rocep1s0f1 ↔ c rocep1s0f0`
    fn ends(&self, proof: &Proof) -> String {
        let end = |end| {
            let side = Side::of_end(&self.table, end);
            side.and_then(|side| Some(format!("{} {}", side.host, side.nic?.device)))
        };
        format!("{} ↔ {}", end(proof.from).unwrap_or_default(), end(proof.to).unwrap_or_default())
    }

    /// `ranks 0 and 2`, `ranks 0-7 and 8-15`: those of both nodes that reach each other by it.
    fn users(&self, proof: &Proof) -> String {
        let (mut one, mut other) = (BTreeSet::new(), BTreeSet::new());
        let ranks = |node: NodeId| {
            self.table.ranks().iter().filter(move |row| row.node == node).map(|row| row.rank)
        };
        for a in ranks(proof.from.node) {
            for b in ranks(proof.to.node) {
                let Some(pair) = self.table.pair(a, b) else { continue };
                if (pair.nic_a, pair.nic_b) == (Some(proof.from.nic), Some(proof.to.nic)) {
                    one.insert(a);
                    other.insert(b);
                }
            }
        }
        format!("ranks {} and {}", span(&one), span(&other))
    }
}

/// `3`, or `0-7` from the first to the last.
fn span(ranks: &BTreeSet<Rank>) -> String {
    match (ranks.first(), ranks.last()) {
        (Some(first), Some(last)) if first != last => format!("{first}-{last}"),
        (Some(only), _) => only.to_string(),
        _ => "none".to_owned(),
    }
}
