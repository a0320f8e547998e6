//! Connections with the peer, over the ports that the rank table proves for both ranks.

use super::{TAG, VerbsBenchError};
use crate::matrix::nic;
use rlaunch_bootstrap::bench::VerbsOperation;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{Nic, PacketPriority, Pair, PairTransport, RankTable};
use rlaunch_comm::Communicator;
use rlaunch_verbs::{
    Connected, Context, Depth, Device, Endpoint, Listener, MemoryRegion, Mtu, Prepared, QueuePair,
    Resources, Route, Settings, VerbsError,
};
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time in which the connection manager has to connect all queue pairs, and in which a first message
/// has to arrive.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// Needs of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndOptions {
    /// Maximum size of a message in bytes.
    pub(super) bytes: usize,
    pub(super) qps: usize,
    /// Maximum number of outstanding requests of a queue pair.
    pub(super) depth: u32,
    pub(super) inline: Inline,
    /// Upper limit of the path MTU in bytes.
    pub(super) mtu: Option<u32>,
    pub(super) operation: VerbsOperation,
    /// Whether this rank waits for the last byte of a message to change, so that the device must write
    /// in order.
    pub(super) is_watched: bool,
}

/// Maximum size of messages that are copied into the request, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inline {
    /// Up to this size, as far as the device supports it.
    UpTo(u32),
    /// This size, or the measurement fails.
    Exactly(u32),
}

impl Default for EndOptions {
    fn default() -> EndOptions {
        let (qps, depth, inline) = (1, 1, Inline::UpTo(0));
        let (operation, is_watched) = (VerbsOperation::Write, false);
        EndOptions { bytes: 1, qps, depth, inline, mtu: None, operation, is_watched }
    }
}

/// ACK timeout (4.096 us times 2^17, that is 0.54 s) and retry count of connections, as in the communicator: a busy
/// processor is not taken for a dead link. Perftest's 67 ms make soft RoCE send again what is only late, and fail.
const TIMEOUT: u8 = 17;
const RETRIES: u8 = 6;
/// Time that the connection manager has for each queue pair, beside [`DEADLINE`].
const EACH: Duration = Duration::from_millis(20);
/// Inline capacities of devices other than the usual one, in bytes.
const INLINE_SIZES: [u32; 5] = [128, 96, 64, 48, 32];
/// Length of the secret by which requests of the connection manager are recognised, in bytes.
const SECRET: usize = 16;
/// Number of words by which an end describes itself, and by which it describes a queue pair.
const END_WORDS: usize = 4 + SECRET / 8;
const PAIR_WORDS: usize = 5;

/// Path between the two ranks, as the rank table has it.
pub(super) struct ProvedPath<'a> {
    me: usize,
    pub(super) pair: Pair,
    pub(super) own: &'a Nic,
    peer: &'a Nic,
}

