//! How the ranks of a job find and trust each other.
//!
//! Each rank opens its [`RankListener`], puts what others need to find it into a [`Contact`], and all
//! contacts travel in one gather through the agents, encrypted and authenticated between nodes.
//! Then the pairs that speak TCP meet, all at once ([`connector`]): one end dials, the other accepts,
//! and both prove that they have the key that the accepting rank gave to the gather ([`hello`])
//! before a byte of payload moves. Where one direction is closed, the other is tried. Those that
//! speak RDMA connect their queue pairs ([`rdma`]), and a second gather says that all have: before,
//! none may be used. In jobs of many ranks each pair does all that when it first speaks
//! ([`connector`]).

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

pub(crate) use contact::{Contact, exchange, ready};
pub(crate) use eager_connect::connect_all;
pub use error::{DialError, NoRdma, PeerAddress, UnconnectedPair, WireUpError};
pub(crate) use lazy_connect::{Arrival, ArrivalFd, LazyConnector};
pub(crate) use listener::RankListener;
pub(crate) use rdma::{Fabric, LazyRdma};

/// What wakes a thread that meets peers.
fn wake_fd() -> Result<WakeFd, WireUpError> {
    WakeFd::new().map_err(|source| WireUpError::System { operation: "make an eventfd", source })
}

/// Whether somebody who knocks has begun as ranks do.
pub(crate) fn is_hello(bytes: &[u8]) -> bool {
    hello::Hello::read(bytes).is_some()
}
