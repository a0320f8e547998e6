//! The verbs other than a job.
//!
//! | files | subject |
//! |---|---|
//! | `topo`, `capture`, `ask` | `rlaunch topo` and `capture`; one question to every host's agent |
//! | `bench` | `rlaunch bench`: a job of a program that comes along; one program with several numbers of ranks |
//! | `figures`, `verdict` | figures read from output line by line; `rlaunch report` |
//! | `reap` | `rlaunch reap` |
//! | `ssh_config`, `ssh_setup` | `rlaunch ssh-config`; `rlaunch ssh-setup`: the plan, keys, the script that runs on hosts, the way into containers |
//! | `trust` | `rlaunch trust` |

pub(crate) mod ask;
pub(crate) mod bench;
pub(crate) mod capture;
pub(crate) mod figures;
pub(crate) mod reap;
pub(crate) mod ssh_config;
pub(crate) mod ssh_setup;
pub(crate) mod topo;
pub(crate) mod trust;
pub(crate) mod verdict;
