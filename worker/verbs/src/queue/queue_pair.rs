//! Queue pairs of reliable connections (RC).
//!
//! 1. [`QueuePair::prepare`] creates a queue pair in state INIT: receives can be posted, and its
//!    [`Endpoint`] is known.
//! 2. The program exchanges endpoints with the peer.
//! 3. [`QueuePair::connect`] moves the queue pair through RTR (ready to receive) to RTS (ready to
//!    send). The first send has to wait until the peer is in RTR as well.
//!
//! The connection manager ([`crate::Listener`], [`crate::Route`]) performs all these steps itself,
//! and returns connected queue pairs.

use super::{AddressVector, Endpoint, LocalPort, RemoteAddr, Resources};
use crate::cm_id::CmId;
use crate::device::{Mtu, PortAttributes};
use crate::error::{Verb, VerbsError};
use crate::memory::MrSlice;
use rdma_sys::{
    ibv_access_flags, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_state, ibv_recv_wr,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};
use std::io::Read;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::Ipv6Addr;
use std::ptr::{NonNull, null_mut};

/// State of a queue pair that is not connected yet.
#[derive(Debug)]
pub struct Prepared {
    port: PortAttributes,
    gid: Option<(u16, Ipv6Addr)>,
}

/// State of a queue pair that can send and receive.
#[derive(Debug)]
pub struct Connected {
    /// Private data that the peer sent with the connection.
    peer_data: Vec<u8>,
}

/// Queue pair of a reliable connection (`ibv_qp`), [`Prepared`] or [`Connected`]. Dropping the
/// value destroys the queue pair.
#[derive(Debug)]
pub struct QueuePair<State> {
    handle: Handle,
    endpoint: Endpoint,
    state: State,
}

/// Handle of an `ibv_qp`, in any state.
#[derive(Debug)]
struct Handle {
    pair: NonNull<ibv_qp>,
    created_by: CreatedBy,
    /// Objects that the device uses while the queue pair exists.
    resources: Resources,
    /// Inline capacity, in bytes.
    max_inline: u32,
    _not_copied: PhantomData<*mut ibv_qp>,
}

/// Creator of an `ibv_qp`, which decides how the queue pair is destroyed.
#[derive(Debug)]
enum CreatedBy {
    Handle,
    /// Created by librdmacm. Dropping the id destroys the queue pair as well.
    ConnectionManager {
        _id: CmId,
    },
}

// SAFETY: libibverbs is thread safe (see `Context`), and the queue pair is destroyed by its only
// owner.
unsafe impl Send for Handle {}
// SAFETY: as above; the provider locks the queue pair to post.
unsafe impl Sync for Handle {}

/// Attributes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Upper limit of the path MTU, which is also limited by the active MTU of both ports.
    pub mtu: Mtu,
    /// Exponent of the timeout for an acknowledgement, which is 4.096 µs · 2^timeout; 0 to 31,
    /// where 0 means no timeout. The connection manager ignores this value and chooses its own.
    pub timeout: u8,
    /// Number of times that an unacknowledged packet is sent again, 0 to 7. Also the number of
    /// times that a message is sent again if the peer has posted no receive for it; there 7 means
    /// forever.
    pub retries: u8,
    /// InfiniBand service level, 0 to 15. The connection manager ignores this value and chooses its
    /// own.
    pub service_level: u8,
    /// Maximum number of outstanding RDMA reads and atomics, in each direction. Further requests wait
    /// in the send queue. The connection fails if a device does not support this number.
    pub reads: u8,
    /// Traffic class; for RoCE the TOS byte of IP, whose upper six bits are the DSCP.
    pub traffic_class: u8,
}

/// Defaults: timeout of 0.27 s, one retry, one read at a time, and no limit on the MTU.
impl Default for Settings {
    fn default() -> Settings {
        let (timeout, retries, reads) = (16, 1, 1);
        let (service_level, traffic_class) = (0, 0);
        Settings { mtu: Mtu::B4096, timeout, retries, service_level, reads, traffic_class }
    }
}

