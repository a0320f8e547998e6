//! Messages between launcher, agents, provers and ranks. Neighbouring agents in the tree exchange
//! those of [`crate::rendezvous`].

pub mod changes;
pub mod control;
pub mod diagnosis;
pub mod housekeeping;
pub mod inspection;
pub mod line_turn;
pub mod mesh;
pub mod network;
pub mod rank;
pub mod session;
