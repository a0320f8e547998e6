//! All nodes of a job together: they are connected, prepared and started in parallel, and shut down at the
//! end of the job.
//!
//! | file | subject |
//! |---|---|
//! | `connect` | hosts are connected and their agents started |
//! | `assign_ranks` | ranks go to hosts whose GPUs had to be counted first |
//! | `prepare` | every node gets its part of the job and checks that it can run that part |
//! | `stdio` | the launcher's own stdin, stdout and stderr are opened |
//! | `start` | ranks are started |

mod assign_ranks;
mod connect;
mod prepare;
mod start;
mod stdio;

pub(crate) use connect::prepare_sessions;
pub(crate) use prepare::Prepared;
pub(crate) use stdio::PendingStdio;

use crate::connect::agent::library::RankLibraries;
use crate::connect::outbox::{Outbox, Reserved};
use crate::run::session::NodeEvent;
use nix::sys::signal::Signal;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::job::NodeFacts;
use rlaunch_bootstrap::protocol::control::{EndCause, FromAgent, ToAgent};
use rlaunch_console::deadline;
use rlaunch_plan::hosts::Host;
use rlaunch_text::exit::Exit;
use rlaunch_text::message::Failed;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Time limit for all channels to close after agents were ordered to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Nodes of a job, each with its session.
pub(crate) struct Nodes {
    /// Nodes with a started agent, indexed by [`NodeId`].
    pub reached: Vec<ReachedNode>,
    pub events: NodeEvents,
    libraries: RankLibraries,
    sessions: Vec<JoinHandle<()>>,
}

/// Receiver of events from all nodes of a job. Events of hosts without ranks are dropped, since their agents
/// were ended.
pub(crate) struct NodeEvents {
    receiver: mpsc::UnboundedReceiver<NodeEvent>,
    /// Number of nodes; hosts without ranks have higher ids.
    nodes: usize,
}

impl NodeEvents {
    /// Waits for the next event; `None` when every session has ended. Cancel-safe.
    pub(crate) async fn recv(&mut self) -> Option<NodeEvent> {
        loop {
            let event = self.receiver.recv().await?;
            if event.node.index() < self.nodes {
                return Some(event);
            }
        }
    }
}

/// Node with a started agent.
pub(crate) struct ReachedNode {
    pub id: NodeId,
    pub host: Host,
    pub ranks: Vec<Rank>,
    pub commands: Outbox,
    pub facts: NodeFacts,
    /// Time at which the agent's first message was received.
    pub(crate) hello_at: Instant,
}

impl Nodes {
    pub(crate) fn queue_for_all(&self, message: &ToAgent) {
        for node in &self.reached {
            node.commands.queue_command(message);
        }
    }

    pub(crate) fn queue_command(&self, node: NodeId, message: &ToAgent) {
        if let Some(node) = self.reached.get(node.index()) {
            node.commands.queue_command(message);
        }
    }

    /// Forwards bytes from one node to another. `room` is the space that the bytes occupy in the buffer for
    /// the sending node; it is released when the bytes are written.
    pub(crate) fn relay(
        &self,
        (from, to): (NodeId, NodeId),
        data: Vec<u8>,
        room: Option<Reserved>,
    ) {
        if let Some(node) = self.reached.get(to.index()) {
            node.commands.forward(&ToAgent::Relay { from, data }, room);
        }
    }

    /// Returns the name of a node's host, or `unknown node N` for an id that no node has, which only a faulty
    /// agent sends.
    pub(crate) fn host(&self, node: NodeId) -> String {
        let known = self.reached.get(node.index());
        known.map_or_else(|| format!("unknown node {}", node.0), |node| node.host.to_string())
    }

    /// Ends every agent and waits until the channels are closed, so that no agent outlives rlaunch.
    pub(crate) async fn shutdown(self) {
        self.queue_for_all(&ToAgent::End { now: true });
        let Nodes { reached, mut sessions, events, .. } = self;
        drop((reached, events));
        let closed = async {
            for session in &mut sessions {
                // An error means that the session panicked, which was printed.
                let _ = session.await;
            }
        };
        if deadline::within(CLOSE_TIMEOUT, closed).await.is_none() {
            // Sessions that remain are aborted: the thread that writes output waits until their senders are
            // dropped.
            sessions.iter().for_each(JoinHandle::abort);
        }
    }
}

/// Makes the error of a job that has lost a node.
pub(crate) fn node_lost(host: &str, how: &str) -> Failed {
    let failed = Failed::new(Exit::NODE_LOST, format!("node {host} is lost: {how}"));
    Failed { may_restart: true, ..failed }
}

/// Says how a node was lost whose agent ends its ranks without an order, and returns a hint with it.
pub(crate) fn own_end(cause: EndCause) -> (String, &'static str) {
    match cause {
        EndCause::LauncherSilent { for_s } => (
            format!("it received nothing from this rlaunch for {for_s} s and gave up"),
            "hosts cannot tell an rlaunch that is suspended or cut off from one that has died; \
             --node-timeout sets how long they wait once they have the job",
        ),
        EndCause::Signal(number) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            (
                format!("its agent got signal {number} ({name}) and ended"),
                "a host that shuts down, its batch system or a person there sends it to \
                 rlaunch-worker",
            )
        }
    }
}

/// Returns the error that an agent reports about itself, in whatever phase of the job.
pub(crate) fn agent_failure(host: &str, message: &FromAgent) -> Option<Failed> {
    match message {
        FromAgent::Failed { operation, cause } => {
            Some(node_lost(host, &format!("cannot {operation}: {cause}")))
        }
        FromAgent::EndsRanks(cause) => {
            let (how, hint) = own_end(*cause);
            Some(node_lost(host, &how).hint(Some(hint)))
        }
        _ => None,
    }
}

/// Makes the warning about a node that could not store the library for its ranks.
pub(crate) fn no_library(host: &str, cause: &str) -> String {
    format!("{host}: ranks have no library to link or import: {cause}")
}
