//! RDMA devices: how they are listed and opened, attributes of their ports, asynchronous events; waiting
//! for the file descriptors on which events arrive.
//!
//! | file | contents |
//! |---|---|
//! | `mod` | [`Device`], and [`Context`], a device that this crate or librdmacm has opened |
//! | `port` | [`PortAttributes`], [`GidEntry`], [`Mtu`], [`DeviceEvent`] and [`Context::next_event`] |

mod port;
pub use port::{DeviceEvent, GidEntry, LinkLayer, Mtu, PortAttributes};

use crate::error::{Verb, VerbsError};
use crate::fork;
use rdma_sys::{ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr};
use rlaunch_sys::ForkGeneration;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

/// Directory where the kernel lists its devices, with or without a user-space driver.
const KERNEL_DEVICES: &str = "/sys/class/infiniband";

/// Device list made by `ibv_get_device_list`. It owns the devices in it.
#[derive(Debug)]
struct DeviceList(NonNull<*mut ibv_device>);

// SAFETY: the list is never written after libibverbs made it, and is freed once, by the last owner.
unsafe impl Send for DeviceList {}

// SAFETY: as above; reading it from several threads changes nothing.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the pointer came from ibv_get_device_list and is freed here alone.
        unsafe { rdma_sys::ibv_free_device_list(self.0.as_ptr()) }
    }
}

/// RDMA device that rdma-core has a driver for. It is not opened yet.
#[derive(Clone, Debug)]
pub struct Device {
    device: NonNull<ibv_device>,
    /// List that owns the device.
    _list: Arc<DeviceList>,
}

// SAFETY: the pointer leads into the list, which `_list` keeps alive and which is never written.
unsafe impl Send for Device {}

// SAFETY: as above.
unsafe impl Sync for Device {}

