//! Finding the agent's executable on this machine, installing it on a host under its hash, and starting it.
//!
//! | files | subject |
//! |---|---|
//! | `deploy`, `hello` | starting the agent on a host, and its first message |
//! | `install` | installing it, if the host does not have it |
//! | `store` | search for the programs that are sent to hosts |
//! | `bundle` | files that `rlaunch` carries in its executable |
//! | `host_file` | a program from disk or from the bundle; its copy for this machine |
//! | `library` | the library for ranks |

pub mod bundle;
pub mod deploy;
pub mod hello;
pub mod host_file;
mod install;
pub mod library;
pub mod store;
