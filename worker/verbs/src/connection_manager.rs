//! Connections by the RDMA connection manager (librdmacm, rdma_cm(7)). Peers are addressed by IP
//! address and port, and the manager itself changes the states of queue pairs. iWARP devices
//! support no other method.
//!
//! | listening end | connecting end |
//! |---|---|
//! | [`Listener::bind`] | [`Route::resolve`]: address, then route |
//! | [`Listener::next_request`] | [`Route::connect`] sends a connect request |
//! | [`ConnectRequest::accept`] or [`ConnectRequest::reject`] | [`Route::connect`] returns the queue pair, or fails |
//!
//! The connecting end has to send the first message, because iWARP's handshake (MPA) requires it.

use crate::cm_id::{CmId, MAX_PRIVATE_DATA, SocketAddress};
use crate::device::Context;
use crate::error::{Verb, VerbsError};
use crate::queue::{Connected, QueuePair, Resources, Settings};
use rdma_sys::{rdma_cm_event_type as event_type, rdma_conn_param};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::null;
use std::sync::Arc;
use std::time::Instant;

/// Timeout of one attempt to resolve an address, in milliseconds; attempts repeat until the
/// deadline. The timeout is short because of a race in the kernel: if the neighbour's ARP reply
/// arrives just before the kernel starts to wait for it, the kernel notices the reply only when the
/// attempt times out (`addr_resolve` and `queue_req` in drivers/infiniband/core/addr.c).
const ADDRESS_TIMEOUT_MS: i32 = 300;

/// Listening end, which accepts connections of peers at an address of an RDMA device.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    context: Arc<Context>,
}

impl Listener {
    /// Listens at an IP address of an RDMA device. Port 0 chooses a free port. At most `backlog`
    /// connect requests wait for [`Listener::next_request`]; iWARP resets further connections.
    ///
    /// If two devices have the address, such as soft RoCE and Soft-iWARP on one interface, the
    /// kernel chooses the device that was added first, at both ends of a connection
    /// ([`Listener::require_device`]). If the two hosts added their devices in different order, the
    /// kernel of the listening host rejects the connect request.
    pub fn bind(address: SocketAddr, backlog: u32) -> Result<Listener, VerbsError> {
        let name = match address.port() {
            0 => address.ip().to_string(),
            _ => address.to_string(),
        };
        let id = CmId::listening(name, address, backlog)?;
        let context = id.context()?;
        Ok(Listener { id, context })
    }

    /// Fails with [`VerbsError::WrongDevice`] unless the listener uses the device with this name.
    pub fn require_device(self, device: &str) -> Result<Listener, VerbsError> {
        require_device(&self.id, &self.context, device)?;
        Ok(self)
    }

    /// Returns the device that has the address. The [`Resources`] passed to
    /// [`ConnectRequest::accept`] must be made from this context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the port that the listener is bound to.
    pub fn port(&self) -> u16 {
        self.id.port()
    }

    /// Waits for the next connect request; `None` if none arrives before the deadline. With a
    /// deadline in the past the call does not wait.
    pub fn next_request(&self, deadline: Instant) -> Result<Option<ConnectRequest>, VerbsError> {
        let expected = event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let Some(event) = self.id.next(expected, Verb::Accept, deadline)? else { return Ok(None) };
        let Some(id) = event.id else {
            return Err(VerbsError::from_errno(Verb::Accept, self.id.addresses(), libc::EINVAL));
        };
        Ok(Some(ConnectRequest {
            id: CmId::adopt(id, self.id.addresses())?,
            peer_data: event.peer_data,
        }))
    }
}

/// Descriptor that is readable when [`Listener::next_request`] would return at once.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.as_fd()
    }
}

/// Connect request of a peer. Dropping the value rejects the request, because the kernel rejects a
/// request when its `rdma_cm_id` is destroyed.
#[derive(Debug)]
pub struct ConnectRequest {
    id: CmId,
    peer_data: Vec<u8>,
}

impl ConnectRequest {
    /// Returns the private data of the request, up to [`MAX_PRIVATE_DATA`] bytes. InfiniBand and
    /// RoCE pad the data with zeros, so it may be longer than the data that the peer sent.
    pub fn private_data(&self) -> &[u8] {
        &self.peer_data
    }

