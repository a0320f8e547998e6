//! Collective algorithms, independent of the network.
//!
//! | module | contents |
//! |---|---|
//! | `kind` | the collectives and their names |
//! | `schedule` | algorithms as data: in each step, which rank sends which elements to which rank |
//! | `choice` | tables that select an algorithm by message size and placement of ranks |
//! | `reduce` | vectorised element-wise reductions |

pub mod choice;
pub(crate) mod kind;
pub mod reduce;
pub mod schedule;
