//! Public calls of the library.
//!
//! | file | contents |
//! |---|---|
//! | `start` | [`Communicator::from_env`](crate::Communicator::from_env): from the environment to a communicator |
//! | `communicator` | blocking sends and receives, splitting |
//! | `collectives`, `short` | collectives; those that are short enough to run on the caller's stack |
//! | `scope` | nonblocking operations on borrowed memory |
//! | `raw` | the same calls for C and Python: element types at run time, requests without lifetimes |
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
