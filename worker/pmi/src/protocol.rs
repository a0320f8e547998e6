//! How a family plugs into the server of a node.
//!
//! Each family has one state per node, which implements [`Protocol`]. The server finds out the family of
//! a connection from its first byte and from then on hands every event of that connection to the family's
//! state, together with the [`Node`]: what both families share. A family returns nothing; it queues its
//! actions by the functions of `Node` (`send`, `close`, `gather`, `put`, `get`, `begin`, `finalized`,
//! `abort`). Answers to `gather` and `get` come back to the family that asked, by the request's number.
//!
//! A family counts the ranks that arrive at a fence over all ranks by a [`Fence`](crate::fence::Fence).

use crate::node::Node;
use crate::output::ConnectionId;
use std::time::Instant;

/// State of a family on a node. All functions get the state that the families share.
pub(crate) trait Protocol {
    /// Takes bytes of a connection, in any split. The first call for a connection is also the notice that
    /// it exists. Once [`Node::is_open`] returns false, the rest of the bytes is to be dropped.
    fn received(&mut self, node: &mut Node, connection: ConnectionId, bytes: &[u8], now: Instant);

    /// Forgets a connection, which no longer exists in the node.
    fn closed(&mut self, node: &mut Node, connection: ConnectionId);

    /// Takes the answer to [`Node::gather`]: data by rank, `None` if the gather can never complete.
    fn gathered(&mut self, node: &mut Node, request: u64, data: Option<Vec<Vec<u8>>>);

    /// Takes the answer to [`Node::get`]: `None` if the key has no value.
    fn value(&mut self, node: &mut Node, request: u64, value: Option<Vec<u8>>);

    /// Takes notice that the process of a local rank has ended; [`Node::is_alive`] already says so.
    fn rank_ended(&mut self, node: &mut Node, local: usize);

    /// Does what is due at this time.
    fn handle_timeout(&mut self, node: &mut Node, now: Instant);

    /// Returns the time at which [`Protocol::handle_timeout`] has something to do.
    fn poll_timeout(&self) -> Option<Instant>;
}
