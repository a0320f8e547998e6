//! Public calls of the library.
//!
//! | file | contents |
//! |---|---|
//! | `start` | [`Communicator::from_env`](crate::Communicator::from_env): creation of the communicator of all ranks |
//! | `communicator` | blocking sends and receives, splitting into smaller communicators |
//! | `collectives`, `short` | collectives; `short` runs those with short buffers on the caller's stack |
//! | `scope` | nonblocking operations on borrowed memory |
//! | `raw` | calls for C and Python: element types are run-time values, requests have no lifetimes |
//! | `registered` | memory that is registered with RDMA devices once |
//! | `group` | the ranks of a communicator and their nodes |
//! | `measure` | benchmarks of messages and collectives |

pub(crate) mod collectives;
pub(crate) mod communicator;
pub(crate) mod group;
pub mod measure;
pub mod raw;
pub(crate) mod registered;
pub(crate) mod scope;
pub(crate) mod short;
pub(crate) mod start;
