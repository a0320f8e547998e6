//! The verbs other than a job, one module each.

pub(crate) mod ask;
pub(crate) mod bench;
pub(crate) mod capture;
pub(crate) mod figures;
pub(crate) mod reap;
pub(crate) mod ssh_config;
pub(crate) mod ssh_setup;
pub(crate) mod topo;
pub(crate) mod trust;
pub(crate) mod verdict;
