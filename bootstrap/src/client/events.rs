//! Job events: reports of failed ranks, lost nodes and the end of the job. An agent sends them to
//! its ranks without being asked.
//!
//! The events come from the launcher, because the launcher knows which failure was the first. When
//! a rank dies, its TCP connections are closed, but its queue pairs just stop answering. So a peer
//! that is connected to the rank by RDMA may see no other sign of the death than the event.

use crate::exit_status::ExitStatus;
use crate::id::{NodeId, Rank};
use crate::rendezvous::rank_set::RankSet;
use serde::{Deserialize, Serialize};

/// Maximum number of events that are kept for a rank; later events are dropped.
/// [`JobEvent::RanksFinished`] does not count. More events are of no use: after 16 failures no rank
/// is still waiting for another.
pub const MAX_EVENTS: usize = 16;

/// Event of the job that agents report to their ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobEvent {
    /// A rank failed.
    RankFailed {
        /// Rank that failed.
        rank: Rank,
        /// Exit status of the rank.
        status: ExitStatus,
        /// Whether this failure ends the job.
        ends: bool,
    },
    /// The launcher lost its connection to a node's agent. The agent or guardian of that node ends
    /// the ranks of the node.
    NodeLost {
        /// Node of the lost agent.
        node: NodeId,
        /// Symptom of the loss, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        how: String,
    },
    /// RDMA between two nodes failed.
    LinkDown {
        /// Nodes at the two ends of the failed link.
        nodes: [NodeId; 2],
        /// Description of the link and the symptom, at most
        /// [`crate::rendezvous::message::MAX_TEXT`] bytes.
        what: String,
    },
    /// The job is being ended.
    JobEnding {
        /// Reason, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        why: String,
    },
    /// Ranks exited with code 0. May include ranks that an earlier event has reported.
    RanksFinished {
        /// Ranks that exited.
        ranks: RankSet,
    },
}
