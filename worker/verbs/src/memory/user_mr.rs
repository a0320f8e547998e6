//! Memory of the application that is registered for a time.

use super::protection_domain::ProtectionDomain;
use super::registration::{MrSlice, Registration};
use crate::error::{Verb, VerbsError};
use rdma_sys::ibv_access_flags;
use rlaunch_lock::PinnedBuffer;
use std::sync::Arc;

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
