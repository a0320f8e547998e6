//! Collectives as data: the algorithms, the choice between them, and reductions.

pub mod choice;
pub(crate) mod kind;
pub mod reduce;
pub mod schedule;
