//! Report on what a host keeps of rlaunch between jobs, as `rlaunch cache` shows it.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Directories that an account keeps on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport(pub Vec<CachedDirectory>);

/// Directory in a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedDirectory {
    /// Path of the directory.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// Content of the directory.
    pub kind: CachedKind,
    /// Size of all files in bytes.
    pub size: u64,
    /// Seconds since its last use; updated once an hour at most.
    pub idle: u64,
    /// State of the directory, after a removal if that was asked for.
    pub state: CachedState,
}

/// Content of a directory in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CachedKind {
    /// An agent, and the prover beside it.
    Agent,
    /// The library for ranks.
    Library,
}

/// State of a directory in a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CachedState {
    /// It is not used.
    Idle,
    /// A job uses it, so it is not removed.
    InUse,
    /// It has been removed.
    Removed,
    /// It could not be removed, for this reason.
    Failed(String),
}