impl QueuePair<Prepared> {
    /// Creates a queue pair on the port with number `port`, from 1, and moves it to INIT.
    /// `gid_index` is the index in the port's GID table of the GID that packets are sent from. Ethernet
    /// ports require it, because they have no other address.
    pub fn prepare(
        resources: &Resources,
        port: u8,
        gid_index: Option<u16>,
    ) -> Result<QueuePair<Prepared>, VerbsError> {
        let context = resources.domain.context();
        let port = context.port(port)?;
        let gid = match gid_index {
            Some(index) => context.gid(port.number, index)?.map(|entry| (index, entry.value)),
            None => None,
        };
        let handle = Handle::create(resources)?;
        handle.to_init(port.number)?;
        let endpoint = Endpoint {
            qpn: handle.qpn(),
            psn: random_24_bits(),
            lid: port.lid,
            gid: gid.map(|(_, value)| value),
            mtu: port.mtu,
            memory: None,
        };
        Ok(QueuePair { handle, endpoint, state: Prepared { port, gid } })
    }

    /// Returns the endpoint, which the peer needs to connect.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Connects to a peer, which has to connect to this queue pair in the same way. Nothing may be
    /// sent before the peer has connected. So the end that sends first must wait until the peer has
    /// reported over another channel, such as a socket, that it has connected.
    pub fn connect(
        self,
        peer: &Endpoint,
        settings: &Settings,
    ) -> Result<QueuePair<Connected>, VerbsError> {
        let local = LocalPort::new(&self.state.port, self.state.gid);
        let address =
            AddressVector::between(&local, peer, settings.service_level, settings.traffic_class);
        let mtu = settings.mtu.min(self.endpoint.mtu).min(peer.mtu);
        let settings = Settings { mtu, ..*settings };
        self.handle.to_rtr(&address, peer, &settings)?;
        self.handle.to_rts(self.endpoint.psn, &settings)?;
        Ok(QueuePair {
            handle: self.handle,
            endpoint: self.endpoint,
            state: Connected { peer_data: Vec::new() },
        })
    }
}

impl QueuePair<Connected> {
    /// Wraps a queue pair that the connection manager has created and connected.
    pub(crate) fn from_manager(
        pair: NonNull<ibv_qp>,
        max_inline: u32,
        id: CmId,
        resources: &Resources,
        peer_data: Vec<u8>,
    ) -> QueuePair<Connected> {
        let (created_by, resources) = (CreatedBy::ConnectionManager { _id: id }, resources.clone());
        let handle = Handle { pair, created_by, resources, max_inline, _not_copied: PhantomData };
        let endpoint = Endpoint { qpn: handle.qpn(), ..Endpoint::default() };
        QueuePair { handle, endpoint, state: Connected { peer_data } }
    }

    /// Returns the private data that the peer sent with the connection, up to
    /// [`crate::MAX_PRIVATE_DATA`] bytes; InfiniBand and RoCE pad it with zeros. Empty unless the
    /// connection was made by the connection manager.
    pub fn private_data(&self) -> &[u8] {
        &self.state.peer_data
    }

    /// Posts an RDMA write of `from` to the peer's memory. The region of `from` must belong to the
    /// queue pair's domain. A completion with `id` reports the end of the write; the data should
    /// not change before.
    pub fn write(&self, id: u64, from: MrSlice<'_>, to: RemoteAddr) -> Result<(), VerbsError> {
        self.write_with(id, from, to, true)
    }

    /// Posts an RDMA write, like [`QueuePair::write`]. If the request is not `signalled`, its
    /// success is not reported, and its entry in the send queue becomes free only when a later
    /// signalled request has completed.
    pub fn write_with(
        &self,
        id: u64,
        from: MrSlice<'_>,
        to: RemoteAddr,
        signalled: bool,
    ) -> Result<(), VerbsError> {
        self.post(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, Segment::from_slice(from), to, signalled)
    }

