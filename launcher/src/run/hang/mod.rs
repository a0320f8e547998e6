//! Hang watch (`--hang-timeout`): notices that a job makes no progress, and reports where its ranks are.
//!
//! | file | subject |
//! |---|---|
//! | `watch` | the state machine: asks agents, and decides whether the job hangs |
//! | `progress` | how long ranks have used no CPU, and how long none has printed anything |
//! | `report` | what is printed about ranks at the same place |
//! | `evidence` | stacks of ranks that use CPU: whether they compute, or spin in a wait |

mod evidence;
mod progress;
mod report;
mod watch;

pub(crate) use report::{describe, describe_state, describe_thread};
pub(crate) use watch::{HangWatch, Hung, Question};
