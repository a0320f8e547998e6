//! Safe RDMA verbs: the only crate that calls libibverbs and librdmacm.
//!
//! | module | contents | uses |
//! |---|---|---|
//! | `error` | [`VerbsError`] | |
//! | `fork` | protection of registered memory against fork(2) | |
//! | `device` | [`Device`], [`Context`], ports, asynchronous events; waiting for file descriptors | `error`, `fork` |
//! | `memory` | [`ProtectionDomain`], [`MemoryRegion`], [`UserMr`] | `device` |
//! | `cm_id` | ids and event channels of librdmacm | `device` |
//! | `queue` | [`CompletionQueue`], [`QueuePair`] | `memory`, `cm_id` |
//! | `connection_manager` | [`Listener`], [`Route`]: connections by librdmacm | `queue` |
//! | `bounce_buffers` | [`BounceBuffers`]: registered buffers for messages, which are reused | `queue` |
//!
//! Example of a reliable connection whose [`Endpoint`]s are exchanged out of band:
//!
//! ```no_run
//! use rlaunch_verbs::{
//!     CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, Resources, Settings, devices,
//! };
//!
//! # fn exchange(mine: &rlaunch_verbs::Endpoint) -> rlaunch_verbs::Endpoint { mine.clone() }
//! # fn main() -> Result<(), rlaunch_verbs::VerbsError> {
//! let device = devices()?.into_iter().next().expect("a device");
//! let context = device.open()?;
//! let domain = ProtectionDomain::allocate(&context)?;
//! let region = MemoryRegion::register(&domain, 64 << 10)?;
//! let completions = CompletionQueue::create(&context, 16)?;
//! let resources = Resources::new(&domain, &completions);
//! let prepared = QueuePair::prepare(&resources, 1, Some(1))?;
//! let peer = exchange(prepared.endpoint()); // over a socket, for example
//! let pair = prepared.connect(&peer, &Settings::default())?;
//! // Wait until the peer has connected as well, then:
//! region.write(0, b"token");
//! pair.write(1, region.slice(0, 5)?, peer.remote_addr(0))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Ownership, threads, forks
//!
//! Every handle holds an `Arc` of the object that it was made from, so objects are destroyed in the
//! right order. `Drop` destroys the object, logs failures and never panics. libibverbs may be
//! called from any thread (ibv_open_device(3): "fully thread safe"), so handles are `Send` and
//! `Sync`. The memory of a [`MemoryRegion`] to which peers may write is accessed only through raw
//! pointers: no Rust reference to it ever exists. A forked child has copies of its parent's
//! handles, but every call on such a copy fails with [`VerbsError::Inherited`], and dropping it
//! destroys nothing.

mod bounce_buffers;
mod cm_id;
mod connection_manager;
mod device;
mod error;
mod fork;
mod memory;
mod queue;

#[cfg(test)]
mod layout;

pub use bounce_buffers::{BounceBuffers, BufferEvent, FilledBuffer};
pub use cm_id::MAX_PRIVATE_DATA;
pub use connection_manager::{ConnectRequest, Listener, Route};
pub use device::{
    Context, Device, DeviceEvent, GidEntry, Limits, LinkLayer, Mtu, PortAttributes, devices,
};
pub use error::{Verb, VerbsError};
pub use fork::{ForkSafety, fork_safety};
pub use memory::{MemoryRegion, MrSlice, ProtectionDomain, UserMr};
pub use queue::{
    AddressVector, Completion, CompletionBatch, CompletionChannel, CompletionQueue, Connected,
    Depth, Endpoint, GlobalRoute, LocalPort, Prepared, QueuePair, RemoteAddr, Resources, Settings,
    WcStatus,
};
