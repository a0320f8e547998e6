//! List of the jobs that run on a host, as `rlaunch jobs -H` shows it.

use serde::{Deserialize, Serialize};

/// Jobs of an account that have processes on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostJobs(pub Vec<HostJob>);

/// Processes of a job on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostJob {
    /// Id of the job, 32 hexadecimal digits.
    pub job: String,
    /// Number of ranks with processes.
    pub ranks: u32,
    /// Number of processes.
    pub processes: u32,
    /// Time since the oldest process started, in seconds.
    pub seconds: u64,
    /// CPU time since the start, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory, in bytes. Pages that several processes share are counted in each.
    pub resident: u64,
    /// Command line of the oldest process.
    pub program: Vec<String>,
    /// Whether an agent looks after the processes. If not, they are left over.
    pub has_agent: bool,
}
