//! Finding the agent on this machine, installing it on a host under its hash, starting it.

pub(crate) mod deliver;
pub(crate) mod greet;
mod install;
pub(crate) mod library;
pub(crate) mod store;
