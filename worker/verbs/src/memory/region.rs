//! Registered memory that this crate allocates.

use super::buffer::VolatileBuffer;
use super::protection_domain::ProtectionDomain;
use super::registration::{MrSlice, Registration};
use crate::error::{Verb, VerbsError};
use rdma_sys::ibv_access_flags;
use std::sync::Arc;

/// Page-aligned, zeroed memory that is registered with a device until the value is dropped.
///
/// A peer may write to the memory at any time, so no references to it are returned:
/// [`MemoryRegion::read`] and [`MemoryRegion::write`] copy, in aligned words of 8 bytes where
/// possible. A copy that races with a peer's write may see part of that write; aligned words are
/// never torn.
#[derive(Debug)]
pub struct MemoryRegion(Registration<VolatileBuffer>);

impl MemoryRegion {
    /// Allocates `size` bytes, or 1 if `size` is 0, and registers them for local use and for RDMA
    /// reads and writes of peers. Fails with EINVAL if `size` exceeds the address space, and with
    /// ENOMEM if it exceeds the limit on locked memory (`ulimit -l`).
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        size: usize,
    ) -> Result<MemoryRegion, VerbsError> {
        // iWARP requires remote write access also for the local target of an RDMA read.
        let remote =
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        MemoryRegion::with_access(domain, size, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | remote)
    }

    /// Allocates and registers like [`MemoryRegion::register`], and lets the device write in any order
    /// (relaxed ordering of PCIe), which is faster on some machines. Only the completion of a request
    /// then tells that its data has arrived: a program must not wait for a byte to change. Where
    /// kernel or device do not know this, order is kept.
    pub fn register_relaxed(
        domain: &Arc<ProtectionDomain>,
        size: usize,
    ) -> Result<MemoryRegion, VerbsError> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        MemoryRegion::with_access(domain, size, access)
            .or_else(|_| MemoryRegion::register(domain, size))
    }

    /// Allocates `size` bytes, or 1 if `size` is 0, and registers them for local use only: as the
    /// source of sends and the target of receives.
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
        let too_large = |_| VerbsError::from_errno(Verb::RegMr, device, libc::EINVAL);
        let memory = VolatileBuffer::allocate(size).map_err(too_large)?;
        Registration::register(domain, memory, access).map(MemoryRegion)
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.memory().size()
    }

    pub(crate) fn memory(&self) -> &VolatileBuffer {
        self.0.memory()
    }

    /// Returns the address of the first byte, which peers need for RDMA reads and writes.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// Returns the remote key, which peers need for RDMA reads and writes.
    pub fn rkey(&self) -> u32 {
        self.0.rkey()
    }

    /// Returns a range of the region, for work requests. Fails with [`VerbsError::OutOfBounds`] if
    /// the range exceeds the region or is 4 GiB or longer.
    pub fn slice(&self, offset: usize, length: usize) -> Result<MrSlice<'_>, VerbsError> {
        self.0.slice(offset, length)
    }

    /// Copies as many of `bytes` into the region at `offset` as fit. Returns the number of bytes
    /// copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        self.memory().write(offset, bytes)
    }

    /// Copies into `bytes` from the region at `offset`, up to the end of the region; the rest of
    /// `bytes` stays unchanged. Returns the number of bytes copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        self.memory().read(offset, bytes)
    }

    /// Sets up to `length` bytes at `offset` to `byte`, up to the end of the region. Returns the
    /// number of bytes set.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) -> usize {
        self.memory().fill(offset, length, byte)
    }

    /// Reads the word at `offset` in one access, in native byte order, with acquire ordering: if
    /// the word is a flag that a peer has written after other data, later reads see that data.
    /// Returns `None` unless `offset` is a multiple of 8 and the word is in the region.
    pub fn read_u64(&self, offset: usize) -> Option<u64> {
        self.memory().read_u64(offset)
    }

    /// Writes the word at `offset` in one access, in native byte order, with release ordering.
    /// Returns `false`, and writes nothing, unless `offset` is a multiple of 8 and the word is in
    /// the region.
    pub fn write_u64(&self, offset: usize, value: u64) -> bool {
        self.memory().write_u64(offset, value)
    }
}
