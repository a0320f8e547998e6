//! Monitor of RDMA links while the job runs: a state machine without I/O.
//!
//! Each pair of nodes that use RDMA keeps the queue pair of one proved path open, and both ends send beats
//! over it. An end that receives no beats reports the path as down. While a path is down, the monitor starts
//! a new proof of it every [`RETRY_AFTER`]:
//!
//! ```text
//! up ── an end reports a loss ──▶ down ── due ──▶ proving ── both ends have succeeded ──▶ up
//!                                   ▲                └────── an end has failed ──▶ down (dead)
//! ```
//!
//! A path that is down may only be slow, because a host is busy. If the new proof fails too, the path is
//! dead: ranks on both nodes are sent the reason, because they may wait for each other in vain.

use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::control::ToAgent;
use rlaunch_bootstrap::protocol::mesh::{PathEvent, PathOutcome, QpSettings, RoundTimeouts};
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_plan::mesh::Mesh;
use rlaunch_plan::mesh::outcome::{PathReports, ProofOutcome};
use rlaunch_plan::mesh::paths::{self, Proof};
use rlaunch_plan::mesh::show::ConnectionEnd;
use rlaunch_plan::options::MeshOptions;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, Instant};

/// Interval of the beats, in milliseconds.
pub(super) const BEAT_MS: u32 = 2000;
/// Time from the loss of a path, or from a failed proof, to the next proof.
const RETRY_AFTER: Duration = Duration::from_secs(3);
/// Delay of a proof if one of its nodes takes part in another proof.
const BUSY: Duration = Duration::from_millis(200);
/// Time limit for the new proof of a path that is down.
const PROOF_LIMIT: Duration = Duration::from_secs(5);

/// Path that is down.
#[derive(Debug)]
struct DownLink {
    since: Instant,
    next_try: Instant,
    retry: Option<LinkRetry>,
    /// Reason that is sent to ranks when the path is found to be dead; `None` after it was sent.
    line: Option<String>,
}

/// Running proof of a path that is down.
#[derive(Debug)]
struct LinkRetry {
    round: u32,
    /// Id of the proof. If the proof succeeds, this becomes the id of the path.
    id: u32,
    /// Endpoints by node. They are exchanged once both nodes have sent theirs.
    endpoints: BTreeMap<NodeId, Vec<Vec<u8>>>,
    reports: PathReports,
    done: BTreeSet<NodeId>,
}

/// Change of a path that is reported to the user or to ranks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkChange {
    /// A path is down. The line names the nodes and the symptom.
    Down(String),
    /// A path that was down could not be proved again. The text is that of the path's [`LinkChange::Down`];
    /// the nodes are those at its ends.
    Dead(String, [NodeId; 2]),
    Up(String),
}

/// Monitored paths of a job.
pub(crate) struct LinkMonitor {
    table: RankTable,
    /// Monitored paths, by the id that agents use for them.
    paths: BTreeMap<u32, Proof>,
    down: BTreeMap<u32, DownLink>,
    settings: QpSettings,
    started: Instant,
    next_id: u32,
    next_round: u32,
    /// Messages to nodes that [`LinkMonitor::take_messages`] has not returned yet.
    messages: Vec<(NodeId, ToAgent)>,
}

impl LinkMonitor {
    /// Makes a monitor for one path of each pair of nodes, or for no path if `options.watch` is false.
    pub(crate) fn new(
        mesh: &Mesh,
        table: &RankTable,
        options: &MeshOptions,
        now: Instant,
    ) -> LinkMonitor {
        let watched = if options.watch { mesh.watched(table) } else { Vec::new() };
        LinkMonitor {
            table: table.clone(),
            paths: watched.into_iter().map(|result| (result.id, result.proof)).collect(),
            down: BTreeMap::new(),
            settings: options.settings,
            started: now,
            next_id: mesh.next_id(),
            next_round: mesh.rounds,
            messages: Vec::new(),
        }
    }

