//! Collectives as data: the algorithms, the choice between them, and reductions.

pub mod choice;
pub mod reduce;
pub mod schedule;
