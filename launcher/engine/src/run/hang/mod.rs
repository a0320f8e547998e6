//! Hang watch (`--hang-timeout`): notices that a job makes no progress, and reports where its ranks are.
//!
//! | file | subject |
//! |---|---|
//! | `watch` | the state machine: asks agents, and decides whether the job hangs |
//! | `progress` | how long ranks have used no CPU, and how long none has printed anything |
//! | `report` | what is printed about ranks at the same place |
//! | `place` | the thread that does a rank's work |
//! | `waiting`, `peers` | what threads wait for, and the ranks at the other ends of sockets |
//! | `collectives` | positions of ranks in collective operations, from NCCL and torch |
//! | `evidence` | stacks of ranks that use CPU: whether they compute, or spin in a wait |

mod collectives;
mod evidence;
mod peers;
mod place;
mod progress;
mod report;
mod waiting;
mod watch;

pub use collectives::compare;
pub use peers::{PeerNode, name as name_peers};
pub(crate) use report::describe_state;
pub use report::{describe, list};
pub use waiting::describe_thread;
pub use watch::{HangWatch, Hung, Question};
