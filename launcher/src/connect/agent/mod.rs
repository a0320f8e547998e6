//! The agent on its way to a host: found here, kept there under its hash, started.

pub(crate) mod deliver;
pub(crate) mod greet;
mod install;
pub(crate) mod library;
pub(crate) mod store;
