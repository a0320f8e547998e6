//! Connections to hosts, and agents started over them.
//!
//! | files | subject |
//! |---|---|
//! | `channel`, `outbox` | the byte stream to an agent; the queue of frames for it |
//! | `connector` | the user's choices; logging in to a host by SSH, by `--rsh` or by steps of a Slurm job (`step`), and entering a running container or starting one (`container`) |
//! | `agent` | finding the agent's executable on this machine (`store`), installing it on a host (`deploy`, `install`, `place.sh`, `install.sh`, `fetch.sh`, `boot.sh`), waiting for the agent's first message (`hello`), by TCP if its shell passes no stdin (`callback`), sending the library for ranks (`library`) |
//! | `lost_agent` | cleaning up on a host after its agent was lost |
//! | `fault_peer` | for tests: hosts that stall or hang up at any byte |

pub mod agent;
pub mod channel;
pub mod connector;
#[cfg(test)]
pub(crate) mod fault_peer;
pub(crate) mod lost_agent;
pub(crate) mod outbox;
