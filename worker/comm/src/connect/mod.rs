//! How the ranks of a job find and trust each other.
//!
//! Each rank opens its [`RankListener`], puts what others need to find it into a [`Contact`], and all
//! contacts travel in one gather through the agents, encrypted and authenticated between nodes.
//! Then the pairs that speak TCP meet, all at once ([`meeting`]): one end dials, the other accepts,
//! and both prove that they have the key that the accepting rank gave to the gather ([`hello`])
//! before a byte of payload moves. Where one direction is closed, the other is tried. Those that
//! speak RDMA connect their queue pairs ([`rdma`]), and a second gather says that all have: before,
//! none may be used. In jobs of many ranks each pair does all that when it first speaks
//! ([`reception`]).

mod accept;
mod contact;
mod dial;
mod door;
mod error;
mod hello;
pub(crate) mod later;
mod meeting;
#[cfg(not(feature = "rdma"))]
#[path = "no_rdma.rs"]
mod rdma;
#[cfg(feature = "rdma")]
mod rdma;
mod reception;
#[cfg(test)]
mod tests;
pub(crate) mod ways;
mod wire;

use crate::transport::bell::WakeFd;

pub(crate) use contact::{Contact, exchange, ready};
pub(crate) use door::RankListener;
pub use error::{DialError, NoRdma, PeerAddress, UnconnectedPair, WireUpError};
pub(crate) use meeting::meet;
pub(crate) use rdma::{Fabric, LazyRdma};
pub(crate) use reception::{Arrival, ArrivalFd, LazyConnector};

/// What wakes a thread that meets peers.
fn bell() -> Result<WakeFd, WireUpError> {
    WakeFd::new().map_err(|source| WireUpError::System { operation: "make an eventfd", source })
}

/// Whether somebody who knocks has begun as ranks do.
pub(crate) fn is_hello(bytes: &[u8]) -> bool {
    hello::Hello::read(bytes).is_some()
}
