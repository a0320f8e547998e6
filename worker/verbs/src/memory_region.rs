//! Memory that devices, and peers through them, may read and write.

use crate::error::{Verb, VerbsError};
use crate::memory::Memory;
use crate::protection_domain::ProtectionDomain;
use rdma_sys::{ibv_access_flags, ibv_mr};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Registered memory, zeros at first.
///
/// A peer may write to it at any time, so there is never a reference to it: [`MemoryRegion::read`]
/// and [`MemoryRegion::write`] copy, by words of eight bytes where they are aligned.
#[derive(Debug)]
pub struct MemoryRegion {
    region: NonNull<ibv_mr>,
    /// Given back after the region, or never.
    memory: ManuallyDrop<Memory>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the region is given back by its one owner.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; the memory is `Sync` itself.
unsafe impl Sync for MemoryRegion {}

/// Bytes of a region, as a device is told of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub(crate) address: u64,
    pub(crate) length: u32,
    pub(crate) local_key: u32,
}

impl MemoryRegion {
    /// Allocates `size` bytes, at least one, and registers them for local use and for peers' reads
    /// and writes. iWARP's reads need a target that may be written to, so it always may.
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        size: usize,
    ) -> Result<MemoryRegion, VerbsError> {
        let remote =
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        MemoryRegion::with_access(domain, size, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | remote)
    }

    /// The same for local use alone: what is sent from, and received into.
    pub(crate) fn register_local(
        domain: &Arc<ProtectionDomain>,
        size: usize,
    ) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::with_access(domain, size, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)
    }

    fn with_access(
        domain: &Arc<ProtectionDomain>,
        size: usize,
        access: ibv_access_flags,
    ) -> Result<MemoryRegion, VerbsError> {
        let device = domain.context().name();
        let too_large = |_| VerbsError::code(Verb::RegMr, device, libc::EINVAL);
        let memory = Memory::allocate(size).map_err(too_large)?;
        let access = i32::try_from(access.0).unwrap_or(0);
        let (first, size) = (memory.as_ptr().cast(), memory.size());
        // SAFETY: the memory is `size` bytes and is freed after the region was given back.
        let region = unsafe { rdma_sys::ibv_reg_mr(domain.as_ptr(), first, size, access) };
        match NonNull::new(region) {
            Some(region) => {
                let (memory, domain) = (ManuallyDrop::new(memory), domain.clone());
                Ok(MemoryRegion { region, memory, domain })
            }
            None => Err(VerbsError::last(Verb::RegMr, device)),
        }
    }

    /// In bytes.
    pub fn size(&self) -> usize {
        self.memory.size()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where peers find it.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// By which peers may.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered until this is dropped, and the key never changes.
        unsafe { self.region.as_ref() }.rkey
    }

    /// Some of its bytes.
    pub fn part(&self, offset: usize, length: usize) -> Result<Part, VerbsError> {
        let size = self.size();
        let end = offset.checked_add(length).filter(|end| *end <= size);
        let outside = || VerbsError::OutOfBounds { offset, length, size };
        end.ok_or_else(outside)?;
        // SAFETY: the region is registered until this is dropped, and the key never changes.
        let local_key = unsafe { self.region.as_ref() }.lkey;
        let length = u32::try_from(length).map_err(|_| outside())?;
        Ok(Part { address: self.address() + offset as u64, length, local_key })
    }

    /// Copies `bytes` to `offset`; what would lie outside is left out. Returns how many were copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        self.memory.write(offset, bytes)
    }

    /// Copies from `offset` to `bytes`; what would lie outside stays as it is. Returns how many were
    /// copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        self.memory.read(offset, bytes)
    }

    /// Sets `length` bytes from `offset` to `byte`; what would lie outside is left out. Returns how
    /// many were set.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) -> usize {
        self.memory.fill(offset, length, byte)
    }

    /// The word at `offset`, in the machine's byte order and in one access, as for a flag that a peer
    /// writes: what is read later was not read before it. `None` when `offset` is no multiple of
    /// eight or lies outside.
    pub fn read_u64(&self, offset: usize) -> Option<u64> {
        self.memory.read_u64(offset)
    }

    /// Sets the word at `offset` in one access, after everything that was written before. False when
    /// `offset` is no multiple of eight or lies outside.
    pub fn write_u64(&self, offset: usize, value: u64) -> bool {
        self.memory.write_u64(offset, value)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: it was registered once and is given back here alone; from then on no device
        // touches the memory.
        let code = unsafe { rdma_sys::ibv_dereg_mr(self.region.as_ptr()) };
        if code != 0 {
            // What a device may still write to is not given to anybody else.
            let device = self.domain.context().name();
            tracing::warn!(device, code, "ibv_dereg_mr failed: its memory is left alone");
            return;
        }
        // SAFETY: dropped here alone, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}
