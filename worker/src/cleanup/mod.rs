//! Clean-up, so that nothing of a job is left on a host: no processes, shared-memory files or
//! directories.
//!
//! | file | contents |
//! |---|---|
//! | `guardian.rs` | parent of the agent, which ends the ranks if the agent dies; the ranks' grace period |
//! | `outputs.rs` | outputs of ranks whose agent has died, which the guardian reads |
//! | `processes.rs`, `cgroup.rs` | finding and ending all processes of a job |
//! | `helpers.rs`, `usage.rs` | the agent's helpers; CPU time and memory of processes |
//! | `reap.rs` | `rlaunch-worker reap`: ending a job without its agent |
//! | `containers.rs` | containers that a job has left |
//! | `jobs.rs` | `rlaunch-worker jobs`: the jobs on this host |
//! | `shm.rs`, `workspace.rs` | files in `/dev/shm`; the job's directory |

pub(crate) mod cgroup;
mod containers;
pub(crate) mod guardian;
pub(crate) mod helpers;
pub(crate) mod jobs;
pub(crate) mod outputs;
pub(crate) mod processes;
pub(crate) mod reap;
pub(crate) mod shm;
pub(crate) mod usage;
pub(crate) mod workspace;
