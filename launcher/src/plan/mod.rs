//! Planning: pure functions from the hosts' inventories and the user's options to the placement of ranks,
//! their NICs, the paths to prove and every rank's environment.
//!
//! | files | subject |
//! |---|---|
//! | `map`, `placement_line` | mapping of ranks to nodes; the line `placement: a 0-1 · b 2` |
//! | `selection`, `rdma_check` | choice of RDMA ports and GIDs, and which ports reach each other; messages where none do |
//! | `mesh` | paths to prove, conclusions from the results, `--show mesh` |
//! | `placement`, `rank_config`, `reserved_ports` | CPUs, GPU and NICs of each rank; a rank's variables; ports reserved for it |
//! | `rank_env`, `env_style`, `horovod` | variables from this shell and `--env-file`; variables of other launchers and of Horovod |
//! | `nccl` | NCCL's variables, version and log |
//! | `table` | the rank table |

pub(crate) mod env_style;
pub(crate) mod horovod;
pub(crate) mod map;
pub(crate) mod mesh;
pub(crate) mod nccl;
pub(crate) mod placement;
pub(crate) mod placement_line;
pub(crate) mod rank_config;
pub(crate) mod rank_env;
pub(crate) mod rdma_check;
pub(crate) mod reserved_ports;
pub(crate) mod selection;
pub(crate) mod table;
