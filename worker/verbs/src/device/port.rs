//! Attributes of ports, and entries of their GID tables.
//!
//! Asynchronous events of a device, for example that a port goes down or the device fails.

use super::{Context, is_readable, set_nonblocking};
use crate::error::{Verb, VerbsError};
use rdma_sys::{ibv_async_event, ibv_event_type, ibv_gid_entry, ibv_port_attr, ibv_port_state};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Path MTU, the largest payload of a packet. InfiniBand and RoCE support only these sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

const MTUS: [(Mtu, u32); 5] = [
    (Mtu::B256, 256),
    (Mtu::B512, 512),
    (Mtu::B1024, 1024),
    (Mtu::B2048, 2048),
    (Mtu::B4096, 4096),
];

impl Mtu {
    /// Returns the size in bytes.
    pub fn bytes(self) -> u32 {
        256 << (self as u32)
    }

    /// Returns the largest MTU of at most `bytes` bytes; `None` if `bytes` is less than 256.
    pub fn up_to(bytes: u32) -> Option<Mtu> {
        MTUS.iter().rev().find(|(_, size)| *size <= bytes).map(|(mtu, _)| *mtu)
    }

    /// Returns the value of `enum ibv_mtu`.
    pub(crate) fn to_verbs(self) -> u32 {
        self as u32 + 1
    }

    fn from_verbs(number: u32) -> Option<Mtu> {
        MTUS.iter().map(|(mtu, _)| *mtu).find(|mtu| mtu.to_verbs() == number)
    }
}

/// Link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: peers in the same subnet are addressed by LID.
    InfiniBand,
    /// Ethernet (RoCE, iWARP): peers are addressed by GID.
    Ethernet,
}

/// Attributes of a port at the time of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Port number, from 1.
    pub number: u8,
    /// Whether the port's state is ACTIVE, so that it carries data.
    pub is_active: bool,
    /// Path MTU that is active on the port.
    pub mtu: Mtu,
    /// Local identifier in the InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    pub link_layer: LinkLayer,
    /// Number of entries of the GID table, empty ones included.
    pub gid_table_len: u16,
    /// Whether every packet needs a global route header, even within the subnet.
    pub grh_required: bool,
}

/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;

impl PortAttributes {
    pub(crate) fn from_verbs(number: u8, attributes: &ibv_port_attr) -> PortAttributes {
        let is_ethernet = attributes.link_layer == ETHERNET;
        PortAttributes {
            number,
            is_active: attributes.state == ibv_port_state::IBV_PORT_ACTIVE,
            mtu: Mtu::from_verbs(attributes.active_mtu).unwrap_or(Mtu::B256),
            lid: attributes.lid,
            link_layer: if is_ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
            gid_table_len: u16::try_from(attributes.gid_tbl_len).unwrap_or(0),
            grh_required: attributes.flags & GRH_REQUIRED != 0,
        }
    }
}

/// Entry of a GID table that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the GID table, from 0.
    pub index: u16,
    /// GID of the port. For RoCE it is the IPv6 address of the interface, or its IPv4 address as
    /// `::ffff:a.b.c.d`.
    pub value: Ipv6Addr,
    /// Whether packets with this GID are RoCE v2 (over UDP).
    pub is_roce_v2: bool,
    /// Index (`ifindex`) of the network interface that has the address; 0 if there is none.
    pub interface_index: u32,
}

/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;

impl GidEntry {
    /// Converts an entry; `None` if the entry is empty, that is, all zeros.
    pub(crate) fn from_verbs(index: u16, entry: &ibv_gid_entry) -> Option<GidEntry> {
        // SAFETY: both fields of the union are 16 bytes without padding, so reading bytes is valid.
        let raw = unsafe { entry.gid.raw };
        let value = Ipv6Addr::from(raw);
        let is_roce_v2 = entry.gid_type == ROCE_V2;
        let interface_index = entry.ndev_ifindex;
        (!value.is_unspecified()).then_some(GidEntry { index, value, is_roce_v2, interface_index })
    }
}

/// Asynchronous event of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The port with this number, from 1, became active: it carries data.
    PortActive(u8),
    /// The link of the port with this number, from 1, went down.
    PortError(u8),
    /// The device failed. None of its objects works from now on.
    DeviceFatal,
    /// A queue pair failed and entered the error state.
    QueuePairFatal,
    /// Another event, with rdma-core's text for it.
    Other(String),
}

