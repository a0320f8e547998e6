//! The command line, files of settings and help.
//!
//! | files | subject |
//! |---|---|
//! | `args` | options and verbs; other launchers' words (`foreign`, `spelling`); verbs that were meant (`meant`) |
//! | `config` | `rlaunch.toml` and variables, their order; untrusted files (`stranger`), the store of trust (`trusted`) |
//! | `listing`, `allocation` | the hosts of a job; Slurm, PBS, an MPIJob |
//! | `lower` | from what was typed to [`crate::job::JobSpec`] |
//! | `help`, `manual` | `rlaunch help` and its pages; `rlaunch completions` and `man` |

pub(crate) mod allocation;
pub(crate) mod args;
pub(crate) mod config;
pub(crate) mod help;
pub(crate) mod listing;
pub(crate) mod lower;
pub(crate) mod manual;
