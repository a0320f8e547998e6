//! Memory of the program's, lent to a device for a time.

use crate::error::{Verb, VerbsError};
use crate::memory_region::Part;
use crate::protection_domain::ProtectionDomain;
use rdma_sys::{ibv_access_flags, ibv_mr};
use rlaunch_sys::Held;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that somebody has lent, registered until this is dropped.
#[derive(Debug)]
pub struct LentRegion {
    region: NonNull<ibv_mr>,
    /// Let go after the region, or never.
    held: ManuallyDrop<Held>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs is thread safe (see `Context`), and the region is given back by its one owner.
unsafe impl Send for LentRegion {}

impl LentRegion {
    /// Registers all of it: what may be written to for local use and peers' writes, the rest to be
    /// read from here alone. EINVAL where there is none.
    pub fn register(domain: &Arc<ProtectionDomain>, held: Held) -> Result<LentRegion, VerbsError> {
        let device = domain.context().name();
        let access = match held.is_writable() {
            true => {
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            }
            false => ibv_access_flags(0),
        };
        let access = i32::try_from(access.0).unwrap_or(0);
        if held.length() == 0 {
            return Err(VerbsError::code(Verb::RegMr, device, libc::EINVAL));
        }
        // SAFETY: `Held` keeps these bytes where they are, and theirs who lends them, until it is
        // dropped, which is after the region is given back. Devices write only to what may be
        // written to.
        let region = unsafe {
            rdma_sys::ibv_reg_mr(domain.as_ptr(), held.as_ptr().cast(), held.length(), access)
        };
        match NonNull::new(region) {
            Some(region) => {
                let (held, domain) = (ManuallyDrop::new(held), domain.clone());
                Ok(LentRegion { region, held, domain })
            }
            None => Err(VerbsError::last(Verb::RegMr, device)),
        }
    }

    /// Where peers find it.
    pub fn address(&self) -> u64 {
        self.held.as_ptr() as u64
    }

    /// By which peers may.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered until this is dropped, and the key never changes.
        unsafe { self.region.as_ref() }.rkey
    }

    /// Whether peers may.
    pub fn is_writable(&self) -> bool {
        self.held.is_writable()
    }

    /// Some of its bytes.
    pub fn part(&self, offset: usize, length: usize) -> Result<Part, VerbsError> {
        let size = self.held.length();
        let outside = || VerbsError::OutOfBounds { offset, length, size };
        let end = offset.checked_add(length).filter(|end| *end <= size);
        end.ok_or_else(outside)?;
        // SAFETY: the region is registered until this is dropped, and the key never changes.
        let local_key = unsafe { self.region.as_ref() }.lkey;
        let length = u32::try_from(length).map_err(|_| outside())?;
        Ok(Part { address: self.address() + offset as u64, length, local_key })
    }
}

impl Drop for LentRegion {
    fn drop(&mut self) {
        // SAFETY: it was registered once and is given back here alone; from then on no device
        // touches the memory.
        let code = unsafe { rdma_sys::ibv_dereg_mr(self.region.as_ptr()) };
        if code != 0 {
            // Whoever has lent it is not told that it is over, and ends the process.
            let device = self.domain.context().name();
            tracing::error!(device, code, "ibv_dereg_mr failed: lent memory is still in use");
            return;
        }
        // SAFETY: dropped here alone, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.held) };
    }
}