    /// Handles a report by one end of a path. Both ends report a loss; the second report changes nothing.
    pub(crate) fn on_path_event(&mut self, now: Instant, event: PathEvent) -> Option<LinkChange> {
        match event {
            PathEvent::Down { id, how } => {
                let proof = *self.paths.get(&id)?;
                if self.down.contains_key(&id) {
                    return None;
                }
                let seconds = now.duration_since(self.started).as_secs();
                let (ends, ranks) = (self.ends(&proof), self.users(&proof));
                let line = format!("link down: {ends} after {seconds} s ({how}); {ranks} use it");
                let (next_try, text) = (now + RETRY_AFTER, Some(line.clone()));
                let down = DownLink { since: now, next_try, retry: None, line: text };
                self.down.insert(id, down);
                Some(LinkChange::Down(line))
            }
            PathEvent::PortUp { id } => {
                if let Some(down) = self.down.get_mut(&id).filter(|down| down.retry.is_none()) {
                    down.next_try = now;
                }
                None
            }
        }
    }

    /// Returns the time at which [`LinkMonitor::on_time`] is due; `None` if no path is down.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.down.values().map(|down| down.next_try).min()
    }

    /// Begins the proofs that are due. A node takes part in one proof at a time.
    pub(crate) fn on_time(&mut self, now: Instant) {
        let retried = self.down.iter().filter(|(_, down)| down.retry.is_some());
        let retried = retried.filter_map(|(path, _)| self.paths.get(path));
        let mut busy: BTreeSet<NodeId> = retried.flat_map(Proof::nodes).collect();
        for (path, down) in self.down.iter_mut().filter(|(_, down)| down.next_try <= now) {
            let Some(proof) = self.paths.get(path) else { continue };
            if proof.nodes().iter().any(|node| busy.contains(node)) {
                down.next_try = now + BUSY;
                continue;
            }
            busy.extend(proof.nodes());
            // Both ends report the result before this time, since the limit ends the proof.
            down.next_try = now + 2 * PROOF_LIMIT;
            let (number, id) = (self.next_round, self.next_id);
            self.next_round += 1;
            self.next_id += 1;
            let limits = RoundTimeouts::within(PROOF_LIMIT, PROOF_LIMIT);
            let rounds = paths::single_path(&self.table, proof, number, id, self.settings, limits);
            self.messages.extend(rounds.map(|(node, round)| (node, ToAgent::Prove(round))));
            let (endpoints, reports) = (BTreeMap::new(), PathReports::default());
            let done = BTreeSet::new();
            down.retry = Some(LinkRetry { round: number, id, endpoints, reports, done });
        }
    }

    /// Handles the endpoints that one node has made for a proof. Once both nodes have made their endpoints,
    /// each node is sent the endpoints of the other.
    pub(crate) fn on_endpoints(&mut self, node: NodeId, number: u32, given: Vec<Vec<u8>>) {
        let mut retries = self.down.values_mut().filter_map(|down| down.retry.as_mut());
        let Some(retry) = retries.find(|retry| retry.round == number) else { return };
        retry.endpoints.insert(node, given);
        if retry.endpoints.len() < 2 {
            return;
        }
        let endpoints = mem::take(&mut retry.endpoints);
        for (node, blobs) in &endpoints {
            let others = endpoints.keys().filter(|other| *other != node);
            self.messages
                .extend(others.map(|other| (*other, ToAgent::PeerEndpoints(blobs.clone()))));
        }
    }

    /// Handles the result of a proof at one end. Once both ends have reported, the path is either up or dead.
    pub(crate) fn on_round_done(
        &mut self,
        now: Instant,
        node: NodeId,
        number: u32,
        outcomes: Vec<PathOutcome>,
    ) -> Option<LinkChange> {
        let is_it = |down: &DownLink| down.retry.as_ref().is_some_and(|r| r.round == number);
        let path = *self.down.iter().find(|(_, down)| is_it(down))?.0;
        let proof = *self.paths.get(&path)?;
        let down = self.down.get_mut(&path)?;
        let retry = down.retry.as_mut()?;
        retry.reports.add(node, outcomes);
        retry.done.insert(node);
        if retry.done.len() < 2 {
            return None;
        }
        let (id, since) = (retry.id, down.since);
        let outcome = retry.reports.outcome(id, &proof, "no answer from its prover");
        down.retry = None;
        down.next_try = now + RETRY_AFTER;
        if let ProofOutcome::Failed(failure) = outcome {
            let dead = down.line.take().map(|line| LinkChange::Dead(line, proof.nodes()));
            tracing::info!("{} is still down: {}", self.ends(&proof), failure.fault.cause);
            return dead;
        }
        self.down.remove(&path);
        self.paths.remove(&path);
        self.paths.insert(id, proof);
        self.send_monitored(proof.nodes());
        let seconds = now.duration_since(since).as_secs();
        Some(LinkChange::Up(format!("link up: {} after {seconds} s without it", self.ends(&proof))))
    }

    /// Returns the messages to nodes that were queued since the last call.
    pub(crate) fn take_messages(&mut self) -> Vec<(NodeId, ToAgent)> {
        mem::take(&mut self.messages)
    }

    /// Queues messages to two nodes with the ids of all paths that each of them monitors.
    fn send_monitored(&mut self, nodes: [NodeId; 2]) {
        for node in nodes {
            let own = |proof: &Proof| proof.nodes().contains(&node);
            let ids = self.paths.iter().filter(|(_, proof)| own(proof)).map(|(id, _)| *id);
            let message = ToAgent::WatchPaths { ids: ids.collect(), beat_ms: BEAT_MS };
            self.messages.push((node, message));
        }
    }

    /// Writes the two ends of a path, as in `a rocep1s0f1 ↔ c rocep1s0f0`.
    fn ends(&self, proof: &Proof) -> String {
        let end = |end| {
            let side = ConnectionEnd::at_nic(&self.table, end);
            side.and_then(|side| Some(format!("{} {}", side.host, side.nic?.device)))
        };
        format!("{} ↔ {}", end(proof.from).unwrap_or_default(), end(proof.to).unwrap_or_default())
    }

    /// Names the ranks of both nodes that reach each other over the path: `ranks 0 and 2`,
    /// `ranks 0-7 and 8-15`.
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

