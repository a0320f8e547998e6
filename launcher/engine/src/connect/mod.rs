//! Connections to hosts, and agents started over them.
//!
//! | files | subject |
//! |---|---|
//! | `options` | the user's choices: SSH configuration, `--rsh`, container, agent |
//! | `connector` | logging in to a host by SSH or by `--rsh`, and entering a running container (`container`) or starting one (`image`) |
//! | `agent` | finding the agent's executable on this machine (`store`), installing it on a host (`deploy`, `install`, `place.sh`, `install.sh`, `fetch.sh`), waiting for the agent's first message (`hello`), sending the library for ranks (`library`) |
//! | `callback` | the TCP listener for agents that get no stdin from their shell, and for hosts that download the agent |
//! | `channel`, `outbox` | the byte stream to an agent; the queue of frames for it |
//! | `lost_agent` | cleaning up on a host after its agent was lost |
//! | `fault_peer` | for tests: hosts that stall or hang up at any byte |

pub mod agent;
pub mod callback;
pub mod channel;
pub mod connector;
#[cfg(test)]
pub(crate) mod fault_peer;
pub(crate) mod lost_agent;
pub mod options;
pub(crate) mod outbox;
