//! Variables by which Horovod's ranks find each other when they use Gloo. It takes any of them for a
//! sign that all are there, so either all are set or none.

/// The process's number in the job.
pub const RANK: &str = "HOROVOD_RANK";
/// How many ranks the job has.
pub const SIZE: &str = "HOROVOD_SIZE";
/// The rank's number on its node.
pub const LOCAL_RANK: &str = "HOROVOD_LOCAL_RANK";
/// How many ranks its node has.
pub const LOCAL_SIZE: &str = "HOROVOD_LOCAL_SIZE";
/// The rank's number among those with the same number on their nodes.
pub const CROSS_RANK: &str = "HOROVOD_CROSS_RANK";
/// How many nodes have a rank of this local number.
pub const CROSS_SIZE: &str = "HOROVOD_CROSS_SIZE";
/// A name that all ranks of a node, and no others, have in common.
pub const HOSTNAME: &str = "HOROVOD_HOSTNAME";
/// The address of the store.
pub const RENDEZVOUS_ADDR: &str = "HOROVOD_GLOO_RENDEZVOUS_ADDR";
/// The port of the store.
pub const RENDEZVOUS_PORT: &str = "HOROVOD_GLOO_RENDEZVOUS_PORT";
/// Who coordinates: `gloo` or `mpi`.
pub const CONTROLLER: &str = "HOROVOD_CONTROLLER";
/// Who reduces on processors: `gloo`, `mpi` or `ccl`.
pub const CPU_OPERATIONS: &str = "HOROVOD_CPU_OPERATIONS";
/// The network interface by which ranks of other nodes reach this one.
pub const IFACE: &str = "HOROVOD_GLOO_IFACE";
/// How long ranks wait for each other, in seconds.
pub const TIMEOUT: &str = "HOROVOD_GLOO_TIMEOUT_SECONDS";

/// Those that mean something in one launch only.
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