impl<'a> ProvedPath<'a> {
    pub(super) fn between(
        table: &'a RankTable,
        me: usize,
    ) -> Result<ProvedPath<'a>, VerbsBenchError> {
        let ranks = [me, 1 - me].map(|rank| Rank(rank as u32));
        let pair = table.pair(ranks[0], ranks[1]).ok_or(VerbsBenchError::NoDevice(me))?;
        if !matches!(pair.connect, PairTransport::Rdma | PairTransport::RdmaCm) {
            return Err(VerbsBenchError::NoRdma(pair.connect));
        }
        let nic = |rank: Rank, index| {
            nic(table, rank, index).ok_or(VerbsBenchError::NoDevice(rank.index()))
        };
        Ok(ProvedPath {
            me,
            pair,
            own: nic(ranks[0], pair.nic_a)?,
            peer: nic(ranks[1], pair.nic_b)?,
        })
    }

    /// Returns the device and port of rank 0 and of rank 1.
    pub(super) fn names(&self, me: usize) -> [String; 2] {
        let name = |nic: &Nic| format!("{}/{}", nic.device, nic.port);
        let (first, second) = if me == 0 { (self.own, self.peer) } else { (self.peer, self.own) };
        [name(first), name(second)]
    }

    /// Opens this rank's device. If the connection manager connects, it opens the device, and
    /// listens for `qps` requests.
    pub(super) fn open(
        &self,
        qps: usize,
    ) -> Result<(Arc<Context>, Option<Listener>), VerbsBenchError> {
        if self.pair.connect == PairTransport::Rdma {
            return Ok((Device::by_name(&self.own.device)?.open()?, None));
        }
        let backlog = u32::try_from(qps).unwrap_or(u32::MAX);
        let listener = Listener::bind(SocketAddr::new(address(self.own, self.me)?, 0), backlog)?
            .require_device(&self.own.device)?;
        Ok((listener.context().clone(), Some(listener)))
    }

    /// Returns the inline capacity of queue pairs with these resources.
    pub(super) fn inline(
        &self,
        resources: &Resources,
        wanted: Inline,
        by_manager: bool,
    ) -> Result<u32, VerbsBenchError> {
        // A queue pair of the connection manager has what was asked for, or none.
        let supported = |inline: u32| -> Result<bool, VerbsError> {
            if by_manager || inline == 0 {
                return Ok(true);
            }
            let depth = Depth { inline, ..resources.depth };
            let resources = Resources { depth, ..resources.clone() };
            let (port, gid_index) = (self.own.port, self.own.gid_index);
            Ok(QueuePair::prepare(&resources, port, gid_index)?.max_inline() >= inline)
        };
        let (Inline::UpTo(asked) | Inline::Exactly(asked)) = wanted;
        let usual = INLINE_SIZES.into_iter().filter(|size| *size < asked);
        let mut most = 0;
        for inline in [asked].into_iter().chain(usual) {
            if supported(inline)? {
                most = inline;
                break;
            }
        }
        if most < asked && matches!(wanted, Inline::Exactly(_)) {
            let (device, what) = (self.own.device.clone(), "bytes of inline data at most");
            let (asked, most) = (asked.into(), most.into());
            return Err(VerbsBenchError::Limit { device, what, asked, most });
        }
        Ok(most)
    }

    pub(super) fn settings(
        &self,
        table: &RankTable,
        context: &Context,
        options: EndOptions,
    ) -> Result<Settings, VerbsError> {
        let PacketPriority { traffic_class, service_level } = table.packet_priority();
        let mtu = [self.pair.mtu, options.mtu].into_iter().flatten().min();
        let limits = context.limits()?;
        let reads = match options.operation {
            VerbsOperation::Read => limits.reads_as_initiator.min(limits.reads_as_responder).max(1),
            VerbsOperation::Write | VerbsOperation::Send => 1,
        };
        Ok(Settings {
            mtu: mtu.and_then(Mtu::up_to).unwrap_or(Mtu::B4096),
            timeout: TIMEOUT,
            retries: RETRIES,
            reads,
            traffic_class,
            service_level,
        })
    }
}

/// Returns the address of a port's network interface.
fn address(nic: &Nic, rank: usize) -> Result<IpAddr, VerbsBenchError> {
    nic.address.ok_or(VerbsBenchError::NoDevice(rank))
}

/// Description of an end, which the peer needs to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Advert {
    /// Address and key of the memory.
    pub(super) address: u64,
    pub(super) key: u32,
    /// Port of the connection manager's listener, or 0.
    port: u16,
    /// Maximum number of outstanding reads.
    reads: u8,
    secret: [u8; SECRET],
}

impl Advert {
    pub(super) fn new(
        region: &MemoryRegion,
        listener: Option<&Listener>,
        reads: u8,
    ) -> Result<Advert, VerbsBenchError> {
        let mut secret = [0; SECRET];
        File::open("/dev/urandom")?.read_exact(&mut secret)?;
        let port = listener.map_or(0, Listener::port);
        Ok(Advert { address: region.address(), key: region.rkey(), port, reads, secret })
    }

