//! Memory of the program's, lent to a device for a time.

use crate::error::{Verb, VerbsError};
use crate::protection_domain::ProtectionDomain;
use crate::registration::{Part, Registration};
use rdma_sys::ibv_access_flags;
use rlaunch_lock::PinnedBuffer;
use std::sync::Arc;

/// Memory that somebody has lent, registered until this is dropped.
#[derive(Debug)]
pub struct LentRegion(Registration<PinnedBuffer>);

impl LentRegion {
    /// Registers all of it: what may be written to for local use and peers' writes, the rest to be
    /// read from here alone. EINVAL where there is none.
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        buffer: PinnedBuffer,
    ) -> Result<LentRegion, VerbsError> {
        if buffer.length() == 0 {
            let device = domain.context().name();
            return Err(VerbsError::code(Verb::RegMr, device, libc::EINVAL));
        }
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        Registration::make(domain, buffer, access).map(LentRegion)
    }

    /// Where peers find it.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// By which peers may.
    pub fn remote_key(&self) -> u32 {
        self.0.remote_key()
    }

    /// Whether peers may.
    pub fn is_writable(&self) -> bool {
        self.0.memory().is_writable()
    }

    /// Some of its bytes.
    pub fn part(&self, offset: usize, length: usize) -> Result<Part<'_>, VerbsError> {
        self.0.part(offset, length)
    }
}
