//! Tests of the real rlaunch on hosts with real verbs: guests of QEMU with RDMA devices made of
//! software. `cargo lab test --stage vm` runs them, each alone on three guests that are cabled to
//! each other.

#![expect(
    clippy::unwrap_used,
    reason = "where a helper cannot go on, its test has failed; clippy knows #[test] functions only"
)]

mod background;
#[path = "../guide.rs"]
mod guide;
mod support;
mod tools;

mod bench;
mod communicator;
mod containers;
mod counts;
mod doctor;
mod doctor_fix;
mod guests;
mod guides;
mod iwarp;
mod launching;
mod mesh;
mod mesh_faults;
mod mesh_killed;
mod mesh_watch;
mod prover;
mod selection;
mod stacks;
mod topo;
mod up;
mod verbs;
