//! Reliable connections. A queue pair is [`Prepared`] once it can receive and has an endpoint to
//! tell the peer, and [`Connected`] once it knows the peer's; only then can it send.

use super::address_vector::{AddressVector, LocalPort};
use super::resources::Resources;
use crate::cm_id::Id;
use crate::device::{LinkLayer, Mtu, PortAttributes};
use crate::error::{Verb, VerbsError};
use crate::memory::MemoryRegion;
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

/// Reads and atomics at once: one that a peer makes waits for the last.
pub(crate) const MAX_READS: u8 = 1;

/// It can receive; the peer is not known.
#[derive(Debug)]
pub struct Prepared {
    port: PortAttributes,
    gid: Option<(u16, Ipv6Addr)>,
}

/// It can send, too.
#[derive(Debug)]
pub struct Connected {
    /// By the peer, with the connection.
    said: Vec<u8>,
}

/// A queue pair of a reliable connection.
#[derive(Debug)]
pub struct QueuePair<State> {
    handle: Handle,
    endpoint: Endpoint,
    state: State,
}

/// What is destroyed at the end, in whatever state.
#[derive(Debug)]
struct Handle {
    pair: NonNull<ibv_qp>,
    /// Who made it, and destroys it.
    owner: CreatedBy,
    /// Owned for as long as the device may use them.
    resources: Resources,
    /// Bytes that a request can carry itself.
    inline: u32,
    _not_copied: PhantomData<*mut ibv_qp>,
}

#[derive(Debug)]
enum CreatedBy {
    Handle,
    /// With the id that it belongs to.
    ConnectionManager {
        _id: Id,
    },
}

// SAFETY: libibverbs is thread safe (see `Context`), and the pair is destroyed by its one owner.
unsafe impl Send for Handle {}
// SAFETY: as above; posting takes the pair's own lock.
unsafe impl Sync for Handle {}

/// What a peer has to know of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The queue pair's number, 24 bits.
    pub qpn: u32,
    /// The number of the first packet it sends, 24 bits, random: a late packet of an earlier queue
    /// pair with its number does not fit.
    pub psn: u32,
    /// Its port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Its port's GID.
    pub gid: Option<Ipv6Addr>,
    /// The largest packet of its port.
    pub mtu: Mtu,
    /// Where a peer may write, and by which key.
    pub memory: Option<(u64, u32)>,
}

impl Default for Endpoint {
    fn default() -> Endpoint {
        Endpoint { qpn: 0, psn: 0, lid: 0, gid: None, mtu: Mtu::B256, memory: None }
    }
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    address: u64,
    rkey: u32,
}

impl RemoteAddr {
    /// What a peer has told of: where, and by which key.
    pub fn new(address: u64, rkey: u32) -> RemoteAddr {
        RemoteAddr { address, rkey }
    }
}

impl Endpoint {
    /// What is `offset` bytes into the memory that the peer has told of.
    pub fn remote_addr(&self, offset: u64) -> RemoteAddr {
        let (address, rkey) = self.memory.unwrap_or_default();
        RemoteAddr { address: address.wrapping_add(offset), rkey }
    }

    /// The same with memory that the peer may write to.
    pub fn with_memory(&self, region: &MemoryRegion) -> Endpoint {
        Endpoint { memory: Some((region.address(), region.rkey())), ..self.clone() }
    }
}

/// How a connection behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The largest packet, at most; that of either port, when it is smaller.
    pub mtu: Mtu,
    /// An answer is waited for 4.096 µs · 2^timeout.
    pub timeout: u8,
    /// How often a packet is sent again without an answer, 0 to 7.
    pub retries: u8,
    /// With InfiniBand: which virtual lane.
    pub service_level: u8,
    /// With RoCE the TOS byte of IP.
    pub traffic_class: u8,
}

/// An answer within 0.27 s, at the second try.
impl Default for Settings {
    fn default() -> Settings {
        Settings { mtu: Mtu::B4096, timeout: 16, retries: 1, service_level: 0, traffic_class: 0 }
    }
}

