//! Memory that devices, and peers through them, may read and write.

use crate::error::{Verb, VerbsError};
use crate::protection_domain::ProtectionDomain;
use rdma_sys::{ibv_access_flags, ibv_mr};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

/// Whole pages: what is pinned is never half of a page that something else lives on.
const PAGE: usize = 4096;

/// Registered memory, zeros at first.
///
/// A peer may write to it at any time, so there is never a reference to it: [`MemoryRegion::read`]
/// and [`MemoryRegion::write`] copy.
#[derive(Debug)]
pub struct MemoryRegion {
    region: NonNull<ibv_mr>,
    memory: NonNull<u8>,
    layout: Layout,
    size: usize,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: the memory is owned by this alone, and reached by copies through raw pointers.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; copies from several threads may be torn, as copies beside a peer's writes are.
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
        let device = domain.context().name();
        let too_large = || VerbsError::code(Verb::RegMr, device, libc::EINVAL);
        let layout = Layout::from_size_align(size.max(1), PAGE).map_err(|_| too_large())?;
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let memory = NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout));
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let access = i32::try_from(access.0).unwrap_or(0);
        let address = memory.as_ptr().cast();
        // SAFETY: the memory is `layout.size()` bytes and is freed after the region was given back.
        let region =
            unsafe { rdma_sys::ibv_reg_mr(domain.as_ptr(), address, layout.size(), access) };
        match NonNull::new(region) {
            Some(region) => {
                let (size, domain) = (layout.size(), domain.clone());
                Ok(MemoryRegion { region, memory, layout, size, domain })
            }
            None => {
                let error = VerbsError::last(Verb::RegMr, device);
                // SAFETY: allocated above by this layout, and nobody else knows it.
                unsafe { dealloc(memory.as_ptr(), layout) };
                Err(error)
            }
        }
    }

    /// In bytes.
    pub fn size(&self) -> usize {
        self.size
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
        let end = offset.checked_add(length).filter(|end| *end <= self.size);
        let outside = || VerbsError::OutOfBounds { offset, length, size: self.size };
        end.ok_or_else(outside)?;
        // SAFETY: the region is registered until this is dropped, and the key never changes.
        let local_key = unsafe { self.region.as_ref() }.lkey;
        let length = u32::try_from(length).map_err(|_| outside())?;
        Ok(Part { address: self.address() + offset as u64, length, local_key })
    }

    /// Copies `bytes` to `offset`; what would lie outside is left out. Returns how many were copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        let length = bytes.len().min(self.size.saturating_sub(offset));
        for (index, byte) in bytes[..length].iter().enumerate() {
            // SAFETY: `offset + index` is below `size`, by the line above.
            let place = unsafe { self.memory.add(offset + index) };
            // SAFETY: the place is inside the allocation; volatile, because the device reads it.
            unsafe { place.as_ptr().write_volatile(*byte) };
        }
        length
    }

    /// Copies from `offset` to `bytes`; what would lie outside stays as it is. Returns how many were
    /// copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        let length = bytes.len().min(self.size.saturating_sub(offset));
        for (index, byte) in bytes[..length].iter_mut().enumerate() {
            // SAFETY: `offset + index` is below `size`, by the line above.
            let place = unsafe { self.memory.add(offset + index) };
            // SAFETY: the place is inside the allocation and was initialised with zeros; volatile,
            // because the device writes to it.
            *byte = unsafe { place.as_ptr().read_volatile() };
        }
        length
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
        // SAFETY: allocated by this layout in `register`, and no device knows it any more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}
