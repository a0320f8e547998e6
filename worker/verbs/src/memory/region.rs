//! Memory that devices, and peers through them, may read and write.

use super::buffer::VolatileBuffer;
use super::protection_domain::ProtectionDomain;
use super::registration::{MrSlice, Registration};
use crate::error::{Verb, VerbsError};
use rdma_sys::ibv_access_flags;
use std::sync::Arc;

/// Registered memory, zeros at first.
///
/// A peer may write to it at any time, so there is never a reference to it: [`MemoryRegion::read`]
/// and [`MemoryRegion::write`] copy, by words of eight bytes where they are aligned.
#[derive(Debug)]
pub struct MemoryRegion(Registration<VolatileBuffer>);

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
        let memory = VolatileBuffer::allocate(size).map_err(too_large)?;
        Registration::make(domain, memory, access).map(MemoryRegion)
    }

    /// In bytes.
    pub fn size(&self) -> usize {
        self.memory().size()
    }

    pub(crate) fn memory(&self) -> &VolatileBuffer {
        self.0.memory()
    }

    /// Where peers find it.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// By which peers may.
    pub fn rkey(&self) -> u32 {
        self.0.rkey()
    }

    /// Some of its bytes.
    pub fn slice(&self, offset: usize, length: usize) -> Result<MrSlice<'_>, VerbsError> {
        self.0.slice(offset, length)
    }

    /// Copies `bytes` to `offset`; what would lie outside is left out. Returns how many were copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        self.memory().write(offset, bytes)
    }

    /// Copies from `offset` to `bytes`; what would lie outside stays as it is. Returns how many were
    /// copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        self.memory().read(offset, bytes)
    }

    /// Sets `length` bytes from `offset` to `byte`; what would lie outside is left out. Returns how
    /// many were set.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) -> usize {
        self.memory().fill(offset, length, byte)
    }

    /// The word at `offset`, in the machine's byte order and in one access, as for a flag that a peer
    /// writes: what is read later was not read before it. `None` when `offset` is no multiple of
    /// eight or lies outside.
    pub fn read_u64(&self, offset: usize) -> Option<u64> {
        self.memory().read_u64(offset)
    }

    /// Sets the word at `offset` in one access, after everything that was written before. False when
    /// `offset` is no multiple of eight or lies outside.
    pub fn write_u64(&self, offset: usize, value: u64) -> bool {
        self.memory().write_u64(offset, value)
    }
}