impl QueuePair<Prepared> {
    /// Makes one on a port, counted from 1, that sends from this place of the port's GID table, and
    /// lets it receive.
    pub fn prepare(
        with: &Resources,
        port: u8,
        gid_index: Option<u16>,
    ) -> Result<QueuePair<Prepared>, VerbsError> {
        let context = with.domain.context();
        let port = context.port(port)?;
        let gid = match gid_index {
            Some(index) => context.gid(port.number, index)?.map(|entry| (index, entry.value)),
            None => None,
        };
        let handle = Handle::create(with)?;
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

    /// What the peer has to know.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Connects with a peer that does the same. It may not be sent to before it has: whoever sends
    /// first waits for the peer's word.
    pub fn connect(
        self,
        peer: &Endpoint,
        settings: &Settings,
    ) -> Result<QueuePair<Connected>, VerbsError> {
        let local = LocalPort::of(&self.state.port, self.state.gid);
        let address =
            AddressVector::between(&local, peer, settings.service_level, settings.traffic_class);
        let mtu = settings.mtu.min(self.endpoint.mtu).min(peer.mtu);
        self.handle.to_rtr(&address, peer, mtu)?;
        self.handle.to_rts(self.endpoint.psn, settings)?;
        Ok(QueuePair {
            handle: self.handle,
            endpoint: self.endpoint,
            state: Connected { said: Vec::new() },
        })
    }
}

impl QueuePair<Connected> {
    /// One that the connection manager has made and connected.
    pub(crate) fn of_manager(
        (pair, inline): (NonNull<ibv_qp>, u32),
        id: Id,
        with: &Resources,
        said: Vec<u8>,
    ) -> QueuePair<Connected> {
        let (owner, resources) = (CreatedBy::ConnectionManager { _id: id }, with.clone());
        let handle = Handle { pair, owner, resources, inline, _not_copied: PhantomData };
        let endpoint = Endpoint { qpn: handle.qpn(), ..Endpoint::default() };
        QueuePair { handle, endpoint, state: Connected { said } }
    }

    /// What the peer has said with the connection, by the connection manager alone: at most
    /// [`crate::MAX_PRIVATE_DATA`] bytes, which InfiniBand and RoCE fill up to with zeros.
    pub fn private_data(&self) -> &[u8] {
        &self.state.said
    }

    /// Has the device write a part of a region of the pair's own domain to the peer's memory. A
    /// completion with `id` tells the end; until then the part stays as it is.
    pub fn write(&self, id: u64, from: MrSlice<'_>, to: RemoteAddr) -> Result<(), VerbsError> {
        self.write_with(id, from, to, true)
    }

    /// Writes as [`QueuePair::write`] does. Unless it is `signalled` there is no completion, and its
    /// place in the queue pair is free only once a later request that is signalled has ended.
    pub fn write_with(
        &self,
        id: u64,
        from: MrSlice<'_>,
        to: RemoteAddr,
        signalled: bool,
    ) -> Result<(), VerbsError> {
        self.post(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, Piece::of(from), to, signalled)
    }

    /// Writes bytes that the request carries itself, at most as many as [`QueuePair::inline`] says:
    /// they may be changed at once.
    pub fn write_inline(
        &self,
        id: u64,
        bytes: &[u8],
        to: RemoteAddr,
        signalled: bool,
    ) -> Result<(), VerbsError> {
        self.post(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, self.carried(bytes)?, to, signalled)
    }

    /// Has the device read the peer's memory into a part of a region of the pair's own domain, as
    /// much as the part takes. A completion with `id` tells the end.
    pub fn read(&self, id: u64, into: MrSlice<'_>, from: RemoteAddr) -> Result<(), VerbsError> {
        self.post(id, ibv_wr_opcode::IBV_WR_RDMA_READ, Piece::of(into), from, true)
    }

    /// Sends a part of a region of the pair's own domain to where the peer receives next.
    pub fn send(&self, id: u64, from: MrSlice<'_>, signalled: bool) -> Result<(), VerbsError> {
        let nowhere = RemoteAddr::new(0, 0);
        self.post(id, ibv_wr_opcode::IBV_WR_SEND, Piece::of(from), nowhere, signalled)
    }

    /// Sends bytes that the request carries itself, as [`QueuePair::write_inline`] writes them.
    pub fn send_inline(&self, id: u64, bytes: &[u8], signalled: bool) -> Result<(), VerbsError> {
        let nowhere = RemoteAddr::new(0, 0);
        self.post(id, ibv_wr_opcode::IBV_WR_SEND, self.carried(bytes)?, nowhere, signalled)
    }

