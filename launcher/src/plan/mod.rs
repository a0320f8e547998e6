//! Planning: pure functions from the hosts' inventories and the user's options to the placement of ranks,
//! their NICs, the paths to prove and every rank's environment.
//!
//! | files | subject |
//! |---|---|
//! | `options` | inputs: the user's options, and a read-only view of the job and its nodes |
//! | `map`, `placement_line` | mapping of ranks to nodes; the line `placement: a 0-1 · b 2` |
//! | `selection/`, `rdma_check` | choice of RDMA ports and GIDs, and which ports reach each other; messages about hosts that RDMA does not connect |
//! | `limit` | rate that a port can carry, and the link that binds |
//! | `mesh/` | RDMA paths to prove, conclusions from the results, `--show mesh` |
//! | `picture/` | pictures of hosts, and of what ranks use of them |
//! | `rank_config`, `placement` | complete configuration of a rank: CPUs, GPU, NICs and variables; its part for CPUs and GPU |
//! | `env/` | environment variables of ranks, a file for each library or purpose |
//! | `reserved_ports` | TCP ports that each node reserves until its ranks start, such as MASTER_PORT |
//! | `table` | the rank table, which every node receives; `bootstrap/src/rank_table/pair.rs` reads from it which NICs two ranks use |

pub(crate) mod env;
pub(crate) mod limit;
pub(crate) mod map;
pub(crate) mod mesh;
pub(crate) mod options;
pub(crate) mod picture;
pub(crate) mod placement;
pub(crate) mod placement_line;
pub(crate) mod rank_config;
pub(crate) mod rdma_check;
pub(crate) mod reserved_ports;
pub(crate) mod selection;
pub(crate) mod table;
