//! This host: its inventory and facts, what is wrong with it, environments for ranks, limits, and the
//! cache of rlaunch's builds and helper programs.

pub(crate) mod cache;
pub(crate) mod delivery;
pub(crate) mod diagnostics;
pub(crate) mod elf;
pub(crate) mod environment;
pub(crate) mod facts;
pub(crate) mod inventory;
pub(crate) mod units;
