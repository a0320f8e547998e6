//! What agents tell their ranks unasked: why others will not answer any more.
//!
//! It comes from the launcher, which knows first what was first. Ranks that wait for each other by
//! ways of their own may have no other sign: a peer that dies takes a shared memory or a TCP
//! connection with it, but a queue pair only falls silent.

use crate::exit_status::ExitStatus;
use crate::id::{NodeId, Rank};
use crate::rendezvous::rank_set::RankSet;
use serde::{Deserialize, Serialize};

/// News that are told and kept, beside [`JobEvent::RanksFinished`]; later ones would find no rank that still
/// waits.
pub const MAX_EVENTS: usize = 16;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobEvent {
    /// A rank has failed.
    RankFailed {
        /// The ranks.
        rank: Rank,
        /// How.
        status: ExitStatus,
        /// The job ends because of it: it is the first.
        ends: bool,
    },
    /// Nobody hears of a node any more; its ranks end.
    NodeLost {
        /// The ranks.
        node: NodeId,
        /// How that was noticed, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        how: String,
    },
    /// RDMA between these nodes has failed.
    LinkDown {
        /// Its ends.
        nodes: [NodeId; 2],
        /// The link and how it was noticed, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        what: String,
    },
    /// The job ends.
    JobEnding {
        /// Why, at most [`crate::rendezvous::message::MAX_TEXT`] bytes.
        why: String,
    },
    /// The processes of these ranks have ended well. Told together with those that were told before,
    /// where that is simpler.
    RanksFinished {
        /// The ranks.
        ranks: RankSet,
    },
}
