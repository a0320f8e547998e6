//! Connections by the RDMA connection manager, which finds addresses and routes by IP and moves
//! queue pairs through their states itself (rdma_cm(7)). iWARP knows no other way.
//!
//! The end that connects sends first: iWARP's handshake counts on it.

use crate::cm_id::{Id, MAX_PRIVATE_DATA, SocketAddress};
use crate::device::Context;
use crate::error::{Verb, VerbsError};
use crate::queue::{Connected, MAX_READS, QueuePair, Resources, Settings};
use rdma_sys::{rdma_cm_event_type as event_type, rdma_conn_param};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null;
use std::sync::Arc;
use std::time::Instant;

/// How long the kernel may look for an address at once, in milliseconds. Where a neighbour answers just
/// as it begins to wait for that, it does not notice before its time is up (`addr_resolve` and
/// `queue_req` of its drivers/infiniband/core/addr.c).
const ADDRESS_PATIENCE: i32 = 300;

/// Waits for peers of a device.
#[derive(Debug)]
pub struct Listener {
    id: Id,
    context: Arc<Context>,
}

impl Listener {
    /// Listens at an address of an RDMA device; port 0 takes any that is free. `backlog` peers may
    /// knock at once: iWARP resets those beyond it.
    ///
    /// Where two devices have the address, as soft RoCE and Soft-iWARP may on one interface, the kernel
    /// takes the one that was added first, here as where a peer dials: peers whose host has added
    /// them in another order come by the other device, and are rejected by the kernel.
    pub fn bind(address: SocketAddr, backlog: u32) -> Result<Listener, VerbsError> {
        let id = Id::listening(address.to_string(), address, backlog)?;
        let context = id.context()?;
        Ok(Listener { id, context })
    }

    /// The device: what peers are served by has to be made of it.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.id.port()
    }

    /// The next peer that knocks; `None` when none did before the deadline.
    pub fn request(&self, deadline: Instant) -> Result<Option<ConnectRequest>, VerbsError> {
        let wanted = event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let Some(event) = self.id.next(wanted, Verb::Accept, deadline)? else { return Ok(None) };
        let Some(id) = event.id else {
            return Err(VerbsError::code(Verb::Accept, self.id.addresses(), libc::EINVAL));
        };
        Ok(Some(ConnectRequest { id: Id::adopt(id, self.id.addresses())?, said: event.said }))
    }
}

/// For an event loop: readable when [`Listener::request`] would not wait.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

/// A peer that wants to connect. It is rejected when this is dropped: the kernel does that with ids
/// that are destroyed before they were answered.
#[derive(Debug)]
pub struct ConnectRequest {
    id: Id,
    said: Vec<u8>,
}

impl ConnectRequest {
    /// What the peer says of itself, at most [`MAX_PRIVATE_DATA`] bytes. InfiniBand and RoCE fill up with
    /// zeros, so its length is no part of it.
    pub fn private_data(&self) -> &[u8] {
        &self.said
    }

    /// Connects, saying something in turn, at most [`MAX_PRIVATE_DATA`] bytes. The peer sends first.
    pub fn accept(
        self,
        with: &Resources,
        saying: &[u8],
        settings: &Settings,
        deadline: Instant,
    ) -> Result<QueuePair<Connected>, VerbsError> {
        let ConnectRequest { id, said } = self;
        let mut parameters = parameters(saying, settings, Verb::Accept, id.addresses())?;
        id.set_type_of_service(settings.traffic_class)?;
        let inline = create_pair(&id, with)?;
        // SAFETY: the id is alive and has a pair; the parameters, and what they lead to, live until
        // the call returns.
        let code = unsafe { rdma_sys::rdma_accept(id.as_ptr(), &raw mut parameters) };
        id.check(Verb::Accept, code)?;
        id.expect(event_type::RDMA_CM_EVENT_ESTABLISHED, Verb::Accept, deadline)?;
        connected(id, with, inline, said)
    }

