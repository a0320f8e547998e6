//! Devices, and opened ones.

mod event;
mod opened_by_manager;
mod port;

pub use event::DeviceEvent;
pub(crate) use opened_by_manager::ManagerDevices;
pub use port::{GidEntry, LinkLayer, Mtu, PortAttributes};

use crate::error::{Verb, VerbsError};
use crate::fork;
use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr};
use rlaunch_sys::ForkGeneration;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Where the kernel lists the devices that it has, driven or not.
const KERNEL_DEVICES: &str = "/sys/class/infiniband";

/// The list that libibverbs made; its devices live as long.
#[derive(Debug)]
struct DeviceList(NonNull<*mut ibv_device>);

// SAFETY: the list is written by nobody after it was made, and freed once, by the last owner.
unsafe impl Send for DeviceList {}
// SAFETY: as above; reading it from several threads changes nothing.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the pointer came from ibv_get_device_list and is freed here alone.
        unsafe { rdma_sys::ibv_free_device_list(self.0.as_ptr()) }
    }
}

/// An RDMA device that rdma-core can drive.
#[derive(Clone, Debug)]
pub struct Device {
    device: NonNull<ibv_device>,
    /// Of which it is a part.
    _list: Arc<DeviceList>,
}

// SAFETY: what the pointer leads to belongs to the list, which this owns and nobody writes to.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The devices of this machine, or why there can be none.
pub fn devices() -> Result<Vec<Device>, VerbsError> {
    fork::prepare();
    let mut count = 0;
    // SAFETY: `count` is an int that lives until the call returns, as ibv_get_device_list(3) asks.
    let list = unsafe { rdma_sys::ibv_get_device_list(&raw mut count) };
    let Some(list) = NonNull::new(list) else {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            // What loads rdma-core says so when it could not.
            Some(libc::EOPNOTSUPP) => VerbsError::NoLibrary,
            Some(libc::ENOSYS) => VerbsError::NoKernelSupport,
            _ => VerbsError::last(Verb::GetDeviceList, "this machine"),
        });
    };
    let list = Arc::new(DeviceList(list));
    let count = usize::try_from(count).unwrap_or(0);
    let device = |index: usize| {
        // SAFETY: the list has `count` entries, and `index` is below that.
        let entry = unsafe { list.0.add(index) };
        // SAFETY: the entry is initialised: ibv_get_device_list filled all of them.
        let device = unsafe { *entry.as_ptr() };
        Some(Device { device: NonNull::new(device)?, _list: list.clone() })
    };
    Ok((0..count).filter_map(device).collect())
}

impl Device {
    /// The device of this name.
    pub fn by_name(name: &str) -> Result<Device, VerbsError> {
        let found = devices()?.into_iter().find(|device| device.name() == name);
        found.ok_or_else(|| {
            let device = name.to_owned();
            match Path::new(KERNEL_DEVICES).join(name).exists() {
                true => VerbsError::NoProvider { device },
                false => VerbsError::NoDevice { device },
            }
        })
    }

    /// `mlx5_0`.
    pub fn name(&self) -> String {
        // SAFETY: the device is alive: `self._list` keeps the list that it is part of.
        unsafe { Device::name_of(self.device.as_ptr()) }
    }

