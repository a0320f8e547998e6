//! The connection manager's ids, each with a channel of its own on which its events come.

mod socket_address;

pub(crate) use socket_address::SocketAddress;

use crate::device::{Context, ManagerDevices};
use crate::error::{Verb, VerbsError};
use crate::fork;
use crate::poll::{is_readable, set_nonblocking};
use rdma_sys::{
    ibv_context, ibv_qp, rdma_cm_event, rdma_cm_event_type as event_type, rdma_cm_id,
    rdma_event_channel, rdma_port_space,
};
use rlaunch_sys::ForkGeneration;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Instant;

/// `RDMA_OPTION_ID` and `RDMA_OPTION_ID_TOS`, from an enum of the header that has no name.
const OPTION_ID: i32 = 0;
const OPTION_ID_TOS: i32 = 0;

/// How many bytes of its own an end can say with the connection: what InfiniBand leaves of a
/// request's private data, the least of all that there is.
pub const MAX_PRIVATE_DATA: usize = 56;

/// A channel on which events come, and the id whose they are.
#[derive(Debug)]
pub(crate) struct Id {
    id: NonNull<rdma_cm_id>,
    channel: Channel,
    /// For errors.
    addresses: String,
    /// The process that made it.
    created_in: ForkGeneration,
}

#[derive(Debug)]
struct Channel(NonNull<rdma_event_channel>, ForkGeneration);

