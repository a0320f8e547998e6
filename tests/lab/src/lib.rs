//! Hosts for tests on one machine, and everything that runs on them: `cargo lab` as a library.
//!
//! A [`Lab`] is N hosts and one launch node, each made of Linux namespaces. Every host has its own
//! address, name, process table, home directories and a real sshd on port 22. Hosts share no
//! directory that they can write to, unless the lab is made with a shared home. The launch node is
//! on the same bridge; `rlaunch` runs there. Links can be cut, hosts crashed and booted, and sshds
//! restarted with other settings.
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
//!
//! Folders, each of which uses only those above it:
//!
//! | folder | what |
//! |---|---|
//! | `files.rs` | reading and writing files |
//! | `command/` | running other programs, waiting for conditions |
//! | `setup/` | packages that this machine needs, root, Python with torch and with MPI libraries |
//! | `dist/` | building rlaunch and laying it out as it ships |
//! | `netns/`, `vm/` | hosts made of namespaces; hosts made of emulated computers |
//! | `demo.rs`, `gpu.rs` | the demo; what a machine with a GPU runs |
//! | `bench/`, `soak/` | measurements; one thing many times |
//! | `stages/` | `cargo lab test` |

pub mod bench;
pub mod command;
pub mod demo;
pub mod dist;
mod error;
mod files;
pub mod gpu;
mod netns;
pub mod setup;
pub mod soak;
pub mod stages;
pub mod vm;

pub use error::LabError;
pub use netns::{
    Account, Cut, DEFAULT_NET, Host, Lab, Options, Process, Slurm, Sshd, Status, names,
};
pub use rlaunch_stopwatch::Stopwatch;
pub use setup::{mpi, python};
pub use stages::{UnderTest, VmUnderTest};
