//! What rlaunch's launcher and its agents must agree on.
//!
//! In reading order: identities ([`id`], [`names`]), what a node has ([`inventory`]), what a job is to one node
//! ([`job`]) and what its ranks link ([`library`]), what crosses a control channel ([`wire`]) and how
//! there is one where a shell gives no stdin ([`callback`]), how long the two wait ([`awake`]), which
//! strangers a door has room for ([`crowd`]), how agents join one another ([`tree`]), every environment
//! variable a rank can rely on ([`env`]), and what a host says that was cleared of a job ([`reaped`]).
//!
//! This crate opens no socket, reads no file and knows no clock, so all of it runs in a test.
//!
//! Besides these there are ranks and nodes as types (`id`), what is said to prove a mesh (`mesh`), the way to
//! a parent in the tree (`oob`) and authentication of sockets (`secure`), what a rank says to its agent and hears
//! unasked (`client`, `client/news`): machine, blocking and async calls, commands; and the rank table (`table`,
//! `table/pair`, `rank-table.schema.json`, `rank-table.example.json`).

pub mod cleanup_report;
pub mod client;
pub mod deadline;
pub mod env;
mod error_chain;
pub mod exit_status;
pub mod frame;
pub mod id;
pub mod inventory;
pub mod job;
pub mod protocol;
pub mod rank_table;
pub mod rendezvous;
pub mod security;
mod serde_path;
pub mod shell_safe;
mod transitions;

pub use error_chain::error_chain;
