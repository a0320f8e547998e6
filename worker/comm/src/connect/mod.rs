//! Connections between the ranks of a job that are on different nodes.
//!
//! 1. Each rank opens a [`RankListener`] and puts the listener's port and key into its [`Contact`].
//!    All contacts are exchanged in one all-gather through the agents, which is encrypted and
//!    authenticated between nodes.
//! 2. Each pair that uses TCP connects: one end dials, the other accepts, and both prove in a
//!    handshake ([`hello`]) that they have the accepting rank's key from the all-gather. If a
//!    firewall blocks one direction, the other direction is tried.
//! 3. Pairs that use RDMA connect their queue pairs ([`rdma`]). No queue pair may be used until a
//!    second all-gather has reported that all ranks are ready.
//!
//! In small jobs all pairs connect at the start ([`eager_connect`]); in large jobs each pair
//! connects at its first message ([`lazy_connect`], [`lazy_link`]). [`links`] chooses between them.

mod accept;
mod contact;
mod dial;
mod eager_connect;
mod error;
mod handshake_socket;
mod hello;
mod lazy_connect;
pub(crate) mod lazy_link;
pub(crate) mod links;
mod listener;
#[cfg(not(feature = "rdma"))]
#[path = "no_rdma.rs"]
mod rdma;
#[cfg(feature = "rdma")]
mod rdma;
#[cfg(test)]
mod tests;

use crate::transport::wake_fd::WakeFd;

pub(crate) use contact::{Contact, exchange, report_ready};
pub(crate) use eager_connect::connect_all;
pub use error::{ConnectError, DialError, NoRdma, PeerAddress, UnconnectedPair};
pub(crate) use lazy_connect::{Arrival, ArrivalFd, LazyConnector};
pub(crate) use listener::RankListener;
pub(crate) use rdma::{Fabric, LazyRdma};

/// Makes an eventfd with which one thread wakes another.
fn wake_fd() -> Result<WakeFd, ConnectError> {
    WakeFd::new().map_err(|source| ConnectError::System { operation: "create an eventfd", source })
}

/// Returns whether `bytes`, the first bytes of a connection, are a rank's hello.
pub(crate) fn is_hello(bytes: &[u8]) -> bool {
    hello::Hello::read(bytes).is_some()
}