    /// Accepts the connection and waits until it is established. `private_data`, at most
    /// [`MAX_PRIVATE_DATA`] bytes, is sent to the peer. The peer must send the first message.
    ///
    /// # Errors
    ///
    /// [`VerbsError::TimedOut`] at the deadline, [`VerbsError::PrivateDataTooLong`],
    /// [`VerbsError::UnexpectedEvent`] if the peer gives up, [`VerbsError::Failed`].
    pub fn accept(
        self,
        resources: &Resources,
        private_data: &[u8],
        settings: &Settings,
        deadline: Instant,
    ) -> Result<QueuePair<Connected>, VerbsError> {
        let ConnectRequest { id, peer_data } = self;
        let mut parameters = conn_params(private_data, settings, Verb::Accept, id.addresses())?;
        id.set_type_of_service(settings.traffic_class)?;
        let max_inline = create_pair(&id, resources)?;
        // SAFETY: the id is alive and has a queue pair; the parameters and the private data live
        // until the call returns.
        let code = unsafe { rdma_sys::rdma_accept(id.as_ptr(), &raw mut parameters) };
        id.check(Verb::Accept, code)?;
        id.expect(event_type::RDMA_CM_EVENT_ESTABLISHED, Verb::Accept, deadline)?;
        connected(id, resources, max_inline, peer_data)
    }

    /// Rejects the request. The peer's [`Route::connect`] fails.
    pub fn reject(self) {
        // SAFETY: the id is alive; there is no private data.
        let code = unsafe { rdma_sys::rdma_reject(self.id.as_ptr(), null(), 0) };
        if code != 0 {
            // The peer has given up already.
            tracing::debug!(addresses = self.id.addresses(), "rdma_reject failed");
        }
    }
}

/// Connecting end: resolved route to a listener.
#[derive(Debug)]
pub struct Route {
    id: CmId,
    context: Arc<Context>,
}

impl Route {
    /// Resolves the route from the local address `from`, which must be the address of an RDMA
    /// device, to the listener at `to`. Only the traffic class of `settings` is used.
    pub fn resolve(
        from: IpAddr,
        to: SocketAddr,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Route, VerbsError> {
        let id = CmId::create(format!("{from} to {to}"))?;
        id.set_type_of_service(settings.traffic_class)?;
        while !id.try_resolve_address(from, to, deadline)? {}
        let timeout_ms = remaining_ms(deadline, Verb::ResolveRoute, id.addresses())?;
        // SAFETY: the id is alive and its address is resolved.
        let code = unsafe { rdma_sys::rdma_resolve_route(id.as_ptr(), timeout_ms) };
        id.check(Verb::ResolveRoute, code)?;
        id.expect(event_type::RDMA_CM_EVENT_ROUTE_RESOLVED, Verb::ResolveRoute, deadline)?;
        let context = id.context()?;
        Ok(Route { id, context })
    }

    /// Fails with [`VerbsError::WrongDevice`] unless the route uses the device with this name. The
    /// kernel may choose another device that has the same address.
    pub fn require_device(self, device: &str) -> Result<Route, VerbsError> {
        require_device(&self.id, &self.context, device)?;
        Ok(self)
    }

    /// Returns the device that the route uses. The [`Resources`] passed to [`Route::connect`] must
    /// be made from this context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Connects and waits until the connection is established. `private_data`, at most
    /// [`MAX_PRIVATE_DATA`] bytes, is sent to the peer. This end must send the first message.
    ///
    /// # Errors
    ///
    /// [`VerbsError::UnexpectedEvent`] if the peer rejects the request or cannot be reached,
    /// [`VerbsError::TimedOut`] at the deadline, [`VerbsError::PrivateDataTooLong`],
    /// [`VerbsError::Failed`].
    pub fn connect(
        self,
        resources: &Resources,
        private_data: &[u8],
        settings: &Settings,
        deadline: Instant,
    ) -> Result<QueuePair<Connected>, VerbsError> {
        let Route { id, context: _context } = self;
        let mut parameters = conn_params(private_data, settings, Verb::Connect, id.addresses())?;
        let max_inline = create_pair(&id, resources)?;
        // SAFETY: the id is alive, has a queue pair and a route; the parameters and the private
        // data live until the call returns.
        let code = unsafe { rdma_sys::rdma_connect(id.as_ptr(), &raw mut parameters) };
        id.check(Verb::Connect, code)?;
        let established = event_type::RDMA_CM_EVENT_ESTABLISHED;
        let event = id.expect(established, Verb::Connect, deadline)?;
        connected(id, resources, max_inline, event.peer_data)
    }
}

impl CmId {
    /// Creates an id that listens at an address.
    fn listening(addresses: String, address: SocketAddr, backlog: u32) -> Result<CmId, VerbsError> {
        let id = CmId::create(addresses)?;
        let mut raw = SocketAddress::new(address);
        // SAFETY: the id is alive; the address lives until the call returns.
        let code = unsafe { rdma_sys::rdma_bind_addr(id.as_ptr(), raw.as_ptr()) };
        id.check(Verb::BindAddr, code)?;
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the id is alive and bound.
        let code = unsafe { rdma_sys::rdma_listen(id.as_ptr(), backlog) };
        id.check(Verb::Listen, code)?;
        Ok(id)
    }

