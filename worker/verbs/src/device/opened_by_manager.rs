//! The devices that librdmacm has opened.

use super::{Context, Device};
use crate::error::{Verb, VerbsError};
use crate::fork;
use rdma_sys::ibv_context;
use rlaunch_sys::ForkGeneration;
use std::ptr::NonNull;
use std::sync::Arc;

/// A hold on all devices that librdmacm has opened so far. While there is one it closes none of them,
/// not even one that was unplugged (rdma_get_devices(3)); ids hold theirs alone, and only as long
/// as they live.
#[derive(Debug)]
pub(crate) struct ManagerDevices {
    list: NonNull<*mut ibv_context>,
    count: usize,
    created_in: ForkGeneration,
}

// SAFETY: nobody writes to the list after it was made, and it is freed once, by its owner.
unsafe impl Send for ManagerDevices {}
// SAFETY: as above; reading it from several threads changes nothing.
unsafe impl Sync for ManagerDevices {}

impl ManagerDevices {
    /// For `who` in errors.
    fn now(who: &str) -> Result<ManagerDevices, VerbsError> {
        fork::prepare();
        let mut count = 0;
        // SAFETY: `count` is an int that lives until the call returns.
        let list = unsafe { rdma_sys::rdma_get_devices(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(|| VerbsError::last(Verb::GetDevices, who))?;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(ManagerDevices { list, count, created_in: ForkGeneration::current() })
    }

    fn contexts(&self) -> impl Iterator<Item = NonNull<ibv_context>> {
        (0..self.count).filter_map(|index| {
            // SAFETY: the list has `count` entries, and `index` is below that.
            let entry = unsafe { self.list.add(index) };
            // SAFETY: the entry is initialised: rdma_get_devices filled all of them.
            NonNull::new(unsafe { *entry.as_ptr() })
        })
    }

    /// The device of an id that is alive, and holds it until this does. For `who` in errors.
    pub(crate) fn context_of(
        context: NonNull<ibv_context>,
        who: &str,
    ) -> Result<Arc<Context>, VerbsError> {
        let opened = ManagerDevices::now(who)?;
        if !opened.contexts().any(|found| found == context) {
            return Err(VerbsError::code(Verb::BindAddr, who, libc::ENODEV));
        }
        // SAFETY: this holds the device, so it is open.
        let device = unsafe { context.as_ref() }.device;
        // SAFETY: as above, and so the device is alive.
        let name = unsafe { Device::name_of(device) };
        Ok(Arc::new(Context::of_manager(context, name, opened)))
    }
}

impl Drop for ManagerDevices {
    fn drop(&mut self) {
        if !self.created_in.is_inherited() {
            // SAFETY: the list came from rdma_get_devices and is freed here alone.
            unsafe { rdma_sys::rdma_free_devices(self.list.as_ptr()) };
        }
    }
}
