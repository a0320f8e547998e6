//! System calls that no crate offers as safe functions. Each is wrapped in a function or type that
//! checks its requirements and cannot cause undefined behaviour, whatever the caller does.
//!
//! | file | contents |
//! |---|---|
//! | `process.rs`, `spawn.rs` | fork and its detection, exec, limits and their signal, copying between processes; starting a program, also in a cgroup |
//! | `shared.rs` | memory shared by processes, and a fence for it |
//! | `pages.rs` | page-aligned memory; NUMA policy |
//! | `descriptor.rs` | descriptors that change their file; files in use; writeback |
//! | `socket.rs` | state of TCP connections, options of sockets |
//! | `ticks.rs` | a clock that is cheap to read |
//! | `trace.rs` | stops of threads of other processes |

mod descriptor;
mod pages;
mod process;
mod shared;
mod socket;
mod spawn;
mod ticks;
mod trace;
pub use descriptor::{begin_writeback, redirect, while_unused};
pub use pages::{Pages, prefer_numa_node};
pub use process::{
    Fork, ForkGeneration, exec, fork, let_descendants_read, limit_open_files, share_heap, spawn,
    survive_file_size_limit, unblock_signals, wait_for_signal, write_to_process,
};
pub use shared::{OwnedBytes, SharedMemory, full_fence};
pub use socket::{PeerSilence, never_fragment, unacknowledged_bytes};
pub use spawn::{SpawnArgs, spawn_in_cgroup};
pub use ticks::Ticks;
pub use trace::StoppedThread;
