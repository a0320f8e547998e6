//! What the ranks of a job say to each other.
//!
//! The README beside this crate says what it offers. Its files:
//!
//! | files | subject |
//! |---|---|
//! | `start`, `wire_up` | from the environment to links; how ranks of different hosts find and trust each other, at once (`meeting`) or when they first talk (`reception`), by RDMA (`rdma`) |
//! | `link`, `packet` | one way to one rank: shared memory, TCP, RDMA (`verbs`), simulation; what crosses it |
//! | `engine`, `station`, `bell`, `agent` | which request waits for what, what is sent next; how a process waits, and hears what others saw |
//! | `communicator`, `collectives`, `scope`, `inline` | the calls; those that go on meanwhile; those of few bytes |
//! | `schedule`, `choice`, `reduce` | collectives as data; which is taken when; vectorised reductions |
//! | `sim`, `measure` | ranks as threads of one seed; how long calls take |

mod agent;
mod bell;
pub mod choice;
mod collectives;
mod communicator;
mod element;
mod engine;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod inline;
mod link;
pub mod measure;
mod packet;
#[doc(hidden)]
pub mod raw;
pub mod reduce;
mod registered;
pub mod schedule;
mod scope;
pub mod sim;
mod start;
mod station;
mod ways;
mod wire_up;

pub use communicator::{Communicator, Received};
pub use element::{Element, ElementType, Op};
pub use error::{Cause, CommError, LinkError, Operation, PeerName};
pub use link::shm::AttachError;
pub use registered::Registered;
pub use rlaunch_bootstrap::chain;
pub use scope::{Request, Scope};
pub use start::StartError;
pub use wire_up::{Listener, NoRdma, Unmet, Unreached, WireUpError};
