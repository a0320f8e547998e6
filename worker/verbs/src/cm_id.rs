//! Ids of the connection manager. Each listener, connect request and connection has an id
//! (`rdma_cm_id`). Each id has an event channel of its own, so that threads can wait for different
//! connections.
//!
//! Conversion of socket addresses to `sockaddr`.

use crate::device::{Context, ManagerDevices, is_readable, set_nonblocking};
use crate::error::{Verb, VerbsError};
use crate::fork;
use rdma_sys::{
    ibv_context, ibv_qp, rdma_cm_event, rdma_cm_event_type as event_type, rdma_cm_id,
    rdma_event_channel, rdma_port_space,
};
use rlaunch_sys::ForkGeneration;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Instant;

/// Values of `RDMA_OPTION_ID` and of its option `RDMA_OPTION_ID_TOS`. The bindings do not have
/// these constants, because they belong to anonymous enums.
const OPTION_ID: i32 = 0;
const OPTION_ID_TOS: i32 = 0;

/// Largest length of private data, in bytes, that all kinds of devices support. InfiniBand supports
/// the least: its connect request has room for this many bytes behind librdmacm's own header.
pub const MAX_PRIVATE_DATA: usize = 56;

/// Owned `rdma_cm_id` and its event channel.
#[derive(Debug)]
pub(crate) struct CmId {
    id: NonNull<rdma_cm_id>,
    channel: Channel,
    /// Addresses of the connection, for errors: `10.0.0.1 to 10.0.0.2:7`.
    addresses: String,
    /// Process that created the id.
    created_in: ForkGeneration,
}

#[derive(Debug)]
struct Channel(NonNull<rdma_event_channel>, ForkGeneration);

// SAFETY: librdmacm locks what threads share, and each id is destroyed by its only owner.
unsafe impl Send for CmId {}

// SAFETY: as above.
unsafe impl Sync for CmId {}

impl Channel {
    fn create(addresses: &str) -> Result<Channel, VerbsError> {
        // librdmacm opens all devices when the first channel is created.
        fork::initialize();
        // SAFETY: rdma_create_event_channel(3) has no precondition.
        let channel = unsafe { rdma_sys::rdma_create_event_channel() };
        let failed = || VerbsError::last_os_error(Verb::CreateId, addresses);
        let channel = NonNull::new(channel).ok_or_else(failed)?;
        let channel = Channel(channel, ForkGeneration::current());
        set_nonblocking(channel.fd()).map_err(|_| failed())?;
        Ok(channel)
    }

    fn fd(&self) -> i32 {
        // SAFETY: the channel is alive, and its descriptor never changes.
        unsafe { self.0.as_ref() }.fd
    }

