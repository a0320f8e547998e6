//! What the ranks of a job say to each other.

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
