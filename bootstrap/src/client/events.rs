//! Events that agents report to their ranks unasked: why other ranks will not answer any more.
//!
//! They come from the launcher, which knows which failure was the first. For ranks that communicate
//! directly they may be the only sign: the death of a peer closes its TCP connections, but its
//! queue pairs just stop answering.

use crate::exit_status::ExitStatus;
use crate::id::{NodeId, Rank};
use crate::rendezvous::rank_set::RankSet;
use serde::{Deserialize, Serialize};

/// Most events that are kept for a rank, not counting [`JobEvent::RanksFinished`]. After that many,
/// no rank still waits.
pub const MAX_EVENTS: usize = 16;

/// Event of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobEvent {
    /// A rank failed.
    RankFailed {
        /// Rank that failed.
        rank: Rank,
        /// Exit status.
        status: ExitStatus,
        /// Whether the job ends because of it.
        ends: bool,
    },
    /// The connection to a node's agent was lost. Its ranks are ended.
    NodeLost {
        /// Node that was lost.
        node: NodeId,
        /// Symptom, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        how: String,
    },
    /// RDMA between two nodes failed.
    LinkDown {
        /// Nodes at the ends of the link.
        nodes: [NodeId; 2],
        /// Link and symptom, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        what: String,
    },
    /// The job is being ended.
    JobEnding {
        /// Reason, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        why: String,
    },
    /// Ranks exited with code 0. Ranks that were reported before may be included again.
    RanksFinished {
        /// Ranks that exited.
        ranks: RankSet,
    },
}