    /// Posts an RDMA write of inline data, at most [`QueuePair::max_inline`] bytes; fails with
    /// [`VerbsError::OutOfBounds`] if `bytes` is longer. `bytes` may be reused at once.
    pub fn write_inline(
        &self,
        id: u64,
        bytes: &[u8],
        to: RemoteAddr,
        signalled: bool,
    ) -> Result<(), VerbsError> {
        self.post(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, self.inline_segment(bytes)?, to, signalled)
    }

    /// Posts an RDMA read of the peer's memory into all of `into`. The region of `into` must belong
    /// to the queue pair's domain. A completion with `id` reports the end of the read.
    pub fn read(&self, id: u64, into: MrSlice<'_>, from: RemoteAddr) -> Result<(), VerbsError> {
        self.read_with(id, into, from, true)
    }

    /// Posts an RDMA read, like [`QueuePair::read`]. See [`QueuePair::write_with`] for `signalled`.
    pub fn read_with(
        &self,
        id: u64,
        into: MrSlice<'_>,
        from: RemoteAddr,
        signalled: bool,
    ) -> Result<(), VerbsError> {
        self.post(id, ibv_wr_opcode::IBV_WR_RDMA_READ, Segment::from_slice(into), from, signalled)
    }

    /// Posts a send of `from`, whose region must belong to the queue pair's domain. The send
    /// consumes the oldest receive that the peer has posted. See [`QueuePair::write_with`] for
    /// `signalled`.
    pub fn send(&self, id: u64, from: MrSlice<'_>, signalled: bool) -> Result<(), VerbsError> {
        let nowhere = RemoteAddr::new(0, 0);
        self.post(id, ibv_wr_opcode::IBV_WR_SEND, Segment::from_slice(from), nowhere, signalled)
    }

    /// Posts a send of inline data, at most [`QueuePair::max_inline`] bytes; fails with
    /// [`VerbsError::OutOfBounds`] if `bytes` is longer. `bytes` may be reused at once.
    pub fn send_inline(&self, id: u64, bytes: &[u8], signalled: bool) -> Result<(), VerbsError> {
        let nowhere = RemoteAddr::new(0, 0);
        self.post(id, ibv_wr_opcode::IBV_WR_SEND, self.inline_segment(bytes)?, nowhere, signalled)
    }

    fn inline_segment<'b>(&self, bytes: &'b [u8]) -> Result<Segment<'b>, VerbsError> {
        Segment::inline(bytes, self.max_inline())
    }

    fn post(
        &self,
        id: u64,
        opcode: ibv_wr_opcode::Type,
        local: Segment<'_>,
        remote: RemoteAddr,
        signalled: bool,
    ) -> Result<(), VerbsError> {
        self.handle.check_not_inherited()?;
        let flag = |is_set: bool, flag: ibv_send_flags| if is_set { flag.0 } else { 0 };
        let mut sge = local.sge;
        let mut request = MaybeUninit::<ibv_send_wr>::zeroed();
        // SAFETY: the structure consists of integers, pointers and unions of them, for which zeros
        // are valid.
        let request = unsafe { request.assume_init_mut() };
        request.wr_id = id;
        request.sg_list = &raw mut sge;
        request.num_sge = 1;
        request.opcode = opcode;
        request.send_flags = flag(signalled, ibv_send_flags::IBV_SEND_SIGNALED)
            | flag(local.is_inline, ibv_send_flags::IBV_SEND_INLINE);
        request.wr.rdma.remote_addr = remote.address;
        request.wr.rdma.rkey = remote.rkey;
        let mut refused = null_mut();
        // SAFETY: the queue pair is alive and in RTS; the call copies request and sge. Inline data
        // is read during the call, without a check of any key, and is borrowed until the call
        // returns. Other memory is accessed by the device later, which checks the region's lkey:
        // the region exists now, and its key becomes invalid when it is deregistered.
        let code = unsafe {
            rdma_sys::ibv_post_send(self.handle.as_ptr(), &raw mut *request, &raw mut refused)
        };
        self.handle.check(Verb::PostSend, code)
    }
}