// SAFETY: librdmacm locks what threads share, and each id is destroyed by its one owner.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Channel {
    fn create(addresses: &str) -> Result<Channel, VerbsError> {
        // librdmacm opens all devices now.
        fork::prepare();
        // SAFETY: rdma_create_event_channel(3) has no requirement.
        let channel = unsafe { rdma_sys::rdma_create_event_channel() };
        let failed = || VerbsError::last(Verb::CreateId, addresses);
        let channel = NonNull::new(channel).ok_or_else(failed)?;
        let channel = Channel(channel, ForkGeneration::current());
        set_nonblocking(channel.fd()).map_err(|_| failed())?;
        Ok(channel)
    }

    fn fd(&self) -> i32 {
        // SAFETY: the channel is alive, and its descriptor never changes.
        unsafe { self.0.as_ref() }.fd
    }

    /// The next event, to be acknowledged; `None` when none came before the deadline.
    fn next(&self, deadline: Instant) -> io::Result<Option<NonNull<rdma_cm_event>>> {
        while is_readable(self.fd(), deadline)? {
            let mut event = null_mut();
            // SAFETY: the channel is alive; `event` is room for the pointer.
            let code = unsafe { rdma_sys::rdma_get_cm_event(self.0.as_ptr(), &raw mut event) };
            if code == 0 {
                return Ok(NonNull::new(event));
            }
            match io::Error::last_os_error() {
                // Another thread was quicker.
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
        // SAFETY: it was made once and is destroyed here alone, after the id that used it.
        unsafe { rdma_sys::rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

/// An event that was as expected.
pub(crate) struct Event {
    /// Of a request to connect: the id that was made for it.
    pub(crate) id: Option<NonNull<rdma_cm_id>>,
    /// What the peer says with it, at most [`MAX_PRIVATE_DATA`] bytes.
    pub(crate) said: Vec<u8>,
}

impl Id {
    pub(crate) fn create(addresses: String) -> Result<Id, VerbsError> {
        let channel = Channel::create(&addresses)?;
        let mut id = null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        let channel_pointer = channel.0.as_ptr();
        // SAFETY: the channel is alive and will be owned; `id` is room for the pointer.
        let code =
            unsafe { rdma_sys::rdma_create_id(channel_pointer, &raw mut id, null_mut(), space) };
        match NonNull::new(id).filter(|_| code == 0) {
            Some(id) => Ok(Id { id, channel, addresses, created_in: ForkGeneration::current() }),
            None => Err(VerbsError::last(Verb::CreateId, &addresses)),
        }
    }

    /// Takes over an id that came with a request, with a channel of its own.
    pub(crate) fn adopt(id: NonNull<rdma_cm_id>, addresses: &str) -> Result<Id, VerbsError> {
        let channel = Channel::create(addresses)?;
        // SAFETY: both are alive; the event that the id came with has been acknowledged.
        let code = unsafe { rdma_sys::rdma_migrate_id(id.as_ptr(), channel.0.as_ptr()) };
        let adopted = Id {
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

    /// Returns the opened device, null until the address is bound or resolved.
    pub(crate) fn verbs(&self) -> *mut ibv_context {
        // SAFETY: the id is alive.
        unsafe { self.id.as_ref() }.verbs
    }

    /// Returns the queue pair, once `rdma_create_qp` has created it.
    pub(crate) fn queue_pair(&self) -> Option<NonNull<ibv_qp>> {
        // SAFETY: the id is alive.
        NonNull::new(unsafe { self.id.as_ref() }.qp)
    }

    pub(crate) fn addresses(&self) -> &str {
        &self.addresses
    }

    pub(crate) fn check(&self, verb: Verb, code: i32) -> Result<(), VerbsError> {
        if code == 0 { Ok(()) } else { Err(VerbsError::last(verb, &self.addresses)) }
    }

    /// The device that the address belongs to, opened by librdmacm.
    pub(crate) fn context(&self) -> Result<Arc<Context>, VerbsError> {
        // SAFETY: the id is alive; the field is set once its address is known.
        let verbs = unsafe { self.id.as_ref() }.verbs;
        match NonNull::new(verbs) {
            Some(context) => ManagerDevices::context_of(context, &self.addresses),
            None => Err(VerbsError::code(Verb::BindAddr, &self.addresses, libc::ENODEV)),
        }
    }

    /// The port that it is bound to.
    pub(crate) fn port(&self) -> u16 {
        // SAFETY: the id is alive, and bound: its own address does not change any more.
        let id = unsafe { self.id.as_ref() };
        // SAFETY: addresses of both families have their port in the same place, and it is plain
        // bytes in any other.
        u16::from_be(unsafe { id.route.addr.src_addr_union.src_sin.sin_port })
    }

    /// The TOS byte of what it sends; 0 is how it is anyway.
    pub(crate) fn set_type_of_service(&self, mut class: u8) -> Result<(), VerbsError> {
        if class == 0 {
            return Ok(());
        }
        let value = (&raw mut class).cast();
        // SAFETY: the id is alive; the option is one byte, which lives until the call returns.
        let code =
            unsafe { rdma_sys::rdma_set_option(self.as_ptr(), OPTION_ID, OPTION_ID_TOS, value, 1) };
        self.check(Verb::SetOption, code)
    }

    /// Waits for one event and takes no other.
    pub(crate) fn expect(
        &self,
        wanted: event_type::Type,
        verb: Verb,
        deadline: Instant,
    ) -> Result<Event, VerbsError> {
        let late = || VerbsError::TimedOut { verb, addresses: self.addresses.clone() };
        self.next(wanted, verb, deadline)?.ok_or_else(late)
    }

    /// The same, and `None` when none came.
    pub(crate) fn next(
        &self,
        wanted: event_type::Type,
        verb: Verb,
        deadline: Instant,
    ) -> Result<Option<Event>, VerbsError> {
        let next = self.channel.next(deadline);
        let next = next.map_err(|source| VerbsError::of(verb, &self.addresses, source))?;
        let Some(event) = next else { return Ok(None) };
        let taken = self.read(event, wanted, verb);
        // SAFETY: it came from rdma_get_cm_event and is acknowledged once; nothing of it is kept.
        unsafe { rdma_sys::rdma_ack_cm_event(event.as_ptr()) };
        taken.map(Some)
    }

    /// What an event says, copied.
    fn read(
        &self,
        event: NonNull<rdma_cm_event>,
        wanted: event_type::Type,
        verb: Verb,
    ) -> Result<Event, VerbsError> {
        // SAFETY: the event is alive until it is acknowledged, which the caller does afterwards.
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
        // SAFETY: every event of RDMA_PS_TCP has connection parameters, zeros where none were said.
        let parameters = unsafe { event.param.conn };
        let mut said = Vec::new();
        if let Some(first) = NonNull::new(parameters.private_data.cast_mut().cast::<u8>()) {
            let length = usize::from(parameters.private_data_len).min(MAX_PRIVATE_DATA);
            // SAFETY: the pointer leads to `private_data_len` bytes of the event, which is alive.
            said.extend(unsafe { std::slice::from_raw_parts(first.as_ptr(), length) });
        }
        Ok(Event { id: NonNull::new(event.id), said })
    }
}

/// What an event's status means: an error's number, by some devices with a minus, but of a rejection
/// a reason of InfiniBand's (its specification's table of them), which iWARP has no word for.
fn cause(event: event_type::Type, status: i32) -> io::Error {
    const NO_SUCH_SERVICE: i32 = 8;
    const BY_THE_PROGRAM: i32 = 28;
    if event != event_type::RDMA_CM_EVENT_REJECTED || status <= 0 {
        return io::Error::from_raw_os_error(status.saturating_abs());
    }
    match status {
        NO_SUCH_SERVICE => io::Error::from_raw_os_error(libc::ECONNREFUSED),
        BY_THE_PROGRAM => io::Error::other("the peer's program did not want it"),
        reason => io::Error::other(format!("reason {reason}")),
    }
}

/// `RDMA_CM_EVENT_REJECTED`
fn name_of(event: event_type::Type) -> String {
    // SAFETY: any number is allowed: those that are not known have a text as well.
    let text = unsafe { rdma_sys::rdma_event_str(event) };
    if text.is_null() {
        return format!("event {event}");
    }
    // SAFETY: a constant string that ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl AsFd for Id {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive for as long as it is borrowed, and the descriptor with it.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.created_in.is_inherited() {
            return;
        }
        // SAFETY: the id is alive; the field says whether there is a pair.
        if !unsafe { self.id.as_ref() }.qp.is_null() {
            // SAFETY: the id is alive; whether or not it is connected, the call does no harm.
            unsafe { rdma_sys::rdma_disconnect(self.as_ptr()) };
            // SAFETY: the pair was made by rdma_create_qp and is destroyed here alone.
            unsafe { rdma_sys::rdma_destroy_qp(self.as_ptr()) };
        }
        // SAFETY: it was made once and is destroyed here alone; every event of it was acknowledged.
        if unsafe { rdma_sys::rdma_destroy_id(self.as_ptr()) } != 0 {
            tracing::warn!(addresses = self.addresses, "rdma_destroy_id failed");
        }
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
        assert_eq!(rejected(28).to_string(), "the peer's program did not want it");
        assert_eq!(rejected(10).to_string(), "reason 10");
        let unreachable = cause(event_type::RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
        assert_eq!(unreachable.raw_os_error(), Some(libc::ETIMEDOUT));
    }
}
