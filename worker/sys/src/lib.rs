//! System calls that no crate offers as a safe function, made safe here: each is one function that
//! checks what it needs and cannot be misused from outside.

mod fork_generation;
mod lease;
mod numa;
mod pages;
mod process;
mod shared;
mod socket;
mod spawn;

pub use fork_generation::ForkGeneration;
pub use lease::while_unused;
pub use numa::prefer_numa_node;
pub use pages::Pages;
pub use process::{Fork, exec, fork, let_descendants_read, limit_open_files, write_to_process};
pub use shared::{OwnedBytes, SharedMemory};
pub use socket::{PeerSilence, unacknowledged_bytes};
pub use spawn::{SpawnArgs, spawn_in_cgroup};
