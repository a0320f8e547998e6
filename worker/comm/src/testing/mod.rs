//! Communicators for tests: ranks as threads of one seed, and entry points for fuzzers.

pub mod fuzz;
pub mod sim;
