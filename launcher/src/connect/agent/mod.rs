//! Finding the agent's executable on this machine, installing it on a host under its hash, and starting it.

pub(crate) mod deploy;
pub(crate) mod hello;
mod install;
pub(crate) mod library;
pub(crate) mod store;
