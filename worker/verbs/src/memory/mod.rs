//! Protection domains, and memory that is registered with them. A queue pair can access only memory
//! registered in its own domain.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`ProtectionDomain`]; registration (`ibv_mr`) of memory, and [`MrSlice`], a range of it; [`UserMr`]: memory of the application, borrowed while it is registered |
//! | `buffer` | page-aligned memory that a device may write to; [`MemoryRegion`]: such memory, registered |

mod buffer;
pub use buffer::MemoryRegion;

use crate::device::Context;
use crate::error::{Verb, VerbsError};
use buffer::VolatileBuffer;
use rdma_sys::{ibv_access_flags, ibv_mr, ibv_pd};
use rlaunch_lock::PinnedBuffer;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Protection domain (`ibv_pd`).
#[derive(Debug)]
pub struct ProtectionDomain {
    domain: NonNull<ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the domain is freed by its last owner.
unsafe impl Send for ProtectionDomain {}

// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates a protection domain on an opened device.
    pub fn allocate(context: &Arc<Context>) -> Result<Arc<ProtectionDomain>, VerbsError> {
        context.check_not_inherited()?;
        // SAFETY: the context is open, and the domain will own it.
        let domain = unsafe { rdma_sys::ibv_alloc_pd(context.as_ptr()) };
        match NonNull::new(domain) {
            Some(domain) => Ok(Arc::new(ProtectionDomain { domain, context: context.clone() })),
            None => Err(VerbsError::last_os_error(Verb::AllocPd, context.name())),
        }
    }

    /// Returns the device that the domain belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        // SAFETY: the domain was allocated once and is freed only here. Objects made from it hold
        // an `Arc` of it, so they are gone.
        if unsafe { rdma_sys::ibv_dealloc_pd(self.as_ptr()) } != 0 {
            tracing::warn!(device = self.context.name(), "ibv_dealloc_pd failed");
        }
    }
}

/// Memory that may be registered with a device.
///
/// # Safety
///
/// The bytes must neither move nor be freed until the value is dropped, and this process must not
/// make a reference to bytes while a device may write to them. A device writes in two cases: a work
/// request of this process receives or reads into the bytes, or a peer that has the rkey writes to
/// them. Peers are ranks of the same job. They are trusted to write only to the ranges that they
/// were given, and only while the owner of the memory waits for these writes.
pub(crate) unsafe trait Registrable {
    /// Returns the address of the first byte.
    fn base(&self) -> *mut u8;

    /// Returns the length in bytes.
    fn length(&self) -> usize;

    /// Tells whether devices may write to the bytes.
    fn is_writable(&self) -> bool;
}

// SAFETY: the buffer owns its memory, and accesses it only by copies through raw pointers.
unsafe impl Registrable for VolatileBuffer {
    fn base(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.size()
    }

    fn is_writable(&self) -> bool {
        true
    }
}

// SAFETY: the application's memory stays in place until the `PinnedBuffer` is dropped:
// `Attachment::end` of rlaunch-lock waits for the drop before the memory goes back to the
// application, and aborts the process if it does not happen. References to the memory are made only
// by `BufferTable::read`, `write` and `read_write`. These refuse bytes between
// `BufferTable::expose`, which precedes the message that lets a peer write to them, and
// `BufferTable::conceal`, which follows the peer's message that it has written. The owner of a
// registered region may read it only while no buffer in it is exposed, because lending a buffer
// borrows the region.
unsafe impl Registrable for PinnedBuffer {
    fn base(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        PinnedBuffer::length(self)
    }

    fn is_writable(&self) -> bool {
        PinnedBuffer::is_writable(self)
    }
}

/// Registered memory. Dropping it deregisters the memory.
#[derive(Debug)]
pub(crate) struct Registration<M> {
    region: NonNull<ibv_mr>,
    /// Memory that is registered. It is dropped after it is deregistered, and never dropped if
    /// deregistering fails.
    memory: ManuallyDrop<M>,
    domain: Arc<ProtectionDomain>,
}

/// Range of a registered region, for work requests. The lifetime ensures that the region exists
/// when a request is posted. If the region is dropped before the request completes, the device
/// finds the key invalid and the queue pair fails; no other memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrSlice<'r> {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
    region: PhantomData<&'r ()>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the region is given back by its one owner.
unsafe impl<M: Send> Send for Registration<M> {}

// SAFETY: as above.
unsafe impl<M: Sync> Sync for Registration<M> {}

