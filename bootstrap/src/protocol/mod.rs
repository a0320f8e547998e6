//! Messages between the processes of a job, beside those of ranks ([`crate::client`]) and of neighbouring
//! agents ([`crate::rendezvous`]).

pub mod control;
pub mod mesh;
