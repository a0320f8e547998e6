//! Channels to the launcher and among agents, and what ranks are served over them.

pub(crate) mod callback;
pub(crate) mod channel;
pub(crate) mod frames;
pub(crate) mod horovod;
pub(crate) mod oob;
pub(crate) mod outbox;
pub(crate) mod services;
pub(crate) mod socket_owner;
