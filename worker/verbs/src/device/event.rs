//! What a device says unasked: that a port went down, that it failed.

use super::Context;
use crate::error::{Verb, VerbsError};
use crate::poll::{is_readable, set_nonblocking};
use rdma_sys::{ibv_async_event, ibv_event_type};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// An asynchronous event of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// Data flows through this port, counted from 1.
    PortActive(u8),
    /// And no longer does.
    PortError(u8),
    /// Nothing of the device works any more.
    DeviceFatal,
    /// A queue pair has failed.
    QueuePairFatal,
    /// Any other, in rdma-core's words.
    Other(String),
}

impl Context {
    /// Waits for the next; `None` when there was none in time.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<DeviceEvent>, VerbsError> {
        let failed = || VerbsError::last(Verb::GetAsyncEvent, self.name());
        self.own()?;
        let (fd, deadline) = (self.event_fd(), Instant::now() + timeout);
        set_nonblocking(fd).map_err(|_| failed())?;
        if !is_readable(fd, deadline).map_err(|_| failed())? {
            return Ok(None);
        }
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the event is room for what the call writes.
        let code = unsafe { rdma_sys::ibv_get_async_event(self.as_ptr(), event.as_mut_ptr()) };
        if code != 0 {
            return match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(failed()),
            };
        }
        let said = read(&event);
        // SAFETY: it came from ibv_get_async_event and is acknowledged once.
        unsafe { rdma_sys::ibv_ack_async_event(event.as_mut_ptr()) };
        Ok(Some(said))
    }

    fn event_fd(&self) -> RawFd {
        // SAFETY: the context is open, and its descriptor never changes.
        unsafe { (*self.as_ptr()).async_fd }
    }
}

/// What an event says. Its type is read as a number: in Rust an enum may have no value that is not
/// one of its own, and kernels grow new ones.
fn read(event: &MaybeUninit<ibv_async_event>) -> DeviceEvent {
    let event = event.as_ptr();
    // SAFETY: the pointer is to the whole structure; no reference to the field is made.
    let kind = unsafe { &raw const (*event).event_type };
    // SAFETY: the field is an unsigned int of C, initialised.
    let kind = unsafe { kind.cast::<u32>().read() };
    // SAFETY: as above, of the union.
    let port = unsafe { &raw const (*event).element.port_num };
    // SAFETY: zeros at first, so it is a number whatever else was written there.
    let port = unsafe { port.read() };
    meaning(kind, u8::try_from(port).unwrap_or(0))
}

fn meaning(kind: u32, port: u8) -> DeviceEvent {
    use ibv_event_type::{
        IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL,
    };
    match KNOWN.into_iter().find(|known| *known as u32 == kind) {
        Some(IBV_EVENT_PORT_ACTIVE) => DeviceEvent::PortActive(port),
        Some(IBV_EVENT_PORT_ERR) => DeviceEvent::PortError(port),
        Some(IBV_EVENT_DEVICE_FATAL) => DeviceEvent::DeviceFatal,
        Some(IBV_EVENT_QP_FATAL) => DeviceEvent::QueuePairFatal,
        Some(known) => DeviceEvent::Other(name_of(known)),
        None => DeviceEvent::Other(format!("event {kind}")),
    }
}

/// Those that have a name.
const KNOWN: [ibv_event_type; 20] = [
    ibv_event_type::IBV_EVENT_CQ_ERR,
    ibv_event_type::IBV_EVENT_QP_FATAL,
    ibv_event_type::IBV_EVENT_QP_REQ_ERR,
    ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
    ibv_event_type::IBV_EVENT_COMM_EST,
    ibv_event_type::IBV_EVENT_SQ_DRAINED,
    ibv_event_type::IBV_EVENT_PATH_MIG,
    ibv_event_type::IBV_EVENT_PATH_MIG_ERR,
    ibv_event_type::IBV_EVENT_DEVICE_FATAL,
    ibv_event_type::IBV_EVENT_PORT_ACTIVE,
    ibv_event_type::IBV_EVENT_PORT_ERR,
    ibv_event_type::IBV_EVENT_LID_CHANGE,
    ibv_event_type::IBV_EVENT_PKEY_CHANGE,
    ibv_event_type::IBV_EVENT_SM_CHANGE,
    ibv_event_type::IBV_EVENT_SRQ_ERR,
    ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED,
    ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED,
    ibv_event_type::IBV_EVENT_CLIENT_REREGISTER,
    ibv_event_type::IBV_EVENT_GID_CHANGE,
    ibv_event_type::IBV_EVENT_WQ_FATAL,
];

/// `GID table change`
fn name_of(event: ibv_event_type) -> String {
    // SAFETY: any value is allowed: those that are not known have a text as well.
    let text = unsafe { rdma_sys::ibv_event_type_str(event) };
    if text.is_null() {
        return format!("event {}", event as u32);
    }
    // SAFETY: a constant string that ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_apart_and_new_ones_are_no_harm() {
        assert_eq!(meaning(9, 2), DeviceEvent::PortActive(2));
        assert_eq!(meaning(10, 1), DeviceEvent::PortError(1));
        assert_eq!(meaning(8, 0), DeviceEvent::DeviceFatal);
        assert_eq!(meaning(1, 0), DeviceEvent::QueuePairFatal);
        assert_eq!(meaning(4711, 0), DeviceEvent::Other("event 4711".into()));
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: integers and pointers: zeros are a value of each, and 0 is an event.
        let raw = unsafe { event.assume_init_mut() };
        raw.element.port_num = 3;
        raw.event_type = ibv_event_type::IBV_EVENT_PORT_ERR;
        assert_eq!(read(&event), DeviceEvent::PortError(3));
    }
}
