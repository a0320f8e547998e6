//! Helper programs: programs that an agent runs beside the ranks, and that the launcher sends to nodes
//! that have no copy. Each is needed by few jobs, or loads libraries that the agent must not need.

use serde::{Deserialize, Serialize};

/// Helper program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Helper {
    /// `rlaunch-prover`, which proves RDMA paths and watches them.
    Prover,
    /// `rlaunch-stack`, which reads the stacks of ranks and asks their libraries how far they are.
    Stack,
}

impl Helper {
    /// Returns the name of the program's file.
    pub fn name(self) -> &'static str {
        match self {
            Helper::Prover => "rlaunch-prover",
            Helper::Stack => "rlaunch-stack",
        }
    }
}

/// Hash and size of a helper's executable, by which a node finds its copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperFile {
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Size of the file in bytes.
    pub size: u64,
}
