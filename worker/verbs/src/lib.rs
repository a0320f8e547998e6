//! RDMA verbs made safe: the only crate that knows libibverbs. Each of its objects has a file; messages in
//! slots (`slots`) and memory that is lent (`lent_region`) are made of them.
//!
//! The way of a reliable connection, out of band:
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
//! let peer = exchange(prepared.endpoint()); // however both ends talk
//! let pair = prepared.connect(&peer, &Settings::default())?;
//! // Nothing is sent before the peer says that it has connected as well.
//! region.write(0, b"token");
//! pair.write(1, region.slice(0, 5)?, peer.remote_addr(0))?;
//! # Ok(())
//! # }
//! ```
//!
//! Rules of the room. Every handle owns its parent through an `Arc`, so nothing is given back
//! before what was made of it; `Drop` gives back, logs what fails and never panics. libibverbs is
//! safe to call from any thread (ibv_open_device(3): "fully thread safe"), hence handles are `Send`
//! and `Sync`. Memory that a peer writes to is reached by raw pointers alone: no reference to it
//! ever exists. A process that fork(2) makes has copies of its parent's handles: it can do nothing with
//! them, and gives nothing back ([`VerbsError::Inherited`]).

mod bounce_buffers;
mod cm_id;
mod connection_manager;
mod device;
mod error;
mod fork;
mod memory;
mod poll;
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
