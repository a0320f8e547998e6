//! Runs jobs: [`run::run_job`] takes one from its first connection to its exit code.
//!
//! | folder | subject |
//! |---|---|
//! | `connect` | connections to hosts, and the agent started there |
//! | `run` | a job: nodes reached, prepared, joined, ranks started, first failure, exit code; output, record |

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod connect;
#[doc(hidden)]
pub mod fuzz;
pub mod run;
