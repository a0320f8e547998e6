//! The launcher: the command `rlaunch`, as in `rlaunch -H a,b,c -np 3 python train.py`.
//!
//! [`main`] reads the command line and runs the verb. A job passes through these stages: command line →
//! `JobArgs` → `JobSpec` → `RankMap` → SSH → agents started → nodes prepared → tree of agents joined → ranks
//! started → first failure → exit code. `run::run_job` and the functions that it calls are in the same order.
//!
//! Folders and crates. Each uses only those above it in the table, which `cargo lab tidy` checks:
//!
//! | folder | content |
//! |---|---|
//! | `rlaunch_console` (a crate) | exit codes, messages, time limits, text |
//! | `hosts` | hosts as users name them, and the addresses at which they reach each other |
//! | `findings` | what is wrong with hosts, in the words that users read: ids, severities, fixes |
//! | `rlaunch_ssh` (a crate) | SSH client that follows the user's configuration |
//! | `plan` | ranks, devices and environment of a job: pure functions of its hosts' inventories |
//! | `connect` | connections to hosts, and the agent started there |
//! | `checks` | catalogue of what can be wrong: pure functions of what is known of the hosts |
//! | `job` | the job that the user asked for |
//! | `cli` | command line, configuration files, schedulers' variables |
//! | `run` | a job from its first connection to its exit code |
//! | `commands` | verbs, and the job that rlaunch runs without a verb |
//!
//! Only [`main`] and the fuzzer's targets ([`fuzz`]) are public.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod checks;
mod cli;
mod commands;
mod connect;
mod dispatch;
mod findings;
pub mod fuzz;
#[cfg(test)]
mod goldens;
mod hosts;
mod job;
mod plan;
#[cfg(test)]
mod recorded;
mod run;

pub use dispatch::main;
