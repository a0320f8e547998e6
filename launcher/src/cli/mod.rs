//! What the user typed: arguments, configuration files, allocations of schedulers, help.

pub(crate) mod allocation;
pub(crate) mod args;
pub(crate) mod config;
pub(crate) mod help;
pub(crate) mod listing;
pub(crate) mod lower;
pub(crate) mod manual;