impl<M: Registrable> Registration<M> {
    /// Registers all of `memory`, with `access` if the memory is writable, else for local reads
    /// only.
    pub(crate) fn register(
        domain: &Arc<ProtectionDomain>,
        memory: M,
        access: ibv_access_flags,
    ) -> Result<Registration<M>, VerbsError> {
        domain.context().check_not_inherited()?;
        let access = if memory.is_writable() { access } else { ibv_access_flags(0) };
        let access = i32::try_from(access.0).unwrap_or(0);
        let (first, length) = (memory.base().cast(), memory.length());
        // SAFETY: `Registrable` guarantees that the bytes stay in place until `memory` is dropped,
        // which happens after the region is deregistered. Devices get write access only to writable
        // memory.
        let region = unsafe { rdma_sys::ibv_reg_mr(domain.as_ptr(), first, length, access) };
        match NonNull::new(region) {
            Some(region) => {
                let (memory, domain) = (ManuallyDrop::new(memory), domain.clone());
                Ok(Registration { region, memory, domain })
            }
            None => Err(VerbsError::last_os_error(Verb::RegMr, domain.context().name())),
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the address of the first byte, which peers need for RDMA reads and writes.
    pub(crate) fn address(&self) -> u64 {
        self.memory.base() as u64
    }

    /// Returns the remote key, which peers need for RDMA reads and writes.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region is registered until `self` is dropped, and the key never changes.
        unsafe { self.region.as_ref() }.rkey
    }

    /// Returns a range of the region. Fails with [`VerbsError::OutOfBounds`] if the range exceeds
    /// the region or is 4 GiB or longer.
    pub(crate) fn slice(&self, offset: usize, length: usize) -> Result<MrSlice<'_>, VerbsError> {
        let size = self.memory.length();
        let outside = || VerbsError::OutOfBounds { offset, length, size };
        let end = offset.checked_add(length).filter(|end| *end <= size);
        end.ok_or_else(outside)?;
        // SAFETY: the region is registered until `self` is dropped, and the key never changes.
        let lkey = unsafe { self.region.as_ref() }.lkey;
        let length = u32::try_from(length).map_err(|_| outside())?;
        let address = self.address() + offset as u64;
        Ok(MrSlice { address, length, lkey, region: PhantomData })
    }
}

impl<M> Drop for Registration<M> {
    fn drop(&mut self) {
        // In a forked child both the memory and the device belong to the parent.
        if self.domain.context().is_inherited() {
            return;
        }
        // SAFETY: the region was registered once and is deregistered only here. Afterwards no
        // device accesses the memory.
        let code = unsafe { rdma_sys::ibv_dereg_mr(self.region.as_ptr()) };
        if code != 0 {
            // A device may still write to the memory, so it must not be reused: leak it. If the
            // application has lent the memory, rlaunch-lock notices that the memory was not
            // dropped, and aborts the process.
            let device = self.domain.context().name();
            tracing::error!(device, code, "ibv_dereg_mr failed: its memory is never given back");
            return;
        }
        // SAFETY: the memory is dropped only here, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

/// Registered memory of the application. When the value is dropped, the memory is deregistered and
/// given back to the application.
#[derive(Debug)]
pub struct UserMr(Registration<PinnedBuffer>);

impl UserMr {
    /// Registers all of `buffer`. If the buffer is writable, it is registered for local use and
    /// RDMA writes of peers, else for local reads only (as the source of sends and writes). Fails
    /// with EINVAL if the buffer is empty.
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        buffer: PinnedBuffer,
    ) -> Result<UserMr, VerbsError> {
        if buffer.length() == 0 {
            let device = domain.context().name();
            return Err(VerbsError::from_errno(Verb::RegMr, device, libc::EINVAL));
        }
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        Registration::register(domain, buffer, access).map(UserMr)
    }

    /// Returns the address of the first byte, which peers need for RDMA writes.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// Returns the remote key, which peers need for RDMA writes.
    pub fn rkey(&self) -> u32 {
        self.0.rkey()
    }

    /// Tells whether peers may write to the memory.
    pub fn is_writable(&self) -> bool {
        self.0.memory().is_writable()
    }

    /// Returns a range of the memory, for work requests. Fails with [`VerbsError::OutOfBounds`] if
    /// the range exceeds the memory or is 4 GiB or longer.
    pub fn slice(&self, offset: usize, length: usize) -> Result<MrSlice<'_>, VerbsError> {
        self.0.slice(offset, length)
    }
}
