//! A lock around a transfer engine, to which threads lend their buffers.
//!
//! A communicator sends from and receives into its callers' own memory, and the thread that holds
//! the lock moves the messages of all threads. So the engine cannot hold references to this memory.
//! Instead a thread *lends* a buffer to the engine: the engine gets a [`BufferId`], and accesses
//! the bytes through the [`BufferTable`], which the same lock protects. The thread acquires the
//! lock to take the buffer back. From then on the id is *stale*, and every access with it fails.
//! Two calls make this safe for borrowed slices, because they take the buffers back before they
//! return: [`EngineLock::lend`] for one operation and [`EngineLock::scope`] for several, like
//! [`std::thread::scope`].
//!
//! An RDMA device accesses lent memory without the processor, and must first register the memory.
//! The registration is an *attachment* of the buffer ([`BufferTable::with_attachment`]), which is
//! dropped before the buffer is taken back. Registering takes as long as a hundred messages, so it
//! runs after the lock is released. Memory that stays in place can be registered once, as a
//! *region* ([`EngineLock::register_raw`], [`EngineLock::register_pages`]); every buffer that is
//! lent inside a region uses the region's attachments.
//!
//! A range of a buffer is *exposed* while the device of a peer (another rank) may write to it.
//!
//! | file | contents |
//! |---|---|
//! | `lock.rs` | [`EngineLock`], its guard, scopes and regions |
//! | `buffers.rs` | [`BufferTable`]: lent buffers, the engine's own, and the rules for accessing them |
//! | `attachment.rs` | device registrations made outside the lock; memory as callers lend it, and as a device receives it |

mod attachment;
mod buffers;
mod lock;

pub use attachment::Attached;
pub use attachment::Memory;
pub use attachment::PinnedBuffer;
pub use buffers::{BufferId, BufferTable};
pub use lock::{EngineGuard, EngineLock, LendingScope, RegionId, RegionPages};

#[cfg(test)]
mod tests;