    /// Whether it takes the RDMA connection manager only: iWARP, and what behaves like it.
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: the device is alive, and these fields are written when it is made.
        let device = unsafe { self.device.as_ref() };
        device.node_type == rdma_sys::ibv_node_type::IBV_NODE_RNIC
            || device.transport_type == rdma_sys::ibv_transport_type::IBV_TRANSPORT_IWARP
    }

    /// `mlx5_0`, of a device that is alive.
    ///
    /// # Safety
    ///
    /// The device is alive.
    pub(crate) unsafe fn name_of(device: *mut ibv_device) -> String {
        // SAFETY: the caller's promise.
        let name = unsafe { rdma_sys::ibv_get_device_name(device) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: ibv_get_device_name returns a string that ends with a zero and is part of the
        // device, which is alive.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Opens it for use by this process.
    pub fn open(&self) -> Result<Arc<Context>, VerbsError> {
        // SAFETY: the device is alive: `self._list` keeps the list that it is part of.
        let context = unsafe { rdma_sys::ibv_open_device(self.device.as_ptr()) };
        let name = self.name();
        match NonNull::new(context) {
            Some(context) => {
                let (owner, created_in) =
                    (OpenedBy::Handle(self.clone()), ForkGeneration::current());
                Ok(Arc::new(Context { context, name, owner, created_in }))
            }
            None => Err(VerbsError::last(Verb::OpenDevice, &name)),
        }
    }
}

/// An opened device.
#[derive(Debug)]
pub struct Context {
    context: NonNull<ibv_context>,
    name: String,
    owner: OpenedBy,
    /// The process that opened it.
    created_in: ForkGeneration,
}

/// Who closes it.
#[derive(Debug)]
enum OpenedBy {
    /// Whoever opened it, of this device.
    Handle(#[expect(dead_code, reason = "held until the context is closed")] Device),
    /// librdmacm, which may close a device that was unplugged once nobody holds it.
    ConnectionManager(
        #[expect(dead_code, reason = "held until the context is dropped")] ManagerDevices,
    ),
}

// SAFETY: libibverbs locks what it shares between threads: ibv_open_device(3) and the library's
// documentation call all of its functions thread safe.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// How much a device can have of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Requests that one queue pair holds.
    pub requests: u32,
    /// Completions that one queue holds.
    pub completions: u32,
    /// Reads that a queue pair serves at once.
    pub reads_served: u8,
    /// Reads that a queue pair makes at once.
    pub reads_made: u8,
}

impl Context {
    /// `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One that librdmacm has opened, of those that `opened` holds.
    pub(crate) fn of_manager(
        context: NonNull<ibv_context>,
        name: String,
        opened: ManagerDevices,
    ) -> Context {
        Context {
            context,
            name,
            owner: OpenedBy::ConnectionManager(opened),
            created_in: ForkGeneration::current(),
        }
    }

    /// Whether it was opened by the process that forked this one: then it is not to be touched.
    pub(crate) fn is_inherited(&self) -> bool {
        self.created_in.is_inherited()
    }

    /// Fails where it was.
    #[inline]
    pub(crate) fn own(&self) -> Result<(), VerbsError> {
        match self.is_inherited() {
            false => Ok(()),
            true => Err(VerbsError::Inherited { device: self.name.clone() }),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// What it can have.
    pub fn limits(&self) -> Result<Limits, VerbsError> {
        self.own()?;
        let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the attributes are room for what the call writes.
        let code = unsafe { rdma_sys::ibv_query_device(self.as_ptr(), attributes.as_mut_ptr()) };
        if code != 0 {
            return Err(VerbsError::code(Verb::QueryDevice, &self.name, code));
        }
        // SAFETY: integers and arrays of them: zeros are a value, and the call has succeeded.
        let attributes = unsafe { attributes.assume_init() };
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let few = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(Limits {
            queue_pairs: count(attributes.max_qp),
            requests: count(attributes.max_qp_wr),
            completions: count(attributes.max_cqe),
            reads_served: few(attributes.max_qp_rd_atom),
            reads_made: few(attributes.max_qp_init_rd_atom),
        })
    }

    /// What a port, counted from 1, is at now.
    pub fn port(&self, number: u8) -> Result<PortAttributes, VerbsError> {
        self.own()?;
        let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the attributes are room for what the call writes.
        let code =
            unsafe { rdma_sys::ibv_query_port(self.as_ptr(), number, attributes.as_mut_ptr()) };
        if code != 0 {
            return Err(VerbsError::code(Verb::QueryPort, &self.name, code));
        }
        // SAFETY: integers alone: zeros are a value where an old library writes less than all.
        Ok(PortAttributes::of(number, &unsafe { attributes.assume_init() }))
    }

    /// An entry of a port's GID table; `None` for one that is empty.
    pub fn gid(&self, port: u8, index: u16) -> Result<Option<GidEntry>, VerbsError> {
        self.own()?;
        let mut entry = MaybeUninit::<ibv_gid_entry>::zeroed();
        // SAFETY: the context is open, and the entry is room for what the call writes.
        let code = unsafe {
            rdma_sys::ibv_query_gid_ex(
                self.as_ptr(),
                u32::from(port),
                u32::from(index),
                entry.as_mut_ptr(),
                0,
            )
        };
        match code {
            0 => {
                // SAFETY: integers alone, and the call has succeeded.
                let entry = unsafe { entry.assume_init() };
                Ok(GidEntry::of(index, &entry))
            }
            libc::ENODATA => Ok(None),
            code => Err(VerbsError::code(Verb::QueryGid, &self.name, code)),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_inherited() || !matches!(self.owner, OpenedBy::Handle(_)) {
            return;
        }
        // SAFETY: it was opened once and is closed here alone; what was made of it has an `Arc` of
        // this and is gone.
        if unsafe { rdma_sys::ibv_close_device(self.as_ptr()) } != 0 {
            tracing::warn!(device = self.name, "ibv_close_device failed");
        }
    }
}
