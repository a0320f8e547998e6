//! Contexts of devices that librdmacm has opened for its connections.

use super::{Context, Device};
use crate::error::{Verb, VerbsError};
use crate::fork;
use rdma_sys::ibv_context;
use rlaunch_sys::ForkGeneration;
use std::ptr::NonNull;
use std::sync::Arc;

/// Reference to all devices that librdmacm has opened so far. While such a reference exists,
/// librdmacm closes none of these devices, not even a device that was unplugged
/// (rdma_get_devices(3)). The id of a connection (`rdma_cm_id`) keeps its own device open only
/// until the id is destroyed. That is too early, because completion queues and memory outlive ids.
#[derive(Debug)]
pub(crate) struct ManagerDevices {
    list: NonNull<*mut ibv_context>,
    count: usize,
    created_in: ForkGeneration,
}

// SAFETY: the list is never written after librdmacm made it, and is freed once, by its owner.
unsafe impl Send for ManagerDevices {}
// SAFETY: as above; reading it from several threads changes nothing.
unsafe impl Sync for ManagerDevices {}

impl ManagerDevices {
    /// Makes a reference to the devices that are open now. `addresses` names the connection in
    /// errors.
    fn open(addresses: &str) -> Result<ManagerDevices, VerbsError> {
        fork::initialize();
        let mut count = 0;
        // SAFETY: `count` is an int that lives until the call returns.
        let list = unsafe { rdma_sys::rdma_get_devices(&raw mut count) };
        let list = NonNull::new(list)
            .ok_or_else(|| VerbsError::last_os_error(Verb::GetDevices, addresses))?;
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

    /// Wraps the context of an id. The id must exist during the call, so that the device stays
    /// open. `addresses` names the connection in errors.
    pub(crate) fn context_of(
        context: NonNull<ibv_context>,
        addresses: &str,
    ) -> Result<Arc<Context>, VerbsError> {
        let opened = ManagerDevices::open(addresses)?;
        if !opened.contexts().any(|found| found == context) {
            return Err(VerbsError::from_errno(Verb::BindAddr, addresses, libc::ENODEV));
        }
        // SAFETY: `opened` holds the device, so it is open.
        let device = unsafe { context.as_ref() }.device;
        // SAFETY: the device is alive, as above.
        let name = unsafe { Device::name_of(device) };
        Ok(Arc::new(Context::from_manager(context, name, opened)))
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
