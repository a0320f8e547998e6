//! Test suite of the communicator. Every rank of a job runs it together with the others, over
//! whichever transports connect them, and compares results bit for bit.

mod cancel;
mod case;
mod cover;
mod forks;
mod random_cancel;
mod run;
mod traffic;
mod value;

pub use cancel::{cancel_a_collective, cancel_a_message, leave};
pub use case::{Case, Collective, Op, all};
pub use cover::{cover, cover_by};
pub use forks::forks;
pub use random_cancel::{CancelReport, cancel_randomly};
pub use run::{long, run};
pub use traffic::{TrafficReport, traffic};
