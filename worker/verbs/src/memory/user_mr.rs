//! Memory of the program's, lent to a device for a time.

use super::protection_domain::ProtectionDomain;
use super::registration::{MrSlice, Registration};
use crate::error::{Verb, VerbsError};
use rdma_sys::ibv_access_flags;
use rlaunch_lock::PinnedBuffer;
use std::sync::Arc;

/// Memory that somebody has lent, registered until this is dropped.
#[derive(Debug)]
pub struct UserMr(Registration<PinnedBuffer>);

impl UserMr {
    /// Registers all of it: what may be written to for local use and peers' writes, the rest to be
    /// read from here alone. EINVAL where there is none.
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        held: PinnedBuffer,
    ) -> Result<UserMr, VerbsError> {
        if held.length() == 0 {
            let device = domain.context().name();
            return Err(VerbsError::code(Verb::RegMr, device, libc::EINVAL));
        }
        let access =
            ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        Registration::make(domain, held, access).map(UserMr)
    }

    /// Where peers find it.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// By which peers may.
    pub fn rkey(&self) -> u32 {
        self.0.rkey()
    }

    /// Whether peers may.
    pub fn is_writable(&self) -> bool {
        self.0.memory().is_writable()
    }

    /// Some of its bytes.
    pub fn slice(&self, offset: usize, length: usize) -> Result<MrSlice<'_>, VerbsError> {
        self.0.slice(offset, length)
    }
}
