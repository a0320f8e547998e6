//! Progress of messages and collectives.
//!
//! | module | contents |
//! |---|---|
//! | `engine` | state of all messages and collectives of a process; never blocks |
//! | `wait` | [`Progress`](wait::Progress): the engine behind its lock; spinning, sleeping, timeouts, cancellation |
//! | `idle` | clock and sleep: epoll, or virtual time in simulations |
//! | `agent` | connection to the rlaunch agent, which reports failures of other ranks |

pub(crate) mod agent;
pub(crate) mod engine;
pub(crate) mod idle;
pub(crate) mod wait;
