//! How a host is reached: routes to its shell, the agent brought there, the channel to it.

pub(crate) mod agent;
pub(crate) mod callback;
pub(crate) mod channel;
pub(crate) mod options;
pub(crate) mod outbox;
pub(crate) mod rescue;
pub(crate) mod route;
