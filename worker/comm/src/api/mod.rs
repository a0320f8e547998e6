//! The calls of a communicator, and how a process gets one.

pub(crate) mod collectives;
pub(crate) mod communicator;
pub(crate) mod group;
pub mod measure;
pub mod raw;
pub(crate) mod registered;
pub(crate) mod scope;
pub(crate) mod short;
pub(crate) mod start;
