//! The tree of agents: how nodes join it, and the services for ranks that run over it.
//!
//! All of it consists of state machines without I/O (*sans-io*): they take inputs and the current
//! time, and return actions. They own no sockets and no clock, so that ten thousand of them run in
//! one test.
//!
//! | module | contents |
//! |---|---|
//! | [`shape`] | parents and children, computed from node numbers |
//! | [`oob`] | an agent's configuration in the tree, and its report about the edge to its parent |
//! | [`link`] | reliable link between neighbours over changing connections |
//! | [`message`], [`payload`], [`codec`] | messages between neighbours, their payloads with the data of gathers, framing |
//! | [`node`] | an agent's part: collectives, key-value store, clock offsets, aborts |
//! | [`coordinator`] | the launcher's part: which edges exist, and whether every node has the rank table |
//! | [`rank_set`] | sets of ranks |
//!
//! All state machines are used in the same way: call `handle` with each input, `handle_timeout` at
//! the time that `poll_timeout` returns, and `poll_output` until it returns `None`.

pub mod codec;
pub mod coordinator;
pub mod link;
pub mod message;
pub mod node;
pub mod oob;
pub mod payload;
pub mod rank_set;
pub mod shape;

/// Reading of a host's monotonic clock, in nanoseconds. The clocks of different hosts are
/// independent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl std::ops::Add<std::time::Duration> for Time {
    type Output = Time;

    fn add(self, duration: std::time::Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Time {
    /// Returns the time since `earlier`, or zero if `earlier` is the later of the two.
    pub fn since(self, earlier: Time) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
