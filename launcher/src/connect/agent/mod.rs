//! Finding the agent on this machine, installing it on a host under its hash, starting it.

pub(crate) mod deploy;
pub(crate) mod hello;
mod install;
pub(crate) mod library;
pub(crate) mod store;
