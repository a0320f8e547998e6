//! The launcher: the command `rlaunch`, as in `rlaunch -H a,b,c -np 3 python train.py`.
//!
//! [`main`] reads the command line and runs the verb. Below it are crates, each of which uses only those above
//! it in the table:
//!
//! | crate | content |
//! |---|---|
//! | `rlaunch_text` | text without a terminal: messages as values, exit codes, tables, quoting |
//! | `rlaunch_console`, `rlaunch_plot`, `rlaunch_ssh` | terminal, messages, time limits; pictures; SSH client |
//! | `rlaunch_plan` | the job as a value, checks, placement, environment: pure functions of hosts' inventories |
//! | `rlaunch_engine` | a job from its first connection to its exit code |
//! | this one | `cli`: command line, configuration files, schedulers' variables; `commands`: the verbs |

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;
mod commands;
mod dispatch;
#[doc(hidden)]
pub mod fuzz;

pub use dispatch::main;