impl Context {
    /// Waits for the next event of the device; `None` if none arrives before the timeout. With a
    /// timeout of zero the call does not wait. Several threads may wait; each event is returned to
    /// one of them.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<DeviceEvent>, VerbsError> {
        let failed = || VerbsError::last_os_error(Verb::GetAsyncEvent, self.name());
        self.check_not_inherited()?;
        let (fd, deadline) = (self.event_fd(), Instant::now() + timeout);
        set_nonblocking(fd).map_err(|_| failed())?;
        if !is_readable(fd, deadline).map_err(|_| failed())? {
            return Ok(None);
        }
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the context is open, and the event has room for what the call writes.
        let code = unsafe { rdma_sys::ibv_get_async_event(self.as_ptr(), event.as_mut_ptr()) };
        if code != 0 {
            return match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(failed()),
            };
        }
        let parsed = parse(&event);
        // SAFETY: the event came from ibv_get_async_event and is acknowledged once.
        unsafe { rdma_sys::ibv_ack_async_event(event.as_mut_ptr()) };
        Ok(Some(parsed))
    }

    fn event_fd(&self) -> RawFd {
        // SAFETY: the context is open, and its descriptor never changes.
        unsafe { (*self.as_ptr()).async_fd }
    }
}

/// Parses an event. Its type is read as an integer, because newer kernels report types that the
/// Rust enum of the bindings does not have, and such a value in an enum would be undefined
/// behaviour.
fn parse(event: &MaybeUninit<ibv_async_event>) -> DeviceEvent {
    let event = event.as_ptr();
    // SAFETY: the pointer is to the whole structure; no reference to the field is made.
    let kind = unsafe { &raw const (*event).event_type };
    // SAFETY: the field is an unsigned int of C, initialised.
    let kind = unsafe { kind.cast::<u32>().read() };
    // SAFETY: as above, of the union.
    let port = unsafe { &raw const (*event).element.port_num };
    // SAFETY: the event was zeroed, so the field is initialised whichever field of the union was
    // written.
    let port = unsafe { port.read() };
    classify(kind, u8::try_from(port).unwrap_or(0))
}

fn classify(kind: u32, port: u8) -> DeviceEvent {
    use ibv_event_type::{
        IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_FATAL,
    };
    match KNOWN.into_iter().find(|known| *known as u32 == kind) {
        Some(IBV_EVENT_PORT_ACTIVE) => DeviceEvent::PortActive(port),
        Some(IBV_EVENT_PORT_ERR) => DeviceEvent::PortError(port),
        Some(IBV_EVENT_DEVICE_FATAL) => DeviceEvent::DeviceFatal,
        Some(IBV_EVENT_QP_FATAL) => DeviceEvent::QueuePairFatal,
        Some(known) => DeviceEvent::Other(describe(known)),
        None => DeviceEvent::Other(format!("event {kind}")),
    }
}

/// All event types that the bindings have.
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

/// Returns rdma-core's text for an event type, like `GID table change`.
fn describe(event: ibv_event_type) -> String {
    // SAFETY: any value is allowed; unknown ones have a text as well.
    let text = unsafe { rdma_sys::ibv_event_type_str(event) };
    if text.is_null() {
        return format!("event {}", event as u32);
    }
    // SAFETY: the text is a constant string that ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_those_of_verbs() {
        assert_eq!(Mtu::B4096.bytes(), 4096);
        assert_eq!(Mtu::B256.to_verbs(), 1);
        assert_eq!(Mtu::up_to(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::up_to(9000), Some(Mtu::B4096));
        assert_eq!(Mtu::up_to(255), None);
        for (mtu, bytes) in MTUS {
            assert_eq!((mtu.bytes(), Mtu::from_verbs(mtu.to_verbs())), (bytes, Some(mtu)));
        }
        assert_eq!(Mtu::from_verbs(9), None);
    }

    #[test]
    fn events_are_told_apart_and_new_ones_are_no_harm() {
        assert_eq!(classify(9, 2), DeviceEvent::PortActive(2));
        assert_eq!(classify(10, 1), DeviceEvent::PortError(1));
        assert_eq!(classify(8, 0), DeviceEvent::DeviceFatal);
        assert_eq!(classify(1, 0), DeviceEvent::QueuePairFatal);
        assert_eq!(classify(4711, 0), DeviceEvent::Other("event 4711".into()));
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: integers and pointers: zeros are a value of each, and 0 is an event.
        let raw = unsafe { event.assume_init_mut() };
        raw.element.port_num = 3;
        raw.event_type = ibv_event_type::IBV_EVENT_PORT_ERR;
        assert_eq!(parse(&event), DeviceEvent::PortError(3));
    }
}
