//! Clean-up, so that nothing of a job is left on a host: no processes, shared-memory files or
//! directories.
//!
//! | file | contents |
//! |---|---|
//! | `guardian.rs`, `grace.rs` | parent of the agent, which ends the ranks if the agent dies; the ranks' grace period |
//! | `processes.rs`, `cgroup.rs` | finding and ending all processes of a job |
//! | `reap.rs` | `rlaunch-worker reap`: ending a job without its agent |
//! | `job_list.rs`, `usage.rs` | `rlaunch-worker jobs`: the jobs on this host; CPU time and memory of processes |
//! | `shm.rs`, `workspace.rs` | files in `/dev/shm`; the job's directory |

pub(crate) mod cgroup;
pub(crate) mod grace;
pub(crate) mod guardian;
pub(crate) mod job_list;
pub(crate) mod processes;
pub(crate) mod reap;
pub(crate) mod shm;
pub(crate) mod usage;
pub(crate) mod workspace;
