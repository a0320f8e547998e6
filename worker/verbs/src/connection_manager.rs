//! Connections by the RDMA connection manager, which finds addresses and routes by IP and moves
//! queue pairs through their states itself (rdma_cm(7)). iWARP knows no other way.
//!
//! The end that connects sends first: iWARP's handshake counts on it.

use crate::completion_queue::CompletionQueue;
use crate::device::Context;
use crate::error::{Verb, VerbsError};
use crate::memory_region::MemoryRegion;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::{Connected, Endpoint, QueuePair, Settings, wanted};
use rdma_sys::{
    rdma_cm_event, rdma_cm_event_type as event_type, rdma_cm_id, rdma_conn_param,
    rdma_event_channel, rdma_port_space,
};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Address and key of memory, as ends tell each other: 8 and 4 bytes, little-endian.
const TOLD: usize = 12;

/// A channel on which events come, and the id whose they are.
#[derive(Debug)]
pub(crate) struct Id {
    id: NonNull<rdma_cm_id>,
    channel: Channel,
    /// For errors.
    who: String,
}

#[derive(Debug)]
struct Channel(NonNull<rdma_event_channel>);

// SAFETY: librdmacm locks what threads share, and each id is destroyed by its one owner.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Channel {
    fn create(who: &str) -> Result<Channel, VerbsError> {
        // SAFETY: rdma_create_event_channel(3) has no requirement.
        let channel = unsafe { rdma_sys::rdma_create_event_channel() };
        NonNull::new(channel).map(Channel).ok_or_else(|| VerbsError::last(Verb::CreateId, who))
    }

    /// Whether an event has come before the deadline.
    fn is_ready(&self, deadline: Instant) -> io::Result<bool> {
        // SAFETY: the channel is alive, and its descriptor never changes.
        let fd = unsafe { self.0.as_ref() }.fd;
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
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: it was made once and is destroyed here alone, after the id that used it.
        unsafe { rdma_sys::rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

/// An event that was as expected.
struct Event {
    /// Of a request to connect: the id that was made for it.
    id: Option<NonNull<rdma_cm_id>>,
    told: Option<(u64, u32)>,
}

impl Id {
    fn create(who: String) -> Result<Id, VerbsError> {
        let channel = Channel::create(&who)?;
        let mut id = null_mut();
        let space = rdma_port_space::RDMA_PS_TCP;
        let channel_pointer = channel.0.as_ptr();
        // SAFETY: the channel is alive and will be owned; `id` is room for the pointer.
        let code =
            unsafe { rdma_sys::rdma_create_id(channel_pointer, &raw mut id, null_mut(), space) };
        match NonNull::new(id).filter(|_| code == 0) {
            Some(id) => Ok(Id { id, channel, who }),
            None => Err(VerbsError::last(Verb::CreateId, &who)),
        }
    }

    /// Takes over an id that came with a request, with a channel of its own.
    fn adopt(id: NonNull<rdma_cm_id>, who: &str) -> Result<Id, VerbsError> {
        let channel = Channel::create(who)?;
        // SAFETY: both are alive; the event that the id came with has been acknowledged.
        let code = unsafe { rdma_sys::rdma_migrate_id(id.as_ptr(), channel.0.as_ptr()) };
        let adopted = Id { id, channel, who: who.to_owned() };
        adopted.check(Verb::CreateId, code)?;
        Ok(adopted)
    }

    fn as_ptr(&self) -> *mut rdma_cm_id {
        self.id.as_ptr()
    }

    fn check(&self, verb: Verb, code: i32) -> Result<(), VerbsError> {
        if code == 0 { Ok(()) } else { Err(VerbsError::last(verb, &self.who)) }
    }

    /// The device that the address belongs to, opened by librdmacm.
    fn context(&self) -> Result<Arc<Context>, VerbsError> {
        // SAFETY: the id is alive; the field is set once its address is known.
        let verbs = unsafe { self.id.as_ref() }.verbs;
        match NonNull::new(verbs) {
            Some(context) => Ok(Arc::new(Context::of_manager(context))),
            None => Err(VerbsError::code(Verb::BindAddr, &self.who, libc::ENODEV)),
        }
    }

    /// Waits for one event and takes no other.
    fn expect(
        &self,
        wanted: event_type::Type,
        verb: Verb,
        deadline: Instant,
    ) -> Result<Event, VerbsError> {
        let ready = self.channel.is_ready(deadline);
        match ready {
            Ok(true) => {}
            Ok(false) => return Err(VerbsError::Late { verb, who: self.who.clone() }),
            Err(_) => return Err(VerbsError::last(verb, &self.who)),
        }
        let mut event = null_mut();
        // SAFETY: the channel is alive; `event` is room for the pointer.
        let code = unsafe { rdma_sys::rdma_get_cm_event(self.channel.0.as_ptr(), &raw mut event) };
        self.check(verb, code)?;
        let Some(event) = NonNull::new(event) else {
            return Err(VerbsError::last(verb, &self.who));
        };
        let taken = self.read(event, wanted, verb);
        // SAFETY: it came from rdma_get_cm_event and is acknowledged once; nothing of it is kept.
        unsafe { rdma_sys::rdma_ack_cm_event(event.as_ptr()) };
        taken
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
            let source = io::Error::from_raw_os_error(event.status.saturating_abs());
            return Err(VerbsError::Event { verb, who: self.who.clone(), event_name, source });
        }
        // SAFETY: every event of RDMA_PS_TCP has connection parameters, zeros where none were said.
        let said = unsafe { event.param.conn };
        let mut told = None;
        if !said.private_data.is_null() && usize::from(said.private_data_len) >= TOLD {
            // SAFETY: the pointer leads to `private_data_len` bytes of the event, at least TOLD.
            let bytes = unsafe { said.private_data.cast::<[u8; TOLD]>().read_unaligned() };
            told = Some(memory_of(bytes));
        }
        Ok(Event { id: NonNull::new(event.id), told })
    }

    fn make_pair(
        &self,
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
    ) -> Result<(), VerbsError> {
        let mut wanted = wanted(completions);
        // SAFETY: the id's device is the domain's: both come from the same `context`; the queue and
        // the domain outlive the pair, whose handle owns them.
        let code =
            unsafe { rdma_sys::rdma_create_qp(self.as_ptr(), domain.as_ptr(), &raw mut wanted) };
        self.check(Verb::CreateQp, code)
    }

    fn into_pair(
        self,
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        told: Option<(u64, u32)>,
    ) -> Result<(QueuePair<Connected>, Endpoint), VerbsError> {
        // SAFETY: the id is alive; `make_pair` has set the field.
        let pair = unsafe { self.id.as_ref() }.qp;
        let Some(pair) = NonNull::new(pair) else {
            return Err(VerbsError::code(Verb::CreateQp, &self.who, libc::EINVAL));
        };
        let peer = Endpoint { memory: told, ..Endpoint::default() };
        Ok((QueuePair::of_manager(pair, self, domain, completions), peer))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the id is alive; the field says whether there is a pair.
        if !unsafe { self.id.as_ref() }.qp.is_null() {
            // SAFETY: the id is alive; whether or not it is connected, the call does no harm.
            unsafe { rdma_sys::rdma_disconnect(self.as_ptr()) };
            // SAFETY: the pair was made by rdma_create_qp and is destroyed here alone.
            unsafe { rdma_sys::rdma_destroy_qp(self.as_ptr()) };
        }
        // SAFETY: it was made once and is destroyed here alone; every event of it was acknowledged.
        if unsafe { rdma_sys::rdma_destroy_id(self.as_ptr()) } != 0 {
            tracing::warn!(who = self.who, "rdma_destroy_id failed");
        }
    }
}

/// Waits for peers at an address.
#[derive(Debug)]
pub struct Listener {
    id: Id,
    context: Arc<Context>,
}

impl Listener {
    /// Listens at an address of an RDMA device; port 0 takes any that is free. `backlog` peers may
    /// knock at once: iWARP resets those beyond it.
    pub fn bind(address: SocketAddr, backlog: u32) -> Result<Listener, VerbsError> {
        let id = Id::create(address.to_string())?;
        let mut raw = Raw::of(address);
        // SAFETY: the id is alive; the address lives until the call returns.
        let code = unsafe { rdma_sys::rdma_bind_addr(id.as_ptr(), raw.as_ptr()) };
        id.check(Verb::BindAddr, code)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the id is alive and bound.
        let code = unsafe { rdma_sys::rdma_listen(id.as_ptr(), backlog) };
        id.check(Verb::Listen, code)?;
        let context = id.context()?;
        Ok(Listener { id, context })
    }

    /// The device: what peers are served by has to be made of it.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        // SAFETY: the id is alive, and bound: its own address does not change any more.
        let id = unsafe { self.id.id.as_ref() };
        // SAFETY: addresses of both families have their port in the same place, and it is plain
        // bytes in any other.
        u16::from_be(unsafe { id.route.addr.src_addr_union.src_sin.sin_port })
    }

    /// Waits for a peer, tells it of `memory`, and returns what it tells. The peer sends first.
    pub fn accept(
        &self,
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        memory: &MemoryRegion,
        settings: &Settings,
        within: Duration,
    ) -> Result<(QueuePair<Connected>, Endpoint), VerbsError> {
        let deadline = Instant::now() + within;
        let wanted = event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let request = self.id.expect(wanted, Verb::Accept, deadline)?;
        let Some(id) = request.id else {
            return Err(VerbsError::code(Verb::Accept, &self.id.who, libc::EINVAL));
        };
        let id = Id::adopt(id, &self.id.who)?;
        id.make_pair(domain, completions)?;
        let told = told(memory);
        let mut parameters = parameters(&told, settings);
        // SAFETY: the id is alive and has a pair; the parameters, and what they lead to, live until
        // the call returns.
        let code = unsafe { rdma_sys::rdma_accept(id.as_ptr(), &raw mut parameters) };
        id.check(Verb::Accept, code)?;
        id.expect(event_type::RDMA_CM_EVENT_ESTABLISHED, Verb::Accept, deadline)?;
        id.into_pair(domain, completions, request.told)
    }
}