/// Local memory of a work request.
struct Segment<'m> {
    sge: ibv_sge,
    /// Whether the bytes are copied into the work request.
    is_inline: bool,
    _memory: PhantomData<&'m [u8]>,
}

impl<'m> Segment<'m> {
    fn from_slice(part: MrSlice<'m>) -> Segment<'m> {
        let sge = ibv_sge { addr: part.address, length: part.length, lkey: part.lkey };
        Segment { sge, is_inline: false, _memory: PhantomData }
    }

    fn inline(bytes: &'m [u8], max: u32) -> Result<Segment<'m>, VerbsError> {
        let (length, size) = (bytes.len(), max as usize);
        let short = u32::try_from(length).ok().filter(|length| *length <= max);
        let length = short.ok_or(VerbsError::OutOfBounds { offset: 0, length, size })?;
        let sge = ibv_sge { addr: bytes.as_ptr().addr() as u64, length, lkey: 0 };
        Ok(Segment { sge, is_inline: true, _memory: PhantomData })
    }
}

impl<State> QueuePair<State> {
    /// Returns the queue pair number, 24 bits, as `rdma resource show qp` prints it.
    pub fn qpn(&self) -> u32 {
        self.handle.qpn()
    }

    /// Returns the objects that the queue pair was created with.
    pub(crate) fn resources(&self) -> &Resources {
        &self.handle.resources
    }

    /// Returns the inline capacity in bytes: [`Depth::inline`](crate::Depth::inline), or 0 if the
    /// device does not support that length.
    pub fn max_inline(&self) -> u32 {
        self.handle.max_inline
    }

    /// Posts a receive into `into`, whose region must belong to the queue pair's domain. Messages
    /// fill the receives in the order in which the receives were posted. A completion with `id`
    /// reports the length of the message.
    pub fn receive(&self, id: u64, into: MrSlice<'_>) -> Result<(), VerbsError> {
        self.handle.check_not_inherited()?;
        let mut sge = Segment::from_slice(into).sge;
        let mut request =
            ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut refused = null_mut();
        // SAFETY: the queue pair is alive; the call copies request and sge. The device checks the
        // memory against the region's lkey.
        let code = unsafe {
            rdma_sys::ibv_post_recv(self.handle.as_ptr(), &raw mut request, &raw mut refused)
        };
        self.handle.check(Verb::PostRecv, code)
    }
}

impl Handle {
    fn create(resources: &Resources) -> Result<Handle, VerbsError> {
        let context = resources.domain.context();
        let (pair, max_inline) =
            resources.init_attr(context.as_ptr())?.create_with_inline_fallback(|attr| {
                // SAFETY: the domain and the completion queue are alive, of the same device, and
                // will be owned by the handle; the attributes live until the call returns.
                let pair = unsafe { rdma_sys::ibv_create_qp(resources.domain.as_ptr(), attr) };
                NonNull::new(pair)
                    .ok_or_else(|| VerbsError::last_os_error(Verb::CreateQp, context.name()))
            })?;
        let resources = resources.clone();
        Ok(Handle {
            pair,
            created_by: CreatedBy::Handle,
            resources,
            max_inline,
            _not_copied: PhantomData,
        })
    }

    /// Fails if this process was forked after the device was opened.
    #[inline]
    fn check_not_inherited(&self) -> Result<(), VerbsError> {
        self.resources.domain.context().check_not_inherited()
    }

    fn device(&self) -> &str {
        self.resources.domain.context().name()
    }

    fn as_ptr(&self) -> *mut ibv_qp {
        self.pair.as_ptr()
    }

    fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive, and its number never changes.
        unsafe { self.pair.as_ref() }.qp_num
    }

    fn check(&self, verb: Verb, code: i32) -> Result<(), VerbsError> {
        match code {
            0 => Ok(()),
            code => Err(VerbsError::from_errno(verb, self.device(), code)),
        }
    }

    fn to_init(&self, port: u8) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS;
        let access =
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        self.modify(Verb::ModifyToInit, set, |attributes| {
            attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
            attributes.pkey_index = 0;
            attributes.port_num = port;
            attributes.qp_access_flags = access.0;
        })
    }