/// Writes a set of ranks as `3` or `0-7`, from the first to the last. The set may lack ranks between these
/// two.
fn span(ranks: &BTreeSet<Rank>) -> String {
    match (ranks.first(), ranks.last()) {
        (Some(first), Some(last)) if first != last => format!("{first}-{last}"),
        (Some(only), _) => only.to_string(),
        _ => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::mesh::PathEvent;
    use rlaunch_plan::options::{MeshMode, MeshOptions};
    use rlaunch_plan::testing::{MeshJob, triangle};
    use std::time::Instant;

    #[test]
    fn a_link_that_goes_down_is_named_once_with_who_uses_it() {
        let mut job = MeshJob::on(triangle().to_vec(), 2);
        let table = job.prove(MeshMode::Auto, |_| None);
        assert_eq!(job.mesh.watched(&table).len(), 3, "one queue pair for each two nodes");
        let now = Instant::now();
        let mut links = LinkMonitor::new(&job.mesh, &table, &MeshOptions::default(), now);
        let down = || PathEvent::Down { id: 0, how: "no beat for 5.0 s".to_owned() };
        assert_eq!(
            links.on_path_event(now, down()),
            Some(LinkChange::Down(
                "link down: a rocep1s0f0 ↔ b rocep1s0f0 after 0 s (no beat for 5.0 s); \
                 ranks 0-1 and 2-3 use it"
                    .to_owned(),
            ))
        );
        assert_eq!(links.on_path_event(now, down()), None, "the other end notices as well");
        assert!(links.deadline().is_some());
        let unwatched = MeshOptions { watch: false, ..MeshOptions::default() };
        let mut unwatched = LinkMonitor::new(&job.mesh, &table, &unwatched, now);
        assert_eq!(unwatched.on_path_event(now, down()), None);
    }
}
