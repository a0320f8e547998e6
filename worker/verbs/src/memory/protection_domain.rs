//! Protection domains: a queue pair can access only memory registered in its own domain.

use crate::device::Context;
use crate::error::{Verb, VerbsError};
use rdma_sys::ibv_pd;
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
