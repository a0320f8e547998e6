//! System calls that no crate offers as a safe function, made safe here: each is one function that
//! checks what it needs and cannot be misused from outside. `desk` has memory that is lent to transfers.

mod birth;
mod desk;
mod held;
mod lease;
mod numa;
mod pages;
mod process;
mod shared;
mod socket;
mod start;

pub use birth::Birth;
pub use desk::{Attached, Desk, Lease, LeasedPages, Loan, Loans, Memory, Scope, Sitting};
pub use held::Held;
pub use lease::while_unused;
pub use numa::prefer_memory_of;
pub use pages::Pages;
pub use process::{Fork, exec, fork, let_descendants_read, limit_open_files, write_to_process};
pub use shared::{Lane, SharedMemory};
pub use socket::{Silence, unacknowledged};
pub use start::{Start, start_in_cgroup};
