//! Messages and collectives between the ranks of a job, over shared memory, TCP and RDMA.
//!
//! `README.md` introduces the library with examples. Each folder uses only folders above it in this
//! table:
//!
//! | folder | contents |
//! |---|---|
//! | `types` | elements, reduction operations, errors |
//! | `transport` | links, which carry packets between two ranks: shared memory, TCP, RDMA, simulation |
//! | `collectives` | collective algorithms as lists of steps, the choice between them, vectorised reductions |
//! | `progress` | the engine that matches messages with receives and runs collectives, and waits for their results |
//! | `connect` | how ranks on different nodes authenticate each other and connect |
//! | `api` | the public calls |
//! | `testing` | simulated jobs with a seeded schedule, and entry points for fuzzers |

#![warn(missing_docs)]

mod api;
mod collectives;
mod connect;
mod progress;
mod testing {
    pub mod fuzz;
    #[cfg(test)]
    mod order_tests;
    pub mod sim;
}
mod transport;
mod types;

pub use api::communicator::{Communicator, Received};
pub use api::measure;
#[doc(hidden)]
pub use api::raw;
pub use api::scope::{Registered, Request, Scope};
pub use api::start::StartError;
pub use collectives::{choice, schedule};
pub use connect::{ConnectError, DialError, NoRdma, PeerAddress, UnconnectedPair};
pub use rlaunch_bootstrap::error_chain;
#[doc(hidden)]
pub use testing::fuzz;
pub use testing::sim;
pub use transport::shm::AttachError;
pub use types::{Cause, CommError, Element, ElementType, LinkError, Op, Operation, PeerName};