    /// Sends the peer away.
    pub fn reject(self) {
        // SAFETY: the id is alive; nothing is said.
        let code = unsafe { rdma_sys::rdma_reject(self.id.as_ptr(), null(), 0) };
        if code != 0 {
            // The peer has gone itself.
            tracing::debug!(addresses = self.id.addresses(), "rdma_reject failed");
        }
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
    pub fn resolve(
        from: IpAddr,
        to: SocketAddr,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Route, VerbsError> {
        let id = Id::create(format!("{from} to {to}"))?;
        id.set_type_of_service(settings.traffic_class)?;
        while !id.resolves_address(from, to, deadline)? {}
        let patience = milliseconds(deadline, Verb::ResolveRoute, id.addresses())?;
        // SAFETY: the id is alive and its address is resolved.
        let code = unsafe { rdma_sys::rdma_resolve_route(id.as_ptr(), patience) };
        id.check(Verb::ResolveRoute, code)?;
        id.expect(event_type::RDMA_CM_EVENT_ROUTE_RESOLVED, Verb::ResolveRoute, deadline)?;
        let context = id.context()?;
        Ok(Route { id, context })
    }

    /// Fails unless it leads by this device: what the peer is reached by is made of that.
    pub fn by(self, device: &str) -> Result<Route, VerbsError> {
        match self.context.name() {
            found if found == device => Ok(self),
            found => Err(VerbsError::WrongDevice {
                addresses: self.id.addresses().to_owned(),
                wanted: device.to_owned(),
                found: found.to_owned(),
            }),
        }
    }

    /// The device: what the peer is reached by has to be made of it.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Connects, saying something, at most [`MAX_PRIVATE_DATA`] bytes. This end sends first.
    pub fn connect(
        self,
        with: &Resources,
        saying: &[u8],
        settings: &Settings,
        deadline: Instant,
    ) -> Result<QueuePair<Connected>, VerbsError> {
        let Route { id, context: _context } = self;
        let mut parameters = parameters(saying, settings, Verb::Connect, id.addresses())?;
        let inline = create_pair(&id, with)?;
        // SAFETY: the id is alive, has a pair and a route; the parameters, and what they lead to,
        // live until the call returns.
        let code = unsafe { rdma_sys::rdma_connect(id.as_ptr(), &raw mut parameters) };
        id.check(Verb::Connect, code)?;
        let established = event_type::RDMA_CM_EVENT_ESTABLISHED;
        let event = id.expect(established, Verb::Connect, deadline)?;
        connected(id, with, inline, event.said)
    }
}

impl Id {
    /// Listens at an address.
    fn listening(addresses: String, address: SocketAddr, backlog: u32) -> Result<Id, VerbsError> {
        let id = Id::create(addresses)?;
        let mut raw = SocketAddress::of(address);
        // SAFETY: the id is alive; the address lives until the call returns.
        let code = unsafe { rdma_sys::rdma_bind_addr(id.as_ptr(), raw.as_ptr()) };
        id.check(Verb::BindAddr, code)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the id is alive and bound.
        let code = unsafe { rdma_sys::rdma_listen(id.as_ptr(), backlog) };
        id.check(Verb::Listen, code)?;
        Ok(id)
    }

    /// Asks once which device leads from one address to another, and by which neighbour; false when
    /// that is still open after a while.
    fn resolves_address(
        &self,
        from: IpAddr,
        to: SocketAddr,
        deadline: Instant,
    ) -> Result<bool, VerbsError> {
        let verb = Verb::ResolveAddr;
        let patience = milliseconds(deadline, verb, self.addresses())?.min(ADDRESS_PATIENCE);
        let (mut source, mut target) =
            (SocketAddress::of(SocketAddr::new(from, 0)), SocketAddress::of(to));
        // SAFETY: the id is alive; both addresses live until the call returns.
        let code = unsafe {
            rdma_sys::rdma_resolve_addr(self.as_ptr(), source.as_ptr(), target.as_ptr(), patience)
        };
        self.check(verb, code)?;
        match self.expect(event_type::RDMA_CM_EVENT_ADDR_RESOLVED, verb, deadline) {
            Ok(_) => Ok(true),
            Err(VerbsError::UnexpectedEvent { source, .. })
                if source.raw_os_error() == Some(libc::ETIMEDOUT) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// Makes an id's queue pair; returns how many bytes a request of it can carry itself.
fn create_pair(id: &Id, with: &Resources) -> Result<u32, VerbsError> {
    let wanted = with.wanted(id.verbs())?;
    let domain = with.domain.as_ptr();
    let ((), inline) = wanted.or_without_inline(|wanted| {
        // SAFETY: the id's device is the domain's and the queue's, as `wanted` has found; both
        // outlive the pair, whose handle owns them. What is wanted lives until the call returns.
        let code = unsafe { rdma_sys::rdma_create_qp(id.as_ptr(), domain, wanted) };
        id.check(Verb::CreateQp, code)
    })?;
    Ok(inline)
}

fn connected(
    id: Id,
    with: &Resources,
    inline: u32,
    said: Vec<u8>,
) -> Result<QueuePair<Connected>, VerbsError> {
    match id.queue_pair() {
        Some(pair) => Ok(QueuePair::of_manager((pair, inline), id, with, said)),
        None => Err(VerbsError::code(Verb::CreateQp, id.addresses(), libc::EINVAL)),
    }
}

/// Until the deadline, at least one: the kernel calls none an invalid argument.
fn milliseconds(deadline: Instant, verb: Verb, addresses: &str) -> Result<i32, VerbsError> {
    let left = deadline.saturating_duration_since(Instant::now());
    match i32::try_from(left.as_millis()).unwrap_or(i32::MAX) {
        0 => Err(VerbsError::TimedOut { verb, addresses: addresses.to_owned() }),
        left => Ok(left),
    }
}

/// With a pointer to what is said, which has to live as long as they are used.
fn parameters(
    saying: &[u8],
    settings: &Settings,
    verb: Verb,
    addresses: &str,
) -> Result<rdma_conn_param, VerbsError> {
    let length = saying.len();
    let short = u8::try_from(length).ok().filter(|_| length <= MAX_PRIVATE_DATA);
    let Some(private_data_len) = short else {
        return Err(VerbsError::PrivateDataTooLong {
            verb,
            addresses: addresses.to_owned(),
            length,
            max: MAX_PRIVATE_DATA,
        });
    };
    Ok(rdma_conn_param {
        private_data: saying.as_ptr().cast(),
        private_data_len,
        responder_resources: MAX_READS,
        initiator_depth: MAX_READS,
        flow_control: 0,
        retry_count: settings.retries,
        rnr_retry_count: settings.retries,
        srq: 0,
        qp_num: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_too_long_to_be_said_is_an_error() {
        let settings = Settings::default();
        let of = |length| parameters(&vec![7; length], &settings, Verb::Connect, "a to b");
        assert_eq!(of(MAX_PRIVATE_DATA).unwrap().private_data_len, 56);
        let error = of(MAX_PRIVATE_DATA + 1).err().unwrap();
        let said = "a to b: rdma_connect: 57 bytes of private data, and 56 is the most";
        assert_eq!(error.to_string(), said);
        assert!(of(256).is_err(), "a length that would be 0 as a byte");
    }

    #[test]
    fn what_has_no_time_left_is_not_begun() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let left = |deadline| milliseconds(deadline, Verb::ResolveRoute, "a to b");
        assert!((1..=60_000).contains(&left(now + 60 * second).unwrap()));
        let error = left(now).unwrap_err();
        assert_eq!(error.to_string(), "a to b: rdma_resolve_route: no answer in time");
    }
}
