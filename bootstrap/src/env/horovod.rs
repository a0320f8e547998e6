//! Variables through which the ranks of a Horovod program find each other with the Gloo library.
//! Horovod expects either all of them or none.

/// Number of the rank in the job.
pub const RANK: &str = "HOROVOD_RANK";
/// Number of ranks in the job.
pub const SIZE: &str = "HOROVOD_SIZE";
/// Number of the rank on its node.
pub const LOCAL_RANK: &str = "HOROVOD_LOCAL_RANK";
/// Number of ranks on the node.
pub const LOCAL_SIZE: &str = "HOROVOD_LOCAL_SIZE";
/// Position of the rank among those ranks of the job that have an equal local rank.
pub const CROSS_RANK: &str = "HOROVOD_CROSS_RANK";
/// Number of nodes that have a rank with this local rank.
pub const CROSS_SIZE: &str = "HOROVOD_CROSS_SIZE";
/// Name shared by all ranks of a node, and by no rank of another node.
pub const HOSTNAME: &str = "HOROVOD_HOSTNAME";
/// Address of the rendezvous store, through which the ranks exchange their addresses.
pub const RENDEZVOUS_ADDR: &str = "HOROVOD_GLOO_RENDEZVOUS_ADDR";
/// Port of the rendezvous store.
pub const RENDEZVOUS_PORT: &str = "HOROVOD_GLOO_RENDEZVOUS_PORT";
/// Library that coordinates the ranks: `gloo` or `mpi`.
pub const CONTROLLER: &str = "HOROVOD_CONTROLLER";
/// Library for reductions on CPUs: `gloo`, `mpi` or `ccl`.
pub const CPU_OPERATIONS: &str = "HOROVOD_CPU_OPERATIONS";
/// Network interface through which ranks of other nodes reach this rank.
pub const IFACE: &str = "HOROVOD_GLOO_IFACE";
/// Time that ranks wait for each other at the start, in seconds.
pub const TIMEOUT: &str = "HOROVOD_GLOO_TIMEOUT_SECONDS";

/// Variables whose values are valid for one job only. They are never taken over from an outer
/// launcher.
pub const PER_LAUNCH: &[&str] = &[
    RANK,
    SIZE,
    LOCAL_RANK,
    LOCAL_SIZE,
    CROSS_RANK,
    CROSS_SIZE,
    HOSTNAME,
    RENDEZVOUS_ADDR,
    RENDEZVOUS_PORT,
];
