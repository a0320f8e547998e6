//! What the ranks of a job say to each other.
//!
//! The README beside this crate says what it offers. Its folders, each of which uses only those above it:
//!
//! | folder | subject |
//! |---|---|
//! | `types` | elements, operations and errors |
//! | `transport` | packets between two ranks: shared memory, TCP, RDMA, simulation |
//! | `collectives` | algorithms as data, the choice between them, vectorised reductions |
//! | `progress` | which request waits for what, what is sent next, and how a process waits |
//! | `connect` | how ranks of different hosts find each other and connect |
//! | `api` | the calls |
//! | `testing` | ranks as threads of one seed, and entry points for fuzzers |

mod api;
mod collectives;
mod connect;
mod progress;
mod testing;
mod transport;
mod types;

pub use api::communicator::{Communicator, Received};
pub use api::measure;
#[doc(hidden)]
pub use api::raw;
pub use api::registered::Registered;
pub use api::scope::{Request, Scope};
pub use api::start::StartError;
pub use collectives::{choice, reduce, schedule};
pub use connect::{DialError, NoRdma, PeerAddress, UnconnectedPair, WireUpError};
pub use rlaunch_bootstrap::error_chain;
#[doc(hidden)]
pub use testing::fuzz;
pub use testing::sim;
pub use transport::shm::AttachError;
pub use types::element::{Element, ElementType, Op};
pub use types::error::{Cause, CommError, LinkError, Operation, PeerName};