    fn to_rtr(
        &self,
        address: &AddressVector,
        peer: &Endpoint,
        settings: &Settings,
    ) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(Verb::ModifyToRtr, set, |attributes| {
            attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
            attributes.ah_attr = address.to_verbs();
            attributes.path_mtu = settings.mtu.to_verbs();
            attributes.dest_qp_num = peer.qpn;
            attributes.rq_psn = peer.psn;
            attributes.max_dest_rd_atomic = settings.reads;
            // Encodes 0.64 ms.
            attributes.min_rnr_timer = 12;
        })
    }

    fn to_rts(&self, psn: u32, settings: &Settings) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(Verb::ModifyToRts, set, |attributes| {
            attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
            attributes.timeout = settings.timeout;
            attributes.retry_cnt = settings.retries;
            attributes.rnr_retry = settings.retries;
            attributes.sq_psn = psn;
            attributes.max_rd_atomic = settings.reads;
        })
    }

    fn modify(
        &self,
        verb: Verb,
        set: ibv_qp_attr_mask,
        fill: impl FnOnce(&mut ibv_qp_attr),
    ) -> Result<(), VerbsError> {
        self.check_not_inherited()?;
        let mut attributes = MaybeUninit::<ibv_qp_attr>::zeroed();
        // SAFETY: the structure consists of integers and arrays of them, for which zeros are valid.
        let attributes = unsafe { attributes.assume_init_mut() };
        fill(attributes);
        let set = i32::try_from(set.0).unwrap_or(0);
        // SAFETY: the queue pair is alive, and the attributes live until the call returns.
        let code = unsafe { rdma_sys::ibv_modify_qp(self.as_ptr(), &raw mut *attributes, set) };
        self.check(verb, code)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.resources.domain.context().is_inherited()
            || !matches!(self.created_by, CreatedBy::Handle)
        {
            return;
        }
        // SAFETY: the queue pair was created once and is destroyed only here.
        let code = unsafe { rdma_sys::ibv_destroy_qp(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(device = self.device(), code, "ibv_destroy_qp failed");
        }
    }
}

/// Returns a random packet sequence number. The number is not a secret; it only has to differ
/// between successive connections.
fn random_24_bits() -> u32 {
    let mut bytes = [0; 4];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    let fallback = std::process::id().wrapping_mul(2_654_435_761);
    let number = read.map_or(fallback, |()| u32::from_ne_bytes(bytes));
    number & 0x00ff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    // Neither the device nor libibverbs checks the address of inline data against a key.
    #[test]
    fn bytes_that_a_request_carries_are_borrowed_and_fit() {
        let bytes = [7; 64];
        let carried = Segment::inline(&bytes, 64).unwrap();
        assert_eq!((carried.sge.addr, carried.sge.length), (bytes.as_ptr().addr() as u64, 64));
        assert!(carried.is_inline);
        for (length, max) in [(64, 63), (1, 0)] {
            let error = Segment::inline(&bytes[..length], max).err().unwrap().to_string();
            let text = format!("{length} bytes at offset 0 exceed a region of {max} bytes");
            assert_eq!(error, text);
        }
        assert!(Segment::inline(&[], 0).is_ok());
    }
}