/// Lists the RDMA devices of this host that rdma-core has drivers for.
///
/// # Errors
///
/// [`VerbsError::NoLibrary`] if libibverbs cannot be loaded, [`VerbsError::NoKernelSupport`] if the
/// kernel module ib_uverbs is not loaded.
pub fn devices() -> Result<Vec<Device>, VerbsError> {
    fork::initialize();
    let mut count = 0;
    // SAFETY: `count` is an int that lives until the call returns, as ibv_get_device_list(3) asks.
    let list = unsafe { rdma_sys::ibv_get_device_list(&raw mut count) };
    let Some(list) = NonNull::new(list) else {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            // The loader of rdma-core sets this if libibverbs cannot be loaded.
            Some(libc::EOPNOTSUPP) => VerbsError::NoLibrary,
            Some(libc::ENOSYS) => VerbsError::NoKernelSupport,
            _ => VerbsError::last_os_error(Verb::GetDeviceList, "this machine"),
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
    /// Finds a device by name.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoProvider`] if the kernel has the device but rdma-core has no driver for it,
    /// [`VerbsError::NoDevice`] if the kernel does not have it; also the errors of [`devices`].
    pub fn by_name(name: &str) -> Result<Device, VerbsError> {
        let found = devices()?.into_iter().find(|device| device.name() == name);
        found.ok_or_else(|| {
            let device = name.to_owned();
            if Path::new(KERNEL_DEVICES).join(name).exists() {
                VerbsError::NoProvider { device }
            } else {
                VerbsError::NoDevice { device }
            }
        })
    }

    /// Returns the kernel's name for the device, like `mlx5_0`.
    pub fn name(&self) -> String {
        // SAFETY: the device is alive: `self._list` keeps the list that it is part of.
        unsafe { Device::name_of(self.device.as_ptr()) }
    }

    /// Returns the name of a device.
    ///
    /// # Safety
    ///
    /// `device` must point to a device that exists during the call.
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

    /// Opens the device (`/dev/infiniband/uverbs*`) for this process. Children that the process
    /// forks cannot use the returned context.
    pub fn open(&self) -> Result<Arc<Context>, VerbsError> {
        // SAFETY: the device is alive: `self._list` keeps the list that it is part of.
        let context = unsafe { rdma_sys::ibv_open_device(self.device.as_ptr()) };
        let name = self.name();
        match NonNull::new(context) {
            Some(context) => {
                let (opened_by, created_in) =
                    (OpenedBy::Handle(self.clone()), ForkGeneration::current());
                Ok(Arc::new(Context { context, name, opened_by, created_in }))
            }
            None => Err(VerbsError::last_os_error(Verb::OpenDevice, &name)),
        }
    }
}

/// Opened device (`ibv_context`).
#[derive(Debug)]
pub struct Context {
    context: NonNull<ibv_context>,
    name: String,
    opened_by: OpenedBy,
    /// Process that opened the device.
    created_in: ForkGeneration,
}

/// Function or library that opened a context, which decides how the context is closed.
#[derive(Debug)]
enum OpenedBy {
    /// Opened by [`Device::open`]; closed when the [`Context`] is dropped.
    Handle(#[expect(dead_code, reason = "held until the context is closed")] Device),
    /// Opened by librdmacm. librdmacm closes its contexts itself, but not while a
    /// [`ManagerDevices`] exists.
    ConnectionManager(
        #[expect(dead_code, reason = "held until the context is dropped")] ManagerDevices,
    ),
}

// SAFETY: libibverbs locks what it shares between threads: ibv_open_device(3) and the library's
// documentation call all of its functions thread safe.
unsafe impl Send for Context {}

// SAFETY: as above.
unsafe impl Sync for Context {}

/// Capacity limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of queue pairs.
    pub queue_pairs: u32,
    /// Largest number of outstanding work requests in one queue of a queue pair.
    pub requests: u32,
    /// Largest number of entries of a completion queue.
    pub completions: u32,
    /// Largest number of RDMA reads and atomics of the peer that a queue pair processes at the same
    /// time.
    pub reads_as_responder: u8,
    /// Largest number of RDMA reads and atomics that a queue pair may have outstanding at the peer.
    pub reads_as_initiator: u8,
}

impl Context {
    /// Returns the kernel's name for the device, like `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Wraps a context that librdmacm has opened. `opened` must include the context's device, so
    /// that the device stays open.
    pub(crate) fn from_manager(
        context: NonNull<ibv_context>,
        name: String,
        opened: ManagerDevices,
    ) -> Context {
        Context {
            context,
            name,
            opened_by: OpenedBy::ConnectionManager(opened),
            created_in: ForkGeneration::current(),
        }
    }

    /// Tells whether a parent process opened the device before it forked this process. If so, this
    /// process must not make calls on the device.
    pub(crate) fn is_inherited(&self) -> bool {
        self.created_in.is_inherited()
    }

    /// Fails with [`VerbsError::Inherited`] if [`Context::is_inherited`].
    #[inline]
    pub(crate) fn check_not_inherited(&self) -> Result<(), VerbsError> {
        if self.is_inherited() {
            Err(VerbsError::Inherited { device: self.name.clone() })
        } else {
            Ok(())
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    /// Queries the device's limits.
    pub fn limits(&self) -> Result<Limits, VerbsError> {
        self.check_not_inherited()?;
        let mut attributes = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and the attributes are room for what the call writes.
        let code = unsafe { rdma_sys::ibv_query_device(self.as_ptr(), attributes.as_mut_ptr()) };
        if code != 0 {
            return Err(VerbsError::from_errno(Verb::QueryDevice, &self.name, code));
        }
        // SAFETY: integers and arrays of them: zeros are a value, and the call has succeeded.
        let attributes = unsafe { attributes.assume_init() };
        let count = |number: i32| u32::try_from(number).unwrap_or(0);
        let few = |number: i32| u8::try_from(number.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(Limits {
            queue_pairs: count(attributes.max_qp),
            requests: count(attributes.max_qp_wr),
            completions: count(attributes.max_cqe),
            reads_as_responder: few(attributes.max_qp_rd_atom),
            reads_as_initiator: few(attributes.max_qp_init_rd_atom),
        })
    }

    /// Queries the current attributes of the port with this number, from 1.
    pub fn port(&self, number: u8) -> Result<PortAttributes, VerbsError> {
        self.check_not_inherited()?;
        let mut attributes = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the attributes are room for what the call writes.
        let code =
            unsafe { rdma_sys::ibv_query_port(self.as_ptr(), number, attributes.as_mut_ptr()) };
        if code != 0 {
            return Err(VerbsError::from_errno(Verb::QueryPort, &self.name, code));
        }
        // SAFETY: integers alone: zeros are a value where an old library writes less than all.
        Ok(PortAttributes::from_verbs(number, &unsafe { attributes.assume_init() }))
    }

    /// Queries an entry of a port's GID table; `None` if the entry is empty.
    pub fn gid(&self, port: u8, index: u16) -> Result<Option<GidEntry>, VerbsError> {
        self.check_not_inherited()?;
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
                Ok(GidEntry::from_verbs(index, &entry))
            }
            libc::ENODATA => Ok(None),
            code => Err(VerbsError::from_errno(Verb::QueryGid, &self.name, code)),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_inherited() || !matches!(self.opened_by, OpenedBy::Handle(_)) {
            return;
        }
        // SAFETY: the device was opened once and is closed only here. Objects made from the context
        // hold an `Arc` of it, so they are gone.
        if unsafe { rdma_sys::ibv_close_device(self.as_ptr()) } != 0 {
            tracing::warn!(device = self.name, "ibv_close_device failed");
        }
    }
}

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

/// Waits until `fd` is readable and returns `true`; returns `false` at the deadline. With a
/// deadline in the past the call does not wait.
pub(crate) fn is_readable(fd: RawFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
        let mut waited = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, which lives until the call returns.
        match unsafe { libc::poll(&raw mut waited, 1, left) } {
            0 => return Ok(false),
            1.. => return Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

/// Sets O_NONBLOCK on a descriptor, so that a read returns EAGAIN if another thread has taken the
/// event that poll(2) reported.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl(2) takes any number, and fails if it is not a descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn what_comes_is_noticed_and_what_does_not_is_not_waited_for() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let fd = other.as_raw_fd();
        assert!(!is_readable(fd, Instant::now()).unwrap());
        one.write_all(b"x").unwrap();
        assert!(is_readable(fd, Instant::now() + Duration::from_secs(5)).unwrap());
        set_nonblocking(fd).unwrap();
        let mut byte = [0; 1];
        other.read_exact(&mut byte).unwrap();
        let nothing = other.read(&mut byte).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert!(set_nonblocking(-1).is_err());
    }
}
