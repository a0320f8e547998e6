//! The out-of-band network: this node's place in the tree of agents.
//!
//! In reading order: the [`ports`] it listens on; how it [`dial`]s its parent and [`accept`]s its
//! children, in words of [`negotiation`]; the [`edge`] that comes of it; and the [`tree`] that carries
//! the node machine's packets over edges or through the launcher.

pub(crate) mod accept;
pub(crate) mod dial;
pub(crate) mod edge;
mod negotiation;
pub(crate) mod ports;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
