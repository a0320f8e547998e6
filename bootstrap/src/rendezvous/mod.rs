//! The tree of agents: how nodes rendezvous, and what ranks do through it.
//!
//! Everything here is *sans-io*: machines that are told what happened and what time it is, and say
//! what is to be done. They own no socket and no clock, so that ten thousand of them run in one
//! test. In reading order: the tree's [`shape`], the [`message`]s of neighbours and their
//! [`payload`]s, the [`link`] that makes an edge of whatever carries it, the [`node`] that every
//! agent is, and the [`coordinator`] in the launcher that sees the tree come about.
//!
//! All machines have the same verbs: `handle` what happened, `handle_timeout` when the time
//! `poll_timeout` named has come, and `poll_output` until there is none.

pub mod codec;
pub mod coordinator;
pub mod gathered;
pub mod link;
pub mod message;
pub mod node;
pub mod oob;
pub mod payload;
pub mod rank_set;
pub mod shape;

/// A clock's reading: nanoseconds since a moment that only this machine knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl std::ops::Add<std::time::Duration> for Time {
    type Output = Time;

    fn add(self, duration: std::time::Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Time {
    /// How long after `earlier` this is; nothing when it is not.
    pub fn since(self, earlier: Time) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
