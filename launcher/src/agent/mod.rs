//! The agent on its way to a host: found here, kept there under its hash, started.

pub(crate) mod deliver;
pub(crate) mod library;
pub(crate) mod store;
