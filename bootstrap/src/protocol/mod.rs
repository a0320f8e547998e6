//! Messages between launcher, agents and provers.
//!
//! Ranks and their agent exchange the messages of [`crate::client`]; neighbouring agents in the
//! tree exchange those of [`crate::rendezvous`].

pub mod control;
pub mod diagnosis;
pub mod helper;
pub mod inspection;
pub mod mesh;
pub mod network;
pub mod session;