    /// Tries once to find the device and the next hop for packets from one address to another.
    /// Returns `false` if the attempt timed out.
    fn try_resolve_address(
        &self,
        from: IpAddr,
        to: SocketAddr,
        deadline: Instant,
    ) -> Result<bool, VerbsError> {
        let verb = Verb::ResolveAddr;
        let timeout_ms = remaining_ms(deadline, verb, self.addresses())?.min(ADDRESS_TIMEOUT_MS);
        let (mut source, mut target) =
            (SocketAddress::new(SocketAddr::new(from, 0)), SocketAddress::new(to));
        // SAFETY: the id is alive; both addresses live until the call returns.
        let code = unsafe {
            rdma_sys::rdma_resolve_addr(self.as_ptr(), source.as_ptr(), target.as_ptr(), timeout_ms)
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

fn require_device(id: &CmId, context: &Context, device: &str) -> Result<(), VerbsError> {
    match context.name() {
        found if found == device => Ok(()),
        found => Err(VerbsError::WrongDevice {
            addresses: id.addresses().to_owned(),
            wanted: device.to_owned(),
            found: found.to_owned(),
        }),
    }
}

/// Creates the queue pair of a connection, and returns its inline capacity in bytes.
fn create_pair(id: &CmId, resources: &Resources) -> Result<u32, VerbsError> {
    let attr = resources.init_attr(id.verbs())?;
    let domain = resources.domain.as_ptr();
    let ((), max_inline) = attr.create_with_inline_fallback(|attr| {
        // SAFETY: `init_attr` has checked that the domain and the completion queue are of the id's
        // device. The handle of the queue pair will own both. The attributes live until the call
        // returns.
        let code = unsafe { rdma_sys::rdma_create_qp(id.as_ptr(), domain, attr) };
        id.check(Verb::CreateQp, code)
    })?;
    Ok(max_inline)
}

fn connected(
    id: CmId,
    resources: &Resources,
    max_inline: u32,
    peer_data: Vec<u8>,
) -> Result<QueuePair<Connected>, VerbsError> {
    match id.queue_pair() {
        Some(pair) => Ok(QueuePair::from_manager(pair, max_inline, id, resources, peer_data)),
        None => Err(VerbsError::from_errno(Verb::CreateQp, id.addresses(), libc::EINVAL)),
    }
}

/// Returns the milliseconds until the deadline. Fails if less than 1 ms is left, because the kernel
/// rejects a timeout of 0.
fn remaining_ms(deadline: Instant, verb: Verb, addresses: &str) -> Result<i32, VerbsError> {
    let left = deadline.saturating_duration_since(Instant::now());
    match i32::try_from(left.as_millis()).unwrap_or(i32::MAX) {
        0 => Err(VerbsError::TimedOut { verb, addresses: addresses.to_owned() }),
        left => Ok(left),
    }
}

/// Makes connection parameters. The parameters contain a pointer to `private_data`, which must
/// exist as long as they are used.
fn conn_params(
    private_data: &[u8],
    settings: &Settings,
    verb: Verb,
    addresses: &str,
) -> Result<rdma_conn_param, VerbsError> {
    let length = private_data.len();
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
        private_data: private_data.as_ptr().cast(),
        private_data_len,
        responder_resources: settings.reads,
        initiator_depth: settings.reads,
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
        let of = |length| conn_params(&vec![7; length], &settings, Verb::Connect, "a to b");
        assert_eq!(of(MAX_PRIVATE_DATA).unwrap().private_data_len, 56);
        let error = of(MAX_PRIVATE_DATA + 1).err().unwrap();
        let expected = "a to b: rdma_connect: 57 bytes of private data, and 56 is the most";
        assert_eq!(error.to_string(), expected);
        assert!(of(256).is_err(), "a length that would be 0 as a byte");
    }

    #[test]
    fn what_has_no_time_left_is_not_begun() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let left = |deadline| remaining_ms(deadline, Verb::ResolveRoute, "a to b");
        assert!((1..=60_000).contains(&left(now + 60 * second).unwrap()));
        let error = left(now).unwrap_err();
        assert_eq!(error.to_string(), "a to b: rdma_resolve_route: no answer in time");
    }
}
