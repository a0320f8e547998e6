//! The verbs other than a job.
//!
//! | files | subject |
//! |---|---|
//! | `topo`, `capture`, `agent_query` | `rlaunch topo` and `capture`; one question to every host's agent |
//! | `bench` | `rlaunch bench`: a job of a program that comes along; one program with several numbers of ranks |
//! | `report` | `rlaunch report`; `log_metrics`: figures read from output line by line |
//! | `help`, `man` | `rlaunch help` and its pages; `rlaunch completions` and `man` |
//! | `reap` | `rlaunch reap` |
//! | `ssh_config`, `ssh_setup` | `rlaunch ssh-config`; `rlaunch ssh-setup`: the plan, keys, the script that runs on hosts, the way into containers |
//! | `trust` | `rlaunch trust` |

pub(crate) mod agent_query;
pub(crate) mod bench;
pub(crate) mod capture;
pub(crate) mod help;
pub(crate) mod man;
pub(crate) mod reap;
pub(crate) mod report;
pub(crate) mod ssh_config;
pub(crate) mod ssh_setup;
pub(crate) mod topo;
pub(crate) mod trust;
