//! Queue pairs and memory of this rank, connected with those of the peer over the ports that the
//! rank table proves for both.

use super::turns::receive_id;
use super::{TAG, VerbsBenchError, transport_name};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{Nic, PacketPriority, Pair, PairTransport, RankTable};
use rlaunch_comm::Communicator;
use rlaunch_verbs::{
    CompletionQueue, Connected, Context, Depth, Device, Endpoint, Listener, MemoryRegion, MrSlice,
    Mtu, Prepared, ProtectionDomain, QueuePair, RemoteAddr, Resources, Route, Settings, VerbsError,
};
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Alignment of buffers in bytes.
const PAGE: usize = 4096;
/// Size of a counter of credits in bytes.
const COUNTER: usize = 8;
/// Timeout (exponent 14, which is 67 ms) and retry count of connections, as in perftest.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;
/// Number of receives that are posted at once, as in perftest.
const RECEIVES: u32 = 512;
/// Time in which the connection manager has to connect all queue pairs.
const DEADLINE: Duration = Duration::from_secs(20);
/// Length of the secret by which requests of the connection manager are recognised, in bytes.
const SECRET: usize = 16;
/// Number of words by which an end describes itself, and by which it describes a queue pair.
const END_WORDS: usize = 4 + SECRET / 8;
const PAIR_WORDS: usize = 5;

/// Needs of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndOptions {
    /// Maximum size of a message in bytes.
    pub(super) bytes: usize,
    pub(super) qps: usize,
    /// Maximum number of outstanding requests of a queue pair.
    pub(super) depth: u32,
    /// Maximum size of messages that are copied into the request, in bytes.
    pub(super) inline: u32,
    /// Upper limit of the path MTU in bytes.
    pub(super) mtu: Option<u32>,
    /// Whether messages fill posted receives.
    pub(super) receives: bool,
    /// Whether messages are RDMA reads.
    pub(super) reads: bool,
}

impl Default for EndOptions {
    fn default() -> EndOptions {
        let (qps, depth, inline) = (1, 1, 0);
        EndOptions { bytes: 1, qps, depth, inline, mtu: None, receives: false, reads: false }
    }
}

/// Positions in the memory of an end, in bytes. They are the same at both ends.
///
/// Each queue pair has a buffer to send from, one for its last message, which the peer recognises,
/// and one to receive into. Behind all buffers, it has the count of messages received by this rank,
/// and the peer's, which the peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    buffer: usize,
    qps: usize,
}

impl Layout {
    fn new(bytes: usize, qps: usize) -> Layout {
        Layout { buffer: bytes.max(1).next_multiple_of(PAGE), qps }
    }

    pub(super) fn output(self, qp: usize) -> usize {
        3 * qp * self.buffer
    }

    pub(super) fn last_output(self, qp: usize) -> usize {
        self.output(qp) + self.buffer
    }

    pub(super) fn input(self, qp: usize) -> usize {
        self.output(qp) + 2 * self.buffer
    }

    /// Returns the position of the count of messages that this rank has received.
    pub(super) fn received(self, qp: usize) -> usize {
        3 * self.qps * self.buffer + 2 * COUNTER * qp
    }

    /// Returns the position of the count of messages that the peer has received.
    pub(super) fn peer_received(self, qp: usize) -> usize {
        self.received(qp) + COUNTER
    }

    fn size(self) -> usize {
        self.received(self.qps)
    }
}

/// Messages of streams over a queue pair since it was connected.
///
/// Counters are never set back, because a count that the peer has written may arrive late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Number of received messages of which the peer was told.
    pub(super) told: u64,
}

/// Connected queue pairs of this rank.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) pairs: Vec<QueuePair<Connected>>,
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) region: MemoryRegion,
    pub(super) layout: Layout,
    /// Address of the peer's memory, and its key.
    remote: (u64, u32),
    pub(super) depth: u32,
    /// Maximum size of a message in bytes.
    bytes: usize,
    /// Number of receives of each queue pair; 0 if messages do not fill receives.
    pub(super) receives: u32,
    /// Whether a sender waits until the peer has posted receives. RoCE and InfiniBand repeat a
    /// message that comes too early; iWARP, which only the connection manager connects, closes the
    /// connection.
    pub(super) has_credits: bool,
    /// Messages of streams over each queue pair since it was connected.
    pub(super) carried: Vec<Carried>,
    settings: Settings,
    /// Path MTU of the two ports in bytes, if known.
    path_mtu: Option<u32>,
    /// Device and port of each rank.
    pub(super) ports: [String; 2],
    pub(super) by_manager: bool,
}