    fn to_words(&self) -> [u64; END_WORDS] {
        let (low, high) = self.secret.split_at(SECRET / 2);
        let word = |half: &[u8]| half.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let numbers = [u64::from(self.key), u64::from(self.port), u64::from(self.reads)];
        let [key, port, reads] = numbers;
        [self.address, key, port, reads, word(low), word(high)]
    }

    /// Reads what the peer, a rank of this job, has sent.
    fn from_words(words: [u64; END_WORDS]) -> Advert {
        let [address, key, port, reads, low, high] = words;
        let mut secret = [0; SECRET];
        secret[..SECRET / 2].copy_from_slice(&low.to_be_bytes());
        secret[SECRET / 2..].copy_from_slice(&high.to_be_bytes());
        let (key, port, reads) = (key as u32, port as u16, reads as u8);
        Advert { address, key, port, reads, secret }
    }
}

/// Ranks that connect their queue pairs.
pub(super) struct Connecting<'a> {
    pub(super) comm: &'a Communicator,
    pub(super) path: &'a ProvedPath<'a>,
    pub(super) resources: &'a Resources,
    pub(super) settings: &'a Settings,
}

/// Queue pairs, the advert of the peer, and the MTU in bytes if it is known.
pub(super) type ConnectedPairs = (Vec<QueuePair<Connected>>, Advert, Option<u32>);

impl Connecting<'_> {
    /// Exchanges the endpoints of the queue pairs over the communicator.
    pub(super) fn by_exchange(
        &self,
        qps: usize,
        own: &Advert,
    ) -> Result<ConnectedPairs, VerbsBenchError> {
        let nic = self.path.own;
        let prepared =
            (0..qps).map(|_| QueuePair::prepare(self.resources, nic.port, nic.gid_index));
        let prepared: Vec<QueuePair<Prepared>> = prepared.collect::<Result<_, _>>()?;
        let mine = prepared.iter().flat_map(|pair| endpoint_words(pair.endpoint()));
        let (peer, theirs) = self.exchange(own, &mine.collect::<Vec<_>>())?;
        let settings = self.agreed(&peer);
        let (mut pairs, mut mtu) = (Vec::new(), settings.mtu);
        for (pair, words) in prepared.into_iter().zip(theirs.chunks(PAIR_WORDS)) {
            let theirs = endpoint(words);
            mtu = mtu.min(pair.endpoint().mtu).min(theirs.mtu);
            pairs.push(pair.connect(&theirs, &settings)?);
        }
        Ok((pairs, peer, Some(mtu.bytes())))
    }

    /// Lets the connection manager connect: rank 0 requests, and rank 1 accepts.
    pub(super) fn by_manager(
        &self,
        qps: usize,
        own: &Advert,
        listener: &Listener,
    ) -> Result<ConnectedPairs, VerbsBenchError> {
        let (peer, _) = self.exchange(own, &[])?;
        let deadline = Instant::now() + DEADLINE + EACH * u32::try_from(qps).unwrap_or(u32::MAX);
        let pairs = match self.comm.rank() {
            0 => (0..qps).map(|qp| self.request(&peer, qp, deadline)).collect::<Result<_, _>>()?,
            _ => self.accept(qps, own, &self.agreed(&peer), listener, deadline)?,
        };
        Ok((pairs, peer, None))
    }

    /// Returns the settings that suit both ends.
    pub(super) fn agreed(&self, peer: &Advert) -> Settings {
        Settings { reads: self.settings.reads.min(peer.reads).max(1), ..*self.settings }
    }

    /// Exchanges descriptions with the peer.
    fn exchange(&self, own: &Advert, pairs: &[u64]) -> Result<(Advert, Vec<u64>), VerbsBenchError> {
        let words = [&own.to_words()[..], pairs].concat();
        let mut theirs = vec![0; words.len()];
        let peer = 1 - self.comm.rank();
        self.comm.sendrecv(&words, (peer, TAG), &mut theirs, (peer, TAG))?;
        let pairs = theirs.split_off(END_WORDS);
        let theirs = theirs.first_chunk().copied().unwrap_or_default();
        Ok((Advert::from_words(theirs), pairs))
    }

    fn request(
        &self,
        peer: &Advert,
        qp: usize,
        deadline: Instant,
    ) -> Result<QueuePair<Connected>, VerbsBenchError> {
        let (own, other) = (self.comm.rank(), 1 - self.comm.rank());
        let from = address(self.path.own, own)?;
        let to = SocketAddr::new(address(self.path.peer, other)?, peer.port);
        let route = Route::resolve(from, to, self.settings, deadline)?
            .require_device(&self.path.own.device)?;
        let data = [&peer.secret[..], &(qp as u32).to_be_bytes()].concat();
        Ok(route.connect(self.resources, &data, &self.agreed(peer), deadline)?)
    }

    /// Accepts the peer's requests. Requests without the secret are not of this job.
    fn accept(
        &self,
        qps: usize,
        own: &Advert,
        settings: &Settings,
        listener: &Listener,
        deadline: Instant,
    ) -> Result<Vec<QueuePair<Connected>>, VerbsBenchError> {
        let mut pairs: Vec<Option<QueuePair<Connected>>> = (0..qps).map(|_| None).collect();
        while pairs.iter().any(Option::is_none) {
            let Some(request) = listener.next_request(deadline)? else {
                let missing = pairs.iter().filter(|pair| pair.is_none()).count();
                let seconds = DEADLINE.as_secs();
                return Err(VerbsBenchError::NotConnected { missing, qps, seconds });
            };
            let number = request.private_data().strip_prefix(&own.secret[..]);
            let number = number.and_then(|rest| rest.first_chunk()).copied();
            let number = number.map(|bytes| u32::from_be_bytes(bytes) as usize);
            match number.and_then(|number| pairs.get_mut(number)) {
                Some(place @ None) => {
                    *place = Some(request.accept(self.resources, &[], settings, deadline)?);
                }
                _ => request.reject(),
            }
        }
        Ok(pairs.into_iter().flatten().collect())
    }
}

