//! Reports of agents about which a line is printed: waiting ranks, broken edges of the tree, unserved MPI.

use super::{Action, BrokenEdges, EDGE_DELAY, Supervisor, job_ending};
use crate::run::events::Event;
use crate::run::outcome::Reason;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::SingletonPolicy;
use rlaunch_bootstrap::protocol::control::UnservedMpi;
use rlaunch_bootstrap::rendezvous::message::MissingRanks;
use rlaunch_plan::checks;
use rlaunch_plan::findings::{self, id};
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::Instant;

impl Supervisor<'_> {
    /// Handles an edge of the tree that broke and is relayed from now on. The line about the edge is printed
    /// after [`EDGE_DELAY`], unless the job is being ended by then: the edge may have broken because one of
    /// its nodes was lost.
    pub(super) fn on_broken_edge(&mut self, now: Instant, node: NodeId, peer: NodeId, how: &str) {
        tracing::info!(%node, %peer, how, "edge broke");
        let Some((parent, child)) = self.relay.broke(node, peer) else { return };
        let (parent, child) = (self.host(parent), self.host(child));
        let line = format!(
            "the connection between {child} and {parent} broke ({how}): their messages go \
             through this machine"
        );
        self.emit(Event::EdgeRelayed { parent, child });
        let due = now + EDGE_DELAY;
        let edges = self.broken_edges.get_or_insert(BrokenEdges { due, lines: Vec::new() });
        edges.lines.push(line);
    }

    pub(super) fn print_broken_edges(&mut self) {
        let lines = self.broken_edges.take().map(|edges| edges.lines).unwrap_or_default();
        if !self.is_ending() {
            self.actions.extend(lines.into_iter().map(Action::Info));
        }
    }

    /// Reports ranks that others wait for: `barrier "x": waiting 10 s for rank 2 on c (pid 4711, running, has
    /// not arrived)`.
    pub(super) fn on_waiting(&mut self, what: String, waited_ms: u64, missing: &MissingRanks) {
        let host = |rank: Rank| {
            let node = self.nodes.iter().find(|node| node.ranks.contains(&rank));
            node.map(|node| node.host.as_str()).unwrap_or_default()
        };
        let described = missing.states.iter();
        let mut named: Vec<String> = described
            .map(|(rank, seen)| format!("rank {rank} on {} ({seen})", host(*rank)))
            .collect();
        let more = (missing.ranks.len() as usize).saturating_sub(named.len());
        if more > 0 {
            named.push(format!("and {more} more"));
        }
        let missing = named.join(", ");
        let seconds = waited_ms as f64 / 1e3;
        let line = format!("{what}: waiting {seconds:.0} s for {missing}");
        self.emit(Event::Waiting { what, seconds, missing });
        self.info(line);
    }

    pub(super) fn on_unserved(&mut self, now: Instant, host: &str, pid: u32, what: &UnservedMpi) {
        if self.is_ending() {
            return;
        }
        let process = format!("process {pid} on {host}");
        let (sentence, hint) = checks::unserved_mpi(&process, &what.library, &what.needs);
        if what.linked && self.job.singleton == SingletonPolicy::Error {
            let why = job_ending(sentence.clone());
            let failed = Failed::new(Exit::SINGLETON, sentence).hint(Some(hint));
            let failed = findings::mark(failed, Some(id::MPI_SINGLETON));
            self.end(now, Reason::Singleton(failed), why);
        } else if !std::mem::replace(&mut self.warned_of_mpi, true) {
            self.warn(sentence);
        }
    }
}

pub(super) fn waiting_for_key(key: &str, waited_ms: u64) -> String {
    format!("ranks have waited {} s for key {key}: no rank has put it", waited_ms / 1000)
}
