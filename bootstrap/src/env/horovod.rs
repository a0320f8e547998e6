//! Variables through which the ranks of a Horovod program find each other with Gloo. Horovod
//! expects either all of them or none.

/// Number of the process in the job.
pub const RANK: &str = "HOROVOD_RANK";
/// Number of ranks in the job.
pub const SIZE: &str = "HOROVOD_SIZE";
/// Number of the rank on its node.
pub const LOCAL_RANK: &str = "HOROVOD_LOCAL_RANK";
/// Number of ranks on the node.
pub const LOCAL_SIZE: &str = "HOROVOD_LOCAL_SIZE";
/// Number of the rank among the ranks with the same local rank.
pub const CROSS_RANK: &str = "HOROVOD_CROSS_RANK";
/// Number of nodes that have this local rank.
pub const CROSS_SIZE: &str = "HOROVOD_CROSS_SIZE";
/// Name that all ranks of a node share and no other rank has.
pub const HOSTNAME: &str = "HOROVOD_HOSTNAME";
/// Address of the rendezvous store.
pub const RENDEZVOUS_ADDR: &str = "HOROVOD_GLOO_RENDEZVOUS_ADDR";
/// Port of the rendezvous store.
pub const RENDEZVOUS_PORT: &str = "HOROVOD_GLOO_RENDEZVOUS_PORT";
/// Library that coordinates the ranks: `gloo` or `mpi`.
pub const CONTROLLER: &str = "HOROVOD_CONTROLLER";
/// Library for reductions on CPUs: `gloo`, `mpi` or `ccl`.
pub const CPU_OPERATIONS: &str = "HOROVOD_CPU_OPERATIONS";
/// Network interface through which ranks of other nodes reach this one.
pub const IFACE: &str = "HOROVOD_GLOO_IFACE";
/// Time that ranks wait for each other, in seconds.
pub const TIMEOUT: &str = "HOROVOD_GLOO_TIMEOUT_SECONDS";

/// Variables that are valid for one launch only.
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
