//! Private socket at which a running job answers other rlaunch processes of its user.
//!
//! ```text
//! rlaunch jobs, stack, …          the launcher of the job                    agents
//!   client ── Request ──▶ socket ── Query ──▶ supervisor ── Inspect ──▶
//!          ◀── Reply ────        ◀──────────  inspections ◀── Inspected ──
//! ```
//!
//! | file | subject |
//! |---|---|
//! | `directory` | place and names of the sockets |
//! | `messages` | messages on the socket |
//! | `socket` | the launcher's end: listens, and checks that the other end belongs to the same user |
//! | `client` | the other end: finds running jobs and asks them |
//! | `status` | state of the job, which is answered in every phase |
//! | `speed` | images per second and the like, as a rank has printed them |
//! | `inspections` | questions to the agents that wait for answers; a state machine |
//! | `sessions` | commands and debuggers beside ranks, from their clients to the agents; a state machine |

pub mod client;
mod directory;
mod inspections;
pub mod messages;
mod sessions;
mod socket;
mod speed;
mod status;

pub(crate) use inspections::{Asker, InspectionAnswer, Inspections};
pub(crate) use sessions::{SessionStep, Sessions};
pub(crate) use socket::{ConnectionId, JobQuery, JobSocket, QueryKind};
pub use speed::PrintedSpeed;
pub use status::LiveStatus;
