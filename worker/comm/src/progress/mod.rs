//! Progress of messages and collectives: the engine, and how a process waits for it.

pub(crate) mod agent;
pub(crate) mod engine;
pub(crate) mod idle;
pub(crate) mod wait;
