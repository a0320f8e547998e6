//! Test hosts on one machine: `cargo lab` as a library.
//!
//! A [`Lab`] is N hosts and one launch node, all of them network namespaces. Every host has its
//! own address, name, process table, home directories and a real sshd on port 22; hosts share
//! nothing they can write to, unless asked for a shared home. The launch node sits on the same
//! bridge and is where `rlaunch` runs. Links can be cut, hosts crashed and booted, sshds restarted
//! with other settings.
//!
//! Tests attach to a lab that `cargo lab up` made, or make one of their own:
//!
//! ```no_run
//! use rlaunch_lab::{Account, Lab};
//!
//! let lab = Lab::attach("lab")?;
//! let output = lab.exec(Account::Root).args(["ssh", "a", "hostname"]).output();
//! # Ok::<(), rlaunch_lab::LabError>(())
//! ```

pub mod bench;
pub mod command;
pub mod demo;
pub mod dist;
mod error;
mod netns;
pub mod setup;
pub mod soak;
pub mod stages;
pub mod tidy;
pub mod vm;

pub use error::LabError;
pub use netns::{Account, Cut, DEFAULT_NET, Host, Lab, Options, Process, Sshd, Status, names};
pub use rlaunch_stopwatch::Stopwatch;
pub use setup::python;
pub use stages::{UnderTest, VmUnderTest};
