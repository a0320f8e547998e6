//! The way to a host, and the agent brought there.
//!
//! | files | subject |
//! |---|---|
//! | `options` | how hosts are reached, as the user wants it |
//! | `route` | the way to a host, by SSH or a command, and into a container that runs (`container`) or is started (`image`) |
//! | `agent` | finding the agent here (`store`), taking it to a host (`deliver`, `install`, `place.sh`, `install.sh`, `fetch.sh`), its first words (`greet`), what its ranks link (`library`) |
//! | `callback` | where agents call that are given no stdin, and where their hosts fetch the agent |
//! | `channel`, `outbox` | the byte stream to an agent; what it is to be told |
//! | `rescue` | what is done on a host once its agent is lost |

pub(crate) mod agent;
pub(crate) mod callback;
pub(crate) mod channel;
pub(crate) mod options;
pub(crate) mod outbox;
pub(crate) mod rescue;
pub(crate) mod route;
