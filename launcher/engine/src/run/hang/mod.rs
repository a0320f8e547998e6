//! Hang watch (`--hang-timeout`): notices that a job makes no progress, and reports where its ranks are.
//!
//! | file | subject |
//! |---|---|
//! | `watch` | the state machine: asks agents at moments of a silence |
//! | `decision` | whether the job hangs, by what ranks use and where they are |
//! | `report` | what is printed about ranks at the same place |
//! | `place` | the thread that does a rank's work, what it waits for, and the ranks at the other ends of sockets |
//! | `collectives` | positions of ranks in collective operations, from NCCL and torch |

mod collectives;
mod decision;
mod place;
mod report;
mod watch;

pub use collectives::compare;
pub use place::{PeerNode, describe_thread, name_peers};
pub(crate) use report::describe_state;
pub use report::{describe, list};
pub(crate) use watch::OutsideWaits;
pub use watch::{HangWatch, Hung};

use rlaunch_bootstrap::id::Rank;
use rlaunch_text::text;

/// Number of ranges of ranks that are named.
const RANGES: usize = 8;

/// Names ranks, which must be in ascending order; a single one with its host.
fn name_ranks(ranks: &[Rank], host: impl Fn(Rank) -> String) -> String {
    match ranks {
        [rank] => format!("rank {rank} on {}", host(*rank)),
        _ => format!("ranks {}", text::ranges(ranks.iter().map(|rank| rank.0), RANGES)),
    }
}