/// The way to a peer that listens, found.
#[derive(Debug)]
pub struct Route {
    id: Id,
    context: Arc<Context>,
}

impl Route {
    /// Finds the way from an address of an RDMA device to a listener.
    pub fn resolve(from: IpAddr, to: SocketAddr, within: Duration) -> Result<Route, VerbsError> {
        let deadline = Instant::now() + within;
        let id = Id::create(format!("{from} to {to}"))?;
        let (mut source, mut target) = (Raw::of(SocketAddr::new(from, 0)), Raw::of(to));
        let patience = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the id is alive; both addresses live until the call returns.
        let code = unsafe {
            rdma_sys::rdma_resolve_addr(id.as_ptr(), source.as_ptr(), target.as_ptr(), patience)
        };
        id.check(Verb::ResolveAddr, code)?;
        id.expect(event_type::RDMA_CM_EVENT_ADDR_RESOLVED, Verb::ResolveAddr, deadline)?;
        // SAFETY: the id is alive and its address is resolved.
        let code = unsafe { rdma_sys::rdma_resolve_route(id.as_ptr(), patience) };
        id.check(Verb::ResolveRoute, code)?;
        id.expect(event_type::RDMA_CM_EVENT_ROUTE_RESOLVED, Verb::ResolveRoute, deadline)?;
        let context = id.context()?;
        Ok(Route { id, context })
    }

