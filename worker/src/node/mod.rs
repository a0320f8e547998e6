//! This host: its inventory and facts, what is wrong with it, environments for ranks, limits, and the
//! cache of rlaunch's builds and helper programs.

pub(crate) mod cache;
pub(crate) mod cache_report;
pub(crate) mod diagnostics;
pub(crate) mod elf;
pub(crate) mod environment;
pub(crate) mod facts;
pub(crate) mod gpu_usage;
pub(crate) mod helper_file;
pub(crate) mod inventory;
pub(crate) mod login;
pub(crate) mod oom;
pub(crate) mod open_files;
pub(crate) mod units;
pub(crate) mod verify;
