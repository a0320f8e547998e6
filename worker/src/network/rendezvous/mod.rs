//! The out-of-band network: connections of this node in the tree of agents, over TCP.
//!
//! In reading order: the [`ports`] it listens on; how it connects to its parent ([`dial`]) and
//! accepts its children ([`accept`]), with the messages of [`negotiation`]; the [`edge`] that
//! results; and the [`tree`], which carries the packets of the rendezvous state machine over edges,
//! or through the launcher where there is no edge.

pub(crate) mod accept;
pub(crate) mod dial;
pub(crate) mod edge;
mod negotiation;
pub(crate) mod ports;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