fn endpoint_words(endpoint: &Endpoint) -> [u64; PAIR_WORDS] {
    let gid = endpoint.gid.map_or(0, u128::from);
    let numbers = u64::from(endpoint.qpn) << 32 | u64::from(endpoint.psn);
    let (lid, mtu) = (u64::from(endpoint.lid), u64::from(endpoint.mtu.bytes()));
    [numbers, lid, mtu, (gid >> 64) as u64, gid as u64]
}

/// Reads an endpoint; `words` are of [`endpoint_words`].
fn endpoint(words: &[u64]) -> Endpoint {
    let [numbers, lid, mtu, high, low] = words.first_chunk().copied().unwrap_or_default();
    let gid = u128::from(high) << 64 | u128::from(low);
    Endpoint {
        qpn: (numbers >> 32) as u32,
        psn: numbers as u32,
        lid: lid as u16,
        gid: (gid != 0).then(|| Ipv6Addr::from(gid)),
        mtu: Mtu::up_to(mtu as u32).unwrap_or(Mtu::B4096),
        memory: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_arrive_as_they_were_sent() {
        let secret: [u8; SECRET] = std::array::from_fn(|index| 250 - index as u8);
        let (address, key) = (u64::MAX - 7, u32::MAX);
        let own = Advert { address, key, port: 65_535, reads: 16, secret };
        assert_eq!(Advert::from_words(own.to_words()), own);
        for gid in [None, Some("fe80::1".parse().unwrap())] {
            let (qpn, psn, lid) = (0x00ff_ffff, 0x00ab_cdef, 0xbfff);
            let sent = Endpoint { qpn, psn, lid, gid, mtu: Mtu::B1024, memory: None };
            assert_eq!(endpoint(&endpoint_words(&sent)), sent);
        }
    }
}