    /// The device: what the peer is reached by has to be made of it.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Connects, tells the peer of `memory`, and returns what it tells. This end sends first.
    pub fn connect(
        self,
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        memory: &MemoryRegion,
        settings: &Settings,
        within: Duration,
    ) -> Result<(QueuePair<Connected>, Endpoint), VerbsError> {
        let deadline = Instant::now() + within;
        let Route { id, context: _context } = self;
        id.make_pair(domain, completions)?;
        let told = told(memory);
        let mut parameters = parameters(&told, settings);
        // SAFETY: the id is alive, has a pair and a route; the parameters, and what they lead to,
        // live until the call returns.
        let code = unsafe { rdma_sys::rdma_connect(id.as_ptr(), &raw mut parameters) };
        id.check(Verb::Connect, code)?;
        let established = event_type::RDMA_CM_EVENT_ESTABLISHED;
        let event = id.expect(established, Verb::Connect, deadline)?;
        id.into_pair(domain, completions, event.told)
    }
}

fn told(memory: &MemoryRegion) -> [u8; TOLD] {
    let mut bytes = [0; TOLD];
    let (address, key) = bytes.split_at_mut(8);
    address.copy_from_slice(&memory.address().to_le_bytes());
    key.copy_from_slice(&memory.remote_key().to_le_bytes());
    bytes
}

fn memory_of(bytes: [u8; TOLD]) -> (u64, u32) {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes([i, j, k, l]))
}

fn parameters(told: &[u8; TOLD], settings: &Settings) -> rdma_conn_param {
    rdma_conn_param {
        private_data: told.as_ptr().cast(),
        private_data_len: TOLD as u8,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 0,
        retry_count: settings.retries,
        rnr_retry_count: settings.retries,
        srq: 0,
        qp_num: 0,
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

/// An address as C has it.
struct Raw(libc::sockaddr_storage);

impl Raw {
    fn of(address: SocketAddr) -> Raw {
        let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
        let place = storage.as_mut_ptr();
        match address {
            SocketAddr::V4(v4) => {
                let octets = v4.ip().octets();
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(octets) },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is made to hold any address, and aligned for it.
                unsafe { place.cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: the storage is made to hold any address, and aligned for it.
                unsafe { place.cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        // SAFETY: integers alone: zeros, and what was written over them, are a value.
        Raw(unsafe { storage.assume_init() })
    }

    fn as_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_c_has_them() {
        let mut v4 = Raw::of("10.1.2.3:4711".parse().unwrap());
        // SAFETY: an IPv4 address was written there.
        let raw = unsafe { v4.as_ptr().cast::<libc::sockaddr_in>().read() };
        assert_eq!(i32::from(raw.sin_family), libc::AF_INET);
        assert_eq!(raw.sin_port.to_ne_bytes(), 4711_u16.to_be_bytes());
        assert_eq!(raw.sin_addr.s_addr.to_ne_bytes(), [10, 1, 2, 3]);
        let mut v6 = Raw::of("[fd00::1]:80".parse().unwrap());
        // SAFETY: an IPv6 address was written there.
        let raw = unsafe { v6.as_ptr().cast::<libc::sockaddr_in6>().read() };
        assert_eq!((raw.sin6_addr.s6_addr[0], raw.sin6_addr.s6_addr[15]), (0xfd, 1));
    }

    #[test]
    fn memory_is_told_and_understood() {
        let bytes = [1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
        assert_eq!(memory_of(bytes), (0x0201, 3));
    }
}
