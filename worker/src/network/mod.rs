//! Connections to the launcher, to other agents and to ranks.
//!
//! | file | contents |
//! |---|---|
//! | `channel.rs`, `frames.rs` | control channel to the launcher, over stdin and stdout or TCP; its frames, credit for output |
//! | `connection.rs` | whether the machine at the other end of that channel answers |
//! | `ports.rs` | ports that the agent listens on; those that an application waits for |
//! | `rendezvous/` | connections of this node in the tree of agents |
//! | `cabling/` | `rlaunch-worker network`: which interface is cabled to which, and their addresses |
//! | `services.rs` | Unix socket through which ranks call the agent |
//! | `mpi.rs` | port at which MPI ranks find their process manager, which is the agent |
//! | `horovod.rs` | proxy to Horovod's store |
//! | `tcp_owner.rs` | which user is at the other end of a TCP connection, for these two |

pub(crate) mod cabling;
pub(crate) mod channel;
mod connection;
pub(crate) mod frames;
pub(crate) mod horovod;
pub(crate) mod mpi;
pub(crate) mod ports;
pub(crate) mod rendezvous;
pub(crate) mod services;
mod tcp_owner;

/// Sleeps until `at`, or for ever if `at` is `None`.
pub(crate) async fn until(at: Option<impl Into<tokio::time::Instant>>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
