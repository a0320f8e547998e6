//! Messages between launcher, agents and provers.
//!
//! Ranks talk to their agent in the messages of [`crate::client`], neighbouring agents in those of
//! [`crate::rendezvous`].

pub mod control;
pub mod mesh;