    /// Bytes to be carried by a request, which has room for them.
    fn carried<'b>(&self, bytes: &'b [u8]) -> Result<Piece<'b>, VerbsError> {
        Piece::carried(bytes, self.inline())
    }

    fn post(
        &self,
        id: u64,
        opcode: ibv_wr_opcode::Type,
        here: Piece<'_>,
        there: RemoteAddr,
        signalled: bool,
    ) -> Result<(), VerbsError> {
        self.handle.own()?;
        let flag = |is_set: bool, flag: ibv_send_flags| if is_set { flag.0 } else { 0 };
        let mut piece = here.piece;
        let mut request = MaybeUninit::<ibv_send_wr>::zeroed();
        // SAFETY: integers, pointers and unions of them: zeros are a value of each.
        let request = unsafe { request.assume_init_mut() };
        request.wr_id = id;
        request.sg_list = &raw mut piece;
        request.num_sge = 1;
        request.opcode = opcode;
        request.send_flags = flag(signalled, ibv_send_flags::IBV_SEND_SIGNALED)
            | flag(here.is_carried, ibv_send_flags::IBV_SEND_INLINE);
        request.wr.rdma.remote_addr = there.address;
        request.wr.rdma.rkey = there.rkey;
        let mut refused = null_mut();
        // SAFETY: the pair is alive and ready to send; request and piece live until the call
        // returns, which has copied them. Bytes that are carried are read by this call, with no key
        // that anything would be checked by: they are borrowed until it returns. What another piece
        // leads to is read or written by the device, which checks it against the region's key; the
        // region is there now, and the key is void once it is gone.
        let code = unsafe {
            rdma_sys::ibv_post_send(self.handle.as_ptr(), &raw mut *request, &raw mut refused)
        };
        self.handle.check(Verb::PostSend, code)
    }
}

/// Local memory that a request moves.
struct Piece<'m> {
    piece: ibv_sge,
    /// The request carries the bytes themselves.
    is_carried: bool,
    _memory: PhantomData<&'m [u8]>,
}

impl<'m> Piece<'m> {
    fn of(part: MrSlice<'m>) -> Piece<'m> {
        let piece = ibv_sge { addr: part.address, length: part.length, lkey: part.lkey };
        Piece { piece, is_carried: false, _memory: PhantomData }
    }

    fn carried(bytes: &'m [u8], room: u32) -> Result<Piece<'m>, VerbsError> {
        let (length, size) = (bytes.len(), room as usize);
        let short = u32::try_from(length).ok().filter(|length| *length <= room);
        let length = short.ok_or(VerbsError::OutOfBounds { offset: 0, length, size })?;
        let piece = ibv_sge { addr: bytes.as_ptr().addr() as u64, length, lkey: 0 };
        Ok(Piece { piece, is_carried: true, _memory: PhantomData })
    }
}

impl<State> QueuePair<State> {
    /// Its number, 24 bits: what the device and its counters call it.
    pub fn qpn(&self) -> u32 {
        self.handle.qpn()
    }

    /// What it is made of.
    pub(crate) fn resources(&self) -> &Resources {
        &self.handle.resources
    }

    /// Bytes that a request can carry itself: what was wanted, or none.
    pub fn inline(&self) -> u32 {
        self.handle.inline
    }

    /// Has the device put what the peer sends next into a part of a region of the pair's own domain.
    pub fn receive(&self, id: u64, into: MrSlice<'_>) -> Result<(), VerbsError> {
        self.handle.own()?;
        let mut piece = Piece::of(into).piece;
        let mut request =
            ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut piece, num_sge: 1 };
        let mut refused = null_mut();
        // SAFETY: the pair is alive; request and piece live until the call returns, which has copied
        // them. What the piece leads to is checked by the device against the region's key.
        let code = unsafe {
            rdma_sys::ibv_post_recv(self.handle.as_ptr(), &raw mut request, &raw mut refused)
        };
        self.handle.check(Verb::PostRecv, code)
    }
}

impl Handle {
    fn create(with: &Resources) -> Result<Handle, VerbsError> {
        let context = with.domain.context();
        let (pair, inline) = with.wanted(context.as_ptr())?.or_without_inline(|wanted| {
            // SAFETY: the domain is alive and will be owned, as will be the queue, which is of the
            // same device; what is wanted lives until the call returns.
            let pair = unsafe { rdma_sys::ibv_create_qp(with.domain.as_ptr(), wanted) };
            NonNull::new(pair).ok_or_else(|| VerbsError::last(Verb::CreateQp, context.name()))
        })?;
        let resources = with.clone();
        Ok(Handle { pair, owner: CreatedBy::Handle, resources, inline, _not_copied: PhantomData })
    }

