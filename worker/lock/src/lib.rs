//! A lock around a transfer engine, to which threads lend their buffers.
//!
//! A communicator sends from and receives into its callers' own memory, and whichever thread holds
//! the lock moves the messages of all. So the engine cannot hold references: it keeps a
//! [`BufferId`] for each lent buffer and reaches the bytes through the [`BufferTable`], which is
//! behind the same lock. The lender waits for the lock to take its buffer back; from then on the id
//! is stale and every access through it fails. Two calls make this safe for borrowed slices,
//! because they do not return before they have taken the buffers back: [`EngineLock::lend`] for
//! one operation and [`EngineLock::scope`] for several, like [`std::thread::scope`].
//!
//! RDMA devices reach lent memory without the processor. The registration that a device needs is
//! *attached* to the buffer ([`BufferTable::with_attachment`]) and dropped before the memory
//! returns to its owner. Registering takes as long as a hundred messages, so it runs after the
//! lock is released, and memory that stays in place is registered once as a *region*
//! ([`EngineLock::register_raw`], [`EngineLock::register_pages`]) that serves every buffer inside
//! it.
//!
//! | file | contents |
//! |---|---|
//! | `lock.rs` | [`EngineLock`], its guard, scopes and regions |
//! | `buffers.rs` | [`BufferTable`]: lent buffers, the engine's own, and the rules for accessing them |
//! | `attachment.rs` | device registrations made outside the lock |
//! | `memory.rs`, `pinned.rs` | memory as callers lend it, and as a device receives it |

mod attachment;
mod buffers;
mod lock;
mod memory;
mod pinned;

pub use attachment::Attached;
pub use buffers::{BufferId, BufferTable};
pub use lock::{EngineGuard, EngineLock, LendingScope, RegionId, RegionPages};
pub use memory::Memory;
pub use pinned::PinnedBuffer;

#[cfg(test)]
mod tests;