impl Ends {
    /// Connects with the peer, which calls this function with equal options at the same time.
    pub(super) fn connect(
        comm: &Communicator,
        table: &RankTable,
        options: EndOptions,
    ) -> Result<Ends, VerbsBenchError> {
        let path = Path::between(table, comm.rank())?;
        let (context, listener) = path.open(options.qps)?;
        let domain = ProtectionDomain::allocate(&context)?;
        let receives = if options.receives { RECEIVES } else { 0 };
        let by_manager = listener.is_some();
        let has_credits = by_manager && options.receives;
        let depth = Depth {
            // One request more tells the peer how many messages were received.
            send: options.depth + u32::from(has_credits),
            receive: receives.max(1),
            inline: options.inline,
        };
        let qps = u32::try_from(options.qps).unwrap_or(u32::MAX);
        let entries = qps.saturating_mul(depth.send + depth.receive);
        let completions = CompletionQueue::create(&context, entries)?;
        let layout = Layout::new(options.bytes, options.qps);
        let region = MemoryRegion::register(&domain, layout.size())?;
        let resources = Resources { depth, ..Resources::new(&domain, &completions) };
        let settings = path.settings(table, &context, options)?;
        let own = Introduction::new(&region, listener.as_ref())?;
        let meeting = Meeting { comm, path: &path, resources: &resources, settings: &settings };
        let (pairs, peer) = match &listener {
            None => meeting.by_exchange(options.qps, &own)?,
            Some(listener) => meeting.by_manager(options.qps, &own, listener)?,
        };
        let settings = meeting.agreed(&peer);
        let ends = Ends {
            pairs,
            completions,
            region,
            layout,
            remote: (peer.address, peer.key),
            depth: options.depth,
            bytes: options.bytes,
            receives,
            has_credits,
            carried: vec![Carried::default(); options.qps],
            settings,
            path_mtu: path.pair.mtu,
            ports: path.names(comm.rank()),
            by_manager,
        };
        for qp in 0..options.qps {
            (0..receives).try_for_each(|_| ends.post_receive(qp))?;
        }
        ends.send_first(comm)?;
        comm.barrier()?;
        Ok(ends)
    }

    /// Sends the first message over each connection of the connection manager, which must come from
    /// the end that requested it.
    fn send_first(&self, comm: &Communicator) -> Result<(), VerbsBenchError> {
        if !self.by_manager || comm.rank() != 0 {
            return Ok(());
        }
        let deadline = Instant::now() + DEADLINE;
        for (qp, pair) in self.pairs.iter().enumerate() {
            let count = self.region.slice(self.layout.received(qp), COUNTER)?;
            pair.write(0, count, self.remote(self.layout.peer_received(qp)))?;
            let done = loop {
                match self.completions.poll_one()? {
                    Some(done) => break done,
                    None if Instant::now() < deadline => {}
                    None => {
                        let (name, seconds) = ("first RDMA write", DEADLINE.as_secs());
                        return Err(VerbsBenchError::Stalled { name, bytes: COUNTER, seconds });
                    }
                }
            };
            if !done.status.is_success() {
                let (name, status) = ("first RDMA write", done.status.to_string());
                return Err(VerbsBenchError::Failed { name, bytes: COUNTER, status });
            }
        }
        Ok(())
    }

    /// Returns the address of a position in the peer's memory.
    pub(super) fn remote(&self, offset: usize) -> RemoteAddr {
        let (address, key) = self.remote;
        RemoteAddr::new(address.wrapping_add(offset as u64), key)
    }

    /// Returns the part of this rank's memory that begins at a position.
    pub(super) fn slice(&self, offset: usize, bytes: usize) -> Result<MrSlice<'_>, VerbsError> {
        self.region.slice(offset, bytes)
    }

    pub(super) fn max_inline(&self) -> u32 {
        self.pairs.iter().map(QueuePair::max_inline).min().unwrap_or(0)
    }

    /// Returns the MTU of the connections in bytes; `None` if it is not known.
    pub(super) fn mtu(&self) -> Option<u32> {
        let limit = self.settings.mtu.bytes();
        self.path_mtu
            .map_or((limit < Mtu::B4096.bytes()).then_some(limit), |path| Some(path.min(limit)))
    }

    /// Returns the maximum number of outstanding reads of a queue pair.
    pub(super) fn reads(&self) -> u8 {
        self.settings.reads
    }

    /// Posts a receive. All receives of a queue pair fill the same buffer.
    pub(super) fn post_receive(&self, qp: usize) -> Result<(), VerbsError> {
        let into = self.region.slice(self.layout.input(qp), self.bytes)?;
        self.pairs[qp].receive(receive_id(qp), into)
    }
}

/// Path between the two ranks, as the rank table has it.
struct Path<'a> {
    pair: Pair,
    own: &'a Nic,
    peer: &'a Nic,
}