    /// Fails in a process that has inherited it.
    #[inline]
    fn own(&self) -> Result<(), VerbsError> {
        self.resources.domain.context().own()
    }

    /// For errors.
    fn device(&self) -> &str {
        self.resources.domain.context().name()
    }

    fn as_ptr(&self) -> *mut ibv_qp {
        self.pair.as_ptr()
    }

    fn qpn(&self) -> u32 {
        // SAFETY: the pair is alive, and its number never changes.
        unsafe { self.pair.as_ref() }.qp_num
    }

    fn check(&self, verb: Verb, code: i32) -> Result<(), VerbsError> {
        match code {
            0 => Ok(()),
            code => Err(VerbsError::code(verb, self.device(), code)),
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

    fn to_rtr(&self, address: &AddressVector, peer: &Endpoint, mtu: Mtu) -> Result<(), VerbsError> {
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
            attributes.path_mtu = mtu.to_verbs();
            attributes.dest_qp_num = peer.qpn;
            attributes.rq_psn = peer.psn;
            attributes.max_dest_rd_atomic = MAX_READS;
            // 0.64 ms.
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
            attributes.max_rd_atomic = MAX_READS;
        })
    }

    fn modify(
        &self,
        verb: Verb,
        set: ibv_qp_attr_mask,
        fill: impl FnOnce(&mut ibv_qp_attr),
    ) -> Result<(), VerbsError> {
        self.own()?;
        let mut attributes = MaybeUninit::<ibv_qp_attr>::zeroed();
        // SAFETY: integers and arrays of them: zeros are a value of each.
        let attributes = unsafe { attributes.assume_init_mut() };
        fill(attributes);
        let set = i32::try_from(set.0).unwrap_or(0);
        // SAFETY: the pair is alive, and the attributes live until the call returns.
        let code = unsafe { rdma_sys::ibv_modify_qp(self.as_ptr(), &raw mut *attributes, set) };
        self.check(verb, code)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.resources.domain.context().is_inherited()
            || !matches!(self.owner, CreatedBy::Handle)
        {
            return;
        }
        // SAFETY: it was made once and is destroyed here alone.
        let code = unsafe { rdma_sys::ibv_destroy_qp(self.as_ptr()) };
        if code != 0 {
            tracing::warn!(device = self.device(), code, "ibv_destroy_qp failed");
        }
    }
}

/// Nobody has to be unable to guess it: it tells connections apart that follow one another.
fn random_24_bits() -> u32 {
    let mut bytes = [0; 4];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    let fallback = std::process::id().wrapping_mul(2_654_435_761);
    let number = read.map_or(fallback, |()| u32::from_ne_bytes(bytes));
    number & 0x00ff_ffff
}

/// Whether a port is one that a GID has to be given for.
impl PortAttributes {
    /// RoCE is addressed by GID alone.
    pub fn needs_gid(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is no key by which a device, or libibverbs, would check where such bytes lie.
    #[test]
    fn bytes_that_a_request_carries_are_borrowed_and_fit() {
        let bytes = [7; 64];
        let carried = Piece::carried(&bytes, 64).unwrap();
        assert_eq!((carried.piece.addr, carried.piece.length), (bytes.as_ptr().addr() as u64, 64));
        assert!(carried.is_carried);
        for (length, room) in [(64, 63), (1, 0)] {
            let error = Piece::carried(&bytes[..length], room).err().unwrap().to_string();
            assert_eq!(error, format!("{length} bytes at 0 are not in a region of {room}"));
        }
        assert!(Piece::carried(&[], 0).is_ok());
    }
}
