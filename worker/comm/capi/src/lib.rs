//! C library of rlaunch's communicator, also for other languages that call C.
//!
//! `include/rlaunch.h` is generated from these functions by cbindgen, and compared with them in a
//! test (`tests/header.rs`). The header has the documentation for users. When installed, the
//! library consists of
//!
//! ```text
//! lib/librlaunch.so
//! lib/pkgconfig/rlaunch.pc
//! include/rlaunch.h
//! ```
//!
//! below one folder, which may be moved. Programs are built with `cc main.c $(pkg-config --cflags
//! --libs rlaunch)`.
//!
//! The shipped library is built with `cargo rustc --release -p rlaunch-capi --lib --crate-type
//! cdylib`, because link-time optimisation does not work together with the rlib that the tests
//! need.
//!
//! # Layers
//!
//! `types` (constants and structures) ← `errors` ← `memory` (checks and conversions) ← `handles` ←
//! `messages`, `collectives` (the functions).
//!
//! # Safety
//!
//! The functions rely on what the header demands of the caller: a pointer is NULL, or points to the
//! stated number of valid elements; handles come from this library and are not used after they were
//! freed; buffers of a request stay valid until it is complete. Everything else is checked. A panic
//! fails the call with RL_INTERNAL; it does not unwind into C.

#![warn(missing_docs)]

mod collectives;
mod errors;
mod handles;
mod memory;
mod messages;
mod types;

pub use handles::rl_registration;
pub use handles::{rl_comm, rl_request};
pub use types::*;
