//! rlaunch's communicator for C, and for whatever calls C.
//!
//! `include/rlaunch.h` is written from these functions and checked against them in a test. Installed,
//! the library is
//!
//! ```text
//! lib/librlaunch.so
//! lib/pkgconfig/rlaunch.pc
//! include/rlaunch.h
//! ```
//!
//! below any one folder, which may be moved: `cc main.c $(pkg-config --cflags --libs rlaunch)`.
//!
//! What is shipped is built with `cargo rustc --release -p rlaunch-capi --lib --crate-type cdylib`:
//! beside an rlib, which the tests need, nothing is optimised across crates.
//!
//! # Safety
//!
//! C promises what the header says: a pointer is NULL, or points to what its type says, to as many
//! elements as counted; handles are those that this library gave out, and are not used after they
//! were given back; the memory of what was begun stays until that is over. All else is checked. A
//! panic ends the call, not the program.

mod arguments;
mod collectives;
mod errors;
mod handles;
mod memory;
mod messages;
mod nonblocking_collectives;
mod registrations;
mod requests;
mod types;

pub use handles::{rl_comm, rl_request};
pub use registrations::rl_registration;
pub use types::*;
