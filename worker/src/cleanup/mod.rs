//! Nothing of a job is left behind: its processes, its shared memory, its directory.

pub(crate) mod cgroup;
pub(crate) mod grace;
pub(crate) mod guardian;
pub(crate) mod processes;
pub(crate) mod reap;
pub(crate) mod shm;
pub(crate) mod workspace;
