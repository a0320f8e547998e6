//! The plan of a job on its hosts: pure functions of what the hosts have.
//!
//! | files | subject |
//! |---|---|
//! | `map`, `placement_line` | ranks onto nodes; `placement: a 0-1 · b 2` |
//! | `selection`, `rdma_check` | which RDMA ports and GIDs, and which of them meet; what is said where none do |
//! | `mesh` | which paths are proved, what follows, `--show mesh` |
//! | `placement`, `setup`, `held_ports` | processors, GPU and NICs of each rank; what each rank is given; ports for it |
//! | `rank_env`, `env_style`, `horovod` | variables from this shell and `--env-file`; other launchers' variables; Horovod's |
//! | `nccl` | what NCCL is told, its version, its log |
//! | `table` | the rank table |

pub(crate) mod env_style;
pub(crate) mod held_ports;
pub(crate) mod horovod;
pub(crate) mod map;
pub(crate) mod mesh;
pub(crate) mod nccl;
pub(crate) mod placement;
pub(crate) mod placement_line;
pub(crate) mod rank_env;
pub(crate) mod rdma_check;
pub(crate) mod selection;
pub(crate) mod setup;
pub(crate) mod table;
