//! What a communicator must do, as cases: each is run by all ranks together, over whichever way
//! their links go, and compared bit for bit.

mod case;
mod cover;
mod forks;
mod quitting;
mod run;
mod traffic;
mod unruly;
mod value;

pub use case::{Case, Collective, Op, all};
pub use cover::{cover, cover_by};
pub use forks::forks;
pub use quitting::{give_up_a_collective, give_up_a_message, leave};
pub use run::{long, run};
pub use traffic::{Progress, traffic};
pub use unruly::{Given, unruly};
