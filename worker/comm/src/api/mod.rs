//! Public calls of the library.
//!
//! | file | contents |
//! |---|---|
//! | `start` | [`Communicator::from_env`](crate::Communicator::from_env): creation of the communicator of all ranks |
//! | `communicator` | blocking sends and receives, splitting into smaller communicators; the ranks of a communicator and their nodes |
//! | `collectives`, `short` | collectives; `short` runs those with short buffers on the caller's stack |
//! | `scope` | nonblocking operations on borrowed memory; memory that is registered with RDMA devices once |
//! | `raw` | calls for C and Python: element types are run-time values, requests have no lifetimes |
//! | `measure` | benchmarks of messages and collectives |

pub(crate) mod collectives;
pub(crate) mod communicator;
pub mod measure;
pub mod raw;
pub(crate) mod scope;
pub(crate) mod short;
pub(crate) mod start;
