//! Memory that a device has been told of, whoever it belongs to.

use super::buffer::VolatileBuffer;
use super::protection_domain::ProtectionDomain;
use crate::error::{Verb, VerbsError};
use rdma_sys::{ibv_access_flags, ibv_mr};
use rlaunch_lock::PinnedBuffer;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// What devices may be told of.
///
/// # Safety
///
/// Its bytes stay where they are, and are not given to anybody else, until it is dropped. This process
/// makes no reference to bytes while a device may write to them. When that is, the device's owner and
/// the peers decide together: a device writes to what it was asked to receive or read into, and where a
/// peer that was given the region's remote key writes. A peer is of the same job, and trusted to
/// write only where and when it was let in.
pub(crate) unsafe trait Registrable {
    /// The first byte.
    fn first(&self) -> *mut u8;

    /// In bytes.
    fn length(&self) -> usize;

    /// Whether devices may write to it.
    fn is_writable(&self) -> bool;
}

// SAFETY: it is owned, and reached by copies through raw pointers alone.
unsafe impl Registrable for VolatileBuffer {
    fn first(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        self.size()
    }

    fn is_writable(&self) -> bool {
        true
    }
}

// SAFETY: it keeps what was lent until it is dropped: `Attachment::end` of rlaunch-lock has seen to that
// before memory is taken back, and aborts where it is not so. References to lent memory are made by
// `BufferTable::read`, `write` and `read_write` alone, which refuse bytes from `BufferTable::expose`, called before a peer is
// told where it may write, to `BufferTable::conceal`, called when the peer has said that it has. Memory
// of a registered region is looked at by its owner, and only while no buffer in it is exposed: lending one borrows it.
unsafe impl Registrable for PinnedBuffer {
    fn first(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn length(&self) -> usize {
        PinnedBuffer::length(self)
    }

    fn is_writable(&self) -> bool {
        PinnedBuffer::is_writable(self)
    }
}

/// Memory that is registered until this is dropped.
#[derive(Debug)]
pub(crate) struct Registration<M> {
    region: NonNull<ibv_mr>,
    /// Let go after the region, or never.
    memory: ManuallyDrop<M>,
    domain: Arc<ProtectionDomain>,
}

/// Bytes of a region, as a device is told of them while the region is there. A request that was posted
/// outlives the region: the device finds its key void then, and the queue pair fails.
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
    /// Registers all of it: for `access` what may be written to, the rest to be read from here alone.
    pub(crate) fn make(
        domain: &Arc<ProtectionDomain>,
        memory: M,
        access: ibv_access_flags,
    ) -> Result<Registration<M>, VerbsError> {
        domain.context().own()?;
        let access = if memory.is_writable() { access } else { ibv_access_flags(0) };
        let access = i32::try_from(access.0).unwrap_or(0);
        let (first, length) = (memory.first().cast(), memory.length());
        // SAFETY: as `Registrable` promises, the bytes stay until the memory is dropped, which is after
        // the region was given back. Devices write only to what may be written to.
        let region = unsafe { rdma_sys::ibv_reg_mr(domain.as_ptr(), first, length, access) };
        match NonNull::new(region) {
            Some(region) => {
                let (memory, domain) = (ManuallyDrop::new(memory), domain.clone());
                Ok(Registration { region, memory, domain })
            }
            None => Err(VerbsError::last(Verb::RegMr, domain.context().name())),
        }
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Where peers find it.
    pub(crate) fn address(&self) -> u64 {
        self.memory.first() as u64
    }

    /// By which peers may.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region is registered until this is dropped, and the key never changes.
        unsafe { self.region.as_ref() }.rkey
    }

    /// Some of its bytes.
    pub(crate) fn slice(&self, offset: usize, length: usize) -> Result<MrSlice<'_>, VerbsError> {
        let size = self.memory.length();
        let outside = || VerbsError::OutOfBounds { offset, length, size };
        let end = offset.checked_add(length).filter(|end| *end <= size);
        end.ok_or_else(outside)?;
        // SAFETY: the region is registered until this is dropped, and the key never changes.
        let lkey = unsafe { self.region.as_ref() }.lkey;
        let length = u32::try_from(length).map_err(|_| outside())?;
        let address = self.address() + offset as u64;
        Ok(MrSlice { address, length, lkey, region: PhantomData })
    }
}

impl<M> Drop for Registration<M> {
    fn drop(&mut self) {
        // A forked process has a copy of the parent's memory, or none of it, and none of its device's.
        if self.domain.context().is_inherited() {
            return;
        }
        // SAFETY: it was registered once and is given back here alone; from then on no device
        // touches the memory.
        let code = unsafe { rdma_sys::ibv_dereg_mr(self.region.as_ptr()) };
        if code != 0 {
            // What a device may still write to is not given to anybody else. Whoever has lent it is
            // not told that it is over, and ends the process.
            let device = self.domain.context().name();
            tracing::error!(device, code, "ibv_dereg_mr failed: its memory is never given back");
            return;
        }
        // SAFETY: dropped here alone, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}
