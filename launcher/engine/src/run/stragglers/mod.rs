//! Stragglers (`--straggler-report`): ranks for which the others wait again and again.
//!
//! Two things tell them apart. In a program that uses rlaunch's communicator, a straggler waits less than the others do.
//! In one that prints its speed on each rank, a straggler is slower.
//!
//! | file | subject |
//! |---|---|
//! | `watch` | the state machine: asks agents, and compares ranks over the time that the user chose |
//! | `outliers` | ranks whose values are far below those of the others |

mod outliers;
mod watch;

pub(crate) use watch::{StragglerWatch, Stragglers};
