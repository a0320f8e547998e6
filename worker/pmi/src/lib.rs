//! Servers of the process management interfaces by which MPI libraries find the ranks of their job: PMI-1
//! (MPICH, Intel MPI, MVAPICH) and PMIx (Open MPI).
//!
//! An agent drives one [`Server`] for the ranks of its node. The server takes bytes from connections and
//! results from the other agents, and returns actions; the agent owns the sockets and the tree of agents.
//!
//! | file | contents |
//! |---|---|
//! | `layout` | which ranks run on which nodes |
//! | `output` | actions that a server asks of its agent |
//! | `node` | what both families share: ranks, open connections, queued actions, files in shared memory; how a family plugs into the server |
//! | `fence` | ranks of this node that have arrived at a fence, and the data they bring |
//! | `pmi1/` | PMI-1: lines of text, one request at a time |
//! | `pmix/` | PMIx: binary messages in the encoding of version 3 |
//! | `sorted_map` | a map that needs little code |
//! | `server` | hands the events that the agent reports to the family they are for |

mod fence;
mod layout;
mod node;
mod output;
pub mod pmi1;
pub mod pmix;
mod server;
mod sorted_map;
#[cfg(test)]
mod testing;

pub use layout::{JobLayout, NodeLayout, RankPlace};
pub use output::{ConnectionId, Family, Output};
pub use server::Server;
