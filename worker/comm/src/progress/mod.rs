//! Progress of messages and collectives.
//!
//! | module | contents |
//! |---|---|
//! | `engine` | state of all messages and collectives of a process; never blocks |
//! | `wait` | [`Progress`](wait::Progress): the engine with its lock, and how calls wait: spinning, sleeping, timeouts, cancellation |
//! | `idle` | clock and sleep of a rank: epoll, or virtual time in simulations; coordination of waiting threads |
//! | `agent` | connection to the rlaunch agent, which reports failures of other ranks; time spent in waits, for those that watch the job |

pub(crate) mod agent;
pub(crate) mod engine;
pub(crate) mod idle;
pub(crate) mod wait;
