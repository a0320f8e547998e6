//! The command line and files of settings.
//!
//! | files | subject |
//! |---|---|
//! | `args` | options and verbs; verbs that were meant (`meant`) |
//! | `compat` | other launchers' options as rlaunch's own |
//! | `config` | `rlaunch.toml` and variables, their order; untrusted files (`stranger`), the store of trust (`trusted`) |
//! | `host_selection`, `allocation` | the hosts of a job; Slurm, PBS, an MPIJob |
//! | `lower` | from what was typed to [`crate::job::JobSpec`] |

pub(crate) mod allocation;
pub(crate) mod args;
pub(crate) mod compat;
pub(crate) mod config;
pub(crate) mod host_selection;
pub(crate) mod lower;