    /// Waits for the next event, which the caller must acknowledge; `None` if none arrives before
    /// the deadline.
    fn next(&self, deadline: Instant) -> io::Result<Option<NonNull<rdma_cm_event>>> {
        while is_readable(self.fd(), deadline)? {
            let mut event = null_mut();
            // SAFETY: the channel is alive; `event` has room for a pointer.
            let code = unsafe { rdma_sys::rdma_get_cm_event(self.0.as_ptr(), &raw mut event) };
            if code == 0 {
                return Ok(NonNull::new(event));
            }
            match io::Error::last_os_error() {
                // Another thread took the event.
                error if error.kind() == io::ErrorKind::WouldBlock => {}
                error => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.1.is_inherited() {
            return;
        }
        // SAFETY: the channel was created once and is destroyed only here, after the id that used
        // it.
        unsafe { rdma_sys::rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

/// Contents of an event of the expected type.
pub(crate) struct Event {
    /// Id that the event belongs to; for a connect request, a new id for that connection.
    pub(crate) id: Option<NonNull<rdma_cm_id>>,
    /// Private data of the peer, up to [`MAX_PRIVATE_DATA`] bytes.
    pub(crate) peer_data: Vec<u8>,
}

impl CmId {
    pub(crate) fn create(addresses: String) -> Result<CmId, VerbsError> {
        let channel = Channel::create(&addresses)?;
        let mut id = null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        let channel_pointer = channel.0.as_ptr();
        // SAFETY: the channel is alive and will be owned by the id; `id` has room for a pointer.
        let code =
            unsafe { rdma_sys::rdma_create_id(channel_pointer, &raw mut id, null_mut(), space) };
        match NonNull::new(id).filter(|_| code == 0) {
            Some(id) => Ok(CmId { id, channel, addresses, created_in: ForkGeneration::current() }),
            None => Err(VerbsError::last_os_error(Verb::CreateId, &addresses)),
        }
    }

    /// Takes ownership of the id of a connect request, and moves the id to an event channel of its
    /// own.
    pub(crate) fn adopt(id: NonNull<rdma_cm_id>, addresses: &str) -> Result<CmId, VerbsError> {
        let channel = Channel::create(addresses)?;
        // SAFETY: both are alive; the event that carried the id has been acknowledged.
        let code = unsafe { rdma_sys::rdma_migrate_id(id.as_ptr(), channel.0.as_ptr()) };
        let adopted = CmId {
            id,
            channel,
            addresses: addresses.to_owned(),
            created_in: ForkGeneration::current(),
        };
        adopted.check(Verb::CreateId, code)?;
        Ok(adopted)
    }

    pub(crate) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    /// Returns the opened device that the id uses; null until the id's address is bound or
    /// resolved.
    pub(crate) fn verbs(&self) -> *mut ibv_context {
        // SAFETY: the id is alive.
        unsafe { self.id.as_ref() }.verbs
    }

    /// Returns the queue pair; `None` until `rdma_create_qp` has created it.
    pub(crate) fn queue_pair(&self) -> Option<NonNull<ibv_qp>> {
        // SAFETY: the id is alive.
        NonNull::new(unsafe { self.id.as_ref() }.qp)
    }

    pub(crate) fn addresses(&self) -> &str {
        &self.addresses
    }

    pub(crate) fn check(&self, verb: Verb, code: i32) -> Result<(), VerbsError> {
        if code == 0 { Ok(()) } else { Err(VerbsError::last_os_error(verb, &self.addresses)) }
    }

    /// Returns the device that the id uses, which librdmacm has opened. Fails with ENODEV until the
    /// id's address is bound or resolved.
    pub(crate) fn context(&self) -> Result<Arc<Context>, VerbsError> {
        match NonNull::new(self.verbs()) {
            Some(context) => ManagerDevices::context_of(context, &self.addresses),
            None => Err(VerbsError::from_errno(Verb::BindAddr, &self.addresses, libc::ENODEV)),
        }
    }

    /// Returns the port that the id is bound to.
    pub(crate) fn port(&self) -> u16 {
        // SAFETY: the id is alive and bound, so its local address does not change any more.
        let id = unsafe { self.id.as_ref() };
        // SAFETY: IPv4 and IPv6 addresses have the port at the same offset; in other addresses it
        // is plain bytes.
        u16::from_be(unsafe { id.route.addr.src_addr_union.src_sin.sin_port })
    }

    /// Sets the TOS byte of the connection's packets to `class`. If `class` is 0, keeps the
    /// system's default.
    pub(crate) fn set_type_of_service(&self, mut class: u8) -> Result<(), VerbsError> {
        if class == 0 {
            return Ok(());
        }
        let value = (&raw mut class).cast();
        // SAFETY: the id is alive; the option has one byte, which lives until the call returns.
        let code =
            unsafe { rdma_sys::rdma_set_option(self.as_ptr(), OPTION_ID, OPTION_ID_TOS, value, 1) };
        self.check(Verb::SetOption, code)
    }

    /// Waits for an event, which must be of type `wanted`. `verb` is the call that causes the
    /// event, for errors. Fails with [`VerbsError::TimedOut`] at the deadline.
    pub(crate) fn expect(
        &self,
        wanted: event_type::Type,
        verb: Verb,
        deadline: Instant,
    ) -> Result<Event, VerbsError> {
        let timed_out = || VerbsError::TimedOut { verb, addresses: self.addresses.clone() };
        self.next(wanted, verb, deadline)?.ok_or_else(timed_out)
    }

    /// Waits for an event, which must be of type `wanted`; `None` if none arrives before the
    /// deadline.
    pub(crate) fn next(
        &self,
        wanted: event_type::Type,
        verb: Verb,
        deadline: Instant,
    ) -> Result<Option<Event>, VerbsError> {
        let next = self.channel.next(deadline);
        let next = next.map_err(|source| VerbsError::from_io(verb, &self.addresses, source))?;
        let Some(event) = next else { return Ok(None) };
        let contents = self.read(event, wanted, verb);
        // SAFETY: the event came from rdma_get_cm_event and is acknowledged once; no pointer into
        // it is kept.
        unsafe { rdma_sys::rdma_ack_cm_event(event.as_ptr()) };
        contents.map(Some)
    }

    /// Copies the contents of an event of type `wanted`. Fails if the event is of another type.
    fn read(
        &self,
        event: NonNull<rdma_cm_event>,
        wanted: event_type::Type,
        verb: Verb,
    ) -> Result<Event, VerbsError> {
        // SAFETY: the event is alive until the caller acknowledges it.
        let event = unsafe { event.as_ref() };
        if event.event != wanted {
            let event_name = name_of(event.event);
            let source = cause(event.event, event.status);
            return Err(VerbsError::UnexpectedEvent {
                verb,
                addresses: self.addresses.clone(),
                event_name,
                source,
            });
        }
        // SAFETY: every event of RDMA_PS_TCP has connection parameters, which are zeros if there
        // are none.
        let parameters = unsafe { event.param.conn };
        let mut peer_data = Vec::new();
        if let Some(first) = NonNull::new(parameters.private_data.cast_mut().cast::<u8>()) {
            let length = usize::from(parameters.private_data_len).min(MAX_PRIVATE_DATA);
            // SAFETY: the pointer is to `private_data_len` bytes of the event, which is alive.
            peer_data.extend(unsafe { std::slice::from_raw_parts(first.as_ptr(), length) });
        }
        Ok(Event { id: NonNull::new(event.id), peer_data })
    }
}

/// Converts the status of an event to an error. The status is an error number, which some devices
/// negate. There is one exception: the positive status of a rejection on InfiniBand or RoCE is a
/// reason code (table "REJ Reason Codes" of the InfiniBand specification).
fn cause(event: event_type::Type, status: i32) -> io::Error {
    const NO_SUCH_SERVICE: i32 = 8;
    const CONSUMER_REJECT: i32 = 28;
    if event != event_type::RDMA_CM_EVENT_REJECTED || status <= 0 {
        return io::Error::from_raw_os_error(status.saturating_abs());
    }
    match status {
        NO_SUCH_SERVICE => io::Error::from_raw_os_error(libc::ECONNREFUSED),
        CONSUMER_REJECT => io::Error::other("rejected by the peer's program"),
        reason => io::Error::other(format!("reason {reason}")),
    }
}

/// Returns the name of an event type, like `RDMA_CM_EVENT_REJECTED`.
fn name_of(event: event_type::Type) -> String {
    // SAFETY: any number is allowed; unknown ones have a text as well.
    let text = unsafe { rdma_sys::rdma_event_str(event) };
    if text.is_null() {
        return format!("event {event}");
    }
    // SAFETY: the text is a constant string that ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl AsFd for CmId {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive for as long as it is borrowed, and the descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if self.created_in.is_inherited() {
            return;
        }
        if self.queue_pair().is_some() {
            // SAFETY: the id is alive; the call is harmless if it is not connected.
            unsafe { rdma_sys::rdma_disconnect(self.as_ptr()) };
            // SAFETY: the queue pair was created by rdma_create_qp and is destroyed only here.
            unsafe { rdma_sys::rdma_destroy_qp(self.as_ptr()) };
        }
        // SAFETY: the id was created once and is destroyed only here; all its events are
        // acknowledged.
        if unsafe { rdma_sys::rdma_destroy_id(self.as_ptr()) } != 0 {
            tracing::warn!(addresses = self.addresses, "rdma_destroy_id failed");
        }
    }
}

/// Socket address as a `sockaddr_in` or `sockaddr_in6`.
pub(crate) struct SocketAddress(libc::sockaddr_storage);

impl SocketAddress {
    pub(crate) fn new(address: SocketAddr) -> SocketAddress {
        let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let pointer = storage.as_mut_ptr();
        match address {
            SocketAddr::V4(v4) => {
                let octets = v4.ip().octets();
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(octets) },
                    sin_zero: [0; 8],
                };
                // SAFETY: `sockaddr_storage` is large enough and aligned for every kind of address.
                unsafe { pointer.cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: `sockaddr_storage` is large enough and aligned for every kind of address.
                unsafe { pointer.cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        // SAFETY: the storage consists of integers, and was zeroed before the address was written.
        SocketAddress(unsafe { storage.assume_init() })
    }

    pub(crate) fn as_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_to_reject_are_no_errnos() {
        let rejected = |status| cause(event_type::RDMA_CM_EVENT_REJECTED, status);
        assert_eq!(rejected(8).raw_os_error(), Some(libc::ECONNREFUSED));
        assert_eq!(rejected(-libc::ECONNREFUSED).raw_os_error(), Some(libc::ECONNREFUSED));
        assert_eq!(rejected(28).to_string(), "rejected by the peer's program");
        assert_eq!(rejected(10).to_string(), "reason 10");
        let unreachable = cause(event_type::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
        assert_eq!(unreachable.raw_os_error(), Some(libc::ETIMEDOUT));
    }

    #[test]
    fn addresses_are_written_as_c_has_them() {
        let mut v4 = SocketAddress::new("10.1.2.3:4711".parse().unwrap());
        // SAFETY: an IPv4 address was written there.
        let raw = unsafe { v4.as_ptr().cast::<libc::sockaddr_in>().read() };
        assert_eq!(i32::from(raw.sin_family), libc::AF_INET);
        assert_eq!(raw.sin_port.to_ne_bytes(), 4711_u16.to_be_bytes());
        assert_eq!(raw.sin_addr.s_addr.to_ne_bytes(), [10, 1, 2, 3]);
        let mut v6 = SocketAddress::new("[fd00::1]:80".parse().unwrap());
        // SAFETY: an IPv6 address was written there.
        let raw = unsafe { v6.as_ptr().cast::<libc::sockaddr_in6>().read() };
        assert_eq!((raw.sin6_addr.s6_addr[0], raw.sin6_addr.s6_addr[15]), (0xfd, 1));
    }
}
