//! SSH client of the launcher. It follows the user's `ssh_config`, keys, SSH agent and known-hosts files.
//!
//! [`Ssh`] serves all hosts of a job, so that each file is read once, each key decrypted once, and each
//! jump host logged in to once. A connection takes these steps:
//!
//! | step | folder or file |
//! |---|---|
//! | read `ssh_config` and resolve it for the host | [`config`] |
//! | open a byte stream by TCP, `ProxyJump` or `ProxyCommand`; negotiate; retry | `transport` |
//! | check the host key against [`known_hosts`]; record or refuse unknown ones | `host_keys` |
//! | log in with certificates, agent keys and key files | [`keys`], `client` |
//! | ask the user for passphrases, passwords and consent | [`prompt`] |
//!
//! The user's files are read by `files`, which gives up those that block. A failed step is an [`error::SshError`], whose
//! `hint` has advice for the user.

mod client;
pub mod config;
pub mod error;
mod files;
mod host_keys;
pub mod keys;
pub mod known_hosts;
pub mod prompt;
mod transport;

pub use client::password::{KeyLogin, Password, PasswordLogin};
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use client::testing;
pub use client::{Connection, Destination, ReportStage, Ssh, SshOptions};
pub use transport::algorithms::AlgorithmNames;