impl<'a> Path<'a> {
    fn between(table: &'a RankTable, me: usize) -> Result<Path<'a>, VerbsBenchError> {
        let ranks = [me, 1 - me].map(|rank| Rank(rank as u32));
        let pair = table.pair(ranks[0], ranks[1]).ok_or(VerbsBenchError::NoDevice(me))?;
        if !matches!(pair.connect, PairTransport::Rdma | PairTransport::RdmaCm) {
            return Err(VerbsBenchError::NoRdma(transport_name(pair.connect)));
        }
        let nic = |rank: Rank, nic: Option<u32>| {
            let node = table.ranks().get(rank.index())?.node;
            table.nodes().get(node.index())?.nics.get(nic? as usize)
        };
        let nic = |rank, index| nic(rank, index).ok_or(VerbsBenchError::NoDevice(rank.index()));
        Ok(Path { pair, own: nic(ranks[0], pair.nic_a)?, peer: nic(ranks[1], pair.nic_b)? })
    }

    /// Returns the device and port of rank 0 and of rank 1.
    fn names(&self, me: usize) -> [String; 2] {
        let name = |nic: &Nic| format!("{}/{}", nic.device, nic.port);
        let names = [name(self.own), name(self.peer)];
        if me == 0 {
            names
        } else {
            let [own, peer] = names;
            [peer, own]
        }
    }

    /// Opens this rank's device. If the connection manager connects, it opens the device, and
    /// listens for `qps` requests.
    fn open(&self, qps: usize) -> Result<(Arc<Context>, Option<Listener>), VerbsError> {
        if self.pair.connect == PairTransport::Rdma {
            return Ok((Device::by_name(&self.own.device)?.open()?, None));
        }
        let backlog = u32::try_from(qps).unwrap_or(u32::MAX);
        let listener = Listener::bind(SocketAddr::new(address(self.own), 0), backlog)?;
        Ok((listener.context().clone(), Some(listener)))
    }

    fn settings(
        &self,
        table: &RankTable,
        context: &Context,
        options: EndOptions,
    ) -> Result<Settings, VerbsError> {
        let PacketPriority { traffic_class, service_level } = table.packet_priority();
        let mtu = [self.pair.mtu, options.mtu].into_iter().flatten().min();
        let limits = context.limits()?;
        let reads = if options.reads {
            limits.reads_as_initiator.min(limits.reads_as_responder).max(1)
        } else {
            1
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
fn address(nic: &Nic) -> IpAddr {
    nic.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}

/// Description of an end, which the peer needs to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Introduction {
    /// Address and key of the memory.
    address: u64,
    key: u32,
    /// Port of the connection manager's listener, or 0.
    port: u16,
    /// Maximum number of outstanding reads.
    reads: u8,
    secret: [u8; SECRET],
}

impl Introduction {
    fn new(
        region: &MemoryRegion,
        listener: Option<&Listener>,
    ) -> Result<Introduction, VerbsBenchError> {
        let mut secret = [0; SECRET];
        File::open("/dev/urandom")?.read_exact(&mut secret)?;
        let port = listener.map_or(0, Listener::port);
        Ok(Introduction { address: region.address(), key: region.rkey(), port, reads: 0, secret })
    }

    fn to_words(&self) -> [u64; END_WORDS] {
        let (low, high) = self.secret.split_at(SECRET / 2);
        let word = |half: &[u8]| half.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let numbers = [u64::from(self.key), u64::from(self.port), u64::from(self.reads)];
        let [key, port, reads] = numbers;
        [self.address, key, port, reads, word(low), word(high)]
    }

    /// Reads what the peer, a rank of this job, has sent.
    fn from_words(words: [u64; END_WORDS]) -> Introduction {
        let [address, key, port, reads, low, high] = words;
        let mut secret = [0; SECRET];
        secret[..SECRET / 2].copy_from_slice(&low.to_be_bytes());
        secret[SECRET / 2..].copy_from_slice(&high.to_be_bytes());
        let (key, port, reads) = (key as u32, port as u16, reads as u8);
        Introduction { address, key, port, reads, secret }
    }
}

/// Ranks that connect their queue pairs.
struct Meeting<'a> {
    comm: &'a Communicator,
    path: &'a Path<'a>,
    resources: &'a Resources,
    settings: &'a Settings,
}

type Met = (Vec<QueuePair<Connected>>, Introduction);

impl Meeting<'_> {
    /// Exchanges the endpoints of the queue pairs over the communicator.
    fn by_exchange(&self, qps: usize, own: &Introduction) -> Result<Met, VerbsBenchError> {
        let nic = self.path.own;
        let prepared =
            (0..qps).map(|_| QueuePair::prepare(self.resources, nic.port, nic.gid_index));
        let prepared: Vec<QueuePair<Prepared>> = prepared.collect::<Result<_, _>>()?;
        let mine = prepared.iter().flat_map(|pair| endpoint_words(pair.endpoint()));
        let (peer, theirs) = self.exchange(own, &mine.collect::<Vec<_>>())?;
        let settings = self.agreed(&peer);
        let pairs = prepared
            .into_iter()
            .zip(theirs.chunks(PAIR_WORDS))
            .map(|(pair, words)| pair.connect(&endpoint(words), &settings));
        Ok((pairs.collect::<Result<_, _>>()?, peer))
    }

    /// Lets the connection manager connect: rank 0 requests, and rank 1 accepts.
    fn by_manager(
        &self,
        qps: usize,
        own: &Introduction,
        listener: &Listener,
    ) -> Result<Met, VerbsBenchError> {
        let (peer, _) = self.exchange(own, &vec![0; qps * PAIR_WORDS])?;
        let deadline = Instant::now() + DEADLINE;
        let pairs = match self.comm.rank() {
            0 => (0..qps).map(|qp| self.request(&peer, qp, deadline)).collect::<Result<_, _>>()?,
            _ => self.accept(qps, own, &self.agreed(&peer), listener, deadline)?,
        };
        Ok((pairs, peer))
    }

    /// Returns the settings that suit both ends.
    fn agreed(&self, peer: &Introduction) -> Settings {
        Settings { reads: self.settings.reads.min(peer.reads).max(1), ..*self.settings }
    }

    /// Exchanges descriptions with the peer.
    fn exchange(
        &self,
        own: &Introduction,
        pairs: &[u64],
    ) -> Result<(Introduction, Vec<u64>), VerbsBenchError> {
        let own = Introduction { reads: self.settings.reads, ..own.clone() };
        let words = [&own.to_words()[..], pairs].concat();
        let mut theirs = vec![0; words.len()];
        let peer = 1 - self.comm.rank();
        self.comm.sendrecv(&words, (peer, TAG), &mut theirs, (peer, TAG))?;
        let pairs = theirs.split_off(END_WORDS);
        let theirs = theirs.first_chunk().copied().unwrap_or_default();
        Ok((Introduction::from_words(theirs), pairs))
    }

    fn request(
        &self,
        peer: &Introduction,
        qp: usize,
        deadline: Instant,
    ) -> Result<QueuePair<Connected>, VerbsError> {
        let (from, to) =
            (address(self.path.own), SocketAddr::new(address(self.path.peer), peer.port));
        let route = Route::resolve(from, to, self.settings, deadline)?
            .require_device(&self.path.own.device)?;
        let data = [&peer.secret[..], &(qp as u32).to_be_bytes()].concat();
        route.connect(self.resources, &data, &self.agreed(peer), deadline)
    }

    /// Accepts the peer's requests. Requests without the secret are not of this job.
    fn accept(
        &self,
        qps: usize,
        own: &Introduction,
        settings: &Settings,
        listener: &Listener,
        deadline: Instant,
    ) -> Result<Vec<QueuePair<Connected>>, VerbsBenchError> {
        let mut pairs: Vec<Option<QueuePair<Connected>>> = (0..qps).map(|_| None).collect();
        while pairs.iter().any(Option::is_none) {
            let Some(request) = listener.next_request(deadline)? else {
                let (name, seconds) = ("RDMA connection", DEADLINE.as_secs());
                return Err(VerbsBenchError::Stalled { name, bytes: 0, seconds });
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
    fn buffers_do_not_overlap() {
        let layout = Layout::new(5000, 2);
        let starts = [
            layout.output(0),
            layout.last_output(0),
            layout.input(0),
            layout.output(1),
            layout.last_output(1),
            layout.input(1),
            layout.received(0),
        ];
        assert!(starts.windows(2).all(|two| two[1] - two[0] == 8192), "{starts:?}");
        let counters = [
            layout.received(0),
            layout.peer_received(0),
            layout.received(1),
            layout.peer_received(1),
            layout.size(),
        ];
        assert!(counters.windows(2).all(|two| two[1] - two[0] == 8), "{counters:?}");
    }

    #[test]
    fn descriptions_arrive_as_they_were_sent() {
        let secret: [u8; SECRET] = std::array::from_fn(|index| 250 - index as u8);
        let (address, key) = (u64::MAX - 7, u32::MAX);
        let own = Introduction { address, key, port: 65_535, reads: 16, secret };
        assert_eq!(Introduction::from_words(own.to_words()), own);
        for gid in [None, Some("fe80::1".parse().unwrap())] {
            let (qpn, psn, lid) = (0x00ff_ffff, 0x00ab_cdef, 0xbfff);
            let sent = Endpoint { qpn, psn, lid, gid, mtu: Mtu::B1024, memory: None };
            assert_eq!(endpoint(&endpoint_words(&sent)), sent);
        }
    }
}
