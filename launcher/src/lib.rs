//! `rlaunch -H a,b,c -np 3 python train.py`: the command on the head node.
//!
//! [`main`] reads the command line and runs the verb. A job goes from left to right: argv → `Args` →
//! `JobSpec` → `RankMap` → SSH → agents → prepared → joined → started → the first failure → exit code;
//! `run::run_job` and the functions that it calls are in that order.
//!
//! Folders and crates, each of which uses only those above it (`cargo lab tidy`):
//!
//! | folder | content |
//! |---|---|
//! | `rlaunch_console` (a crate) | exit codes, messages, time limits, text |
//! | `hosts` | hosts as users name them, and the addresses at which they reach each other |
//! | `rlaunch_ssh` (a crate) | SSH client that follows the user's configuration |
//! | `plan` | ranks, devices and environment of a job: pure functions of its hosts' inventories |
//! | `connect` | connections to hosts, and the agent started there |
//! | `job` | the job that the user asked for |
//! | `cli` | command line, configuration files, schedulers' variables |
//! | `run` | a job from its first connection to its exit code |
//! | `commands` | the other verbs |
//!
//! Only [`main`] and the fuzzer's targets ([`fuzz`]) are public.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;
mod commands;
mod connect;
mod dispatch;
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
