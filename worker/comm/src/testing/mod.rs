//! Support for tests: simulated jobs, and entry points for fuzzers.

pub mod fuzz;
pub mod sim;
