//! The plan of a job: what the user asked for, as a value, and pure functions from the hosts' inventories to what
//! is wrong with them, where ranks run, their NICs, the paths to prove and every rank's environment.
//!
//! Nothing here connects, prints or reads the command line: messages are returned, and others print them.
//!
//! | files | subject |
//! |---|---|
//! | `program` | what a command line runs, and programs that start processes themselves |
//! | `hosts/` | hosts as users name them, and the addresses at which they reach each other |
//! | `job/` | the job that the user asked for: its programs and options |
//! | `findings/`, `checks/` | what can be wrong with hosts, with ids and fixes; the checks that find it |
//! | `fixes/` | what rlaunch may fix by itself, and the changes for it |
//! | `options` | inputs: the user's options, and a read-only view of the job and its nodes |
//! | `map`, `rank_list` | mapping of ranks to nodes; the line `placement: a 0-1 · b 2`; rankfiles |
//! | `selection/`, `rdma_check` | choice of RDMA ports and GIDs, and which ports reach each other; messages about hosts that RDMA does not connect |
//! | `limit` | rate that a port can carry, and the link that binds |
//! | `mesh/` | RDMA paths to prove, conclusions from the results, `--show mesh` |
//! | `picture/` | pictures of hosts, and of what ranks use of them |
//! | `rank_config`, `placement` | complete configuration of a rank: CPUs, GPU, NICs and variables; its part for CPUs and GPU |
//! | `env/` | environment variables of ranks, a file for each library or purpose |
//! | `up/` | what `rlaunch up` does on hosts, as steps |
//! | `table` | the rank table, which every node receives; `bootstrap/src/rank_table/pair.rs` reads from it which NICs two ranks use |

pub mod checks;
pub mod env;
pub mod findings;
pub mod fixes;
#[doc(hidden)]
pub mod fuzz;
pub mod hosts;
pub mod job;
pub mod limit;
pub mod map;
pub mod mesh;
pub mod options;
pub mod picture;
pub mod placement;
pub mod program;
pub mod rank_config;
pub mod rank_list;
pub mod rdma_check;
pub mod selection;
pub mod table;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
pub mod up;
