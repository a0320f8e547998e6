//! RDMA between ranks of different nodes: a queue pair for each pair of ranks, over the ports in
//! the rank table.
//!
//! 1. Before the all-gather of contacts, a rank creates its queue pairs and puts their numbers,
//!    first packet sequence numbers (PSNs) and ports into its contact ([`cm`]).
//! 2. After the all-gather, the rank connects its queue pairs. If a pair uses the connection
//!    manager ([`cm`]), the lower rank sends a connection request to the higher rank, and both
//!    authenticate each other.
//! 3. No queue pair is used before all ranks have reported in a second all-gather that their queue
//!    pairs are connected ([`super::report_ready`]).
//!
//! In large jobs two ranks exchange the data of step 1 over a TCP connection, when one of them
//! sends the other the first message ([`lazy`]).

mod cm;
mod lazy;

pub(crate) use lazy::LazyRdma;

use super::handshake::RankKey;
use super::{ConnectError, Contact, NoRdma};
use crate::transport::verbs::{CqPoller, FirstSender, LinkConfig, VerbsLink};
use crate::types::PeerName;
use cm::{Advert, PortAdvert, QpAdvert};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{Nic, PacketPriority, Pair, PairTransport, RankTable};
use rlaunch_verbs::{
    BounceBuffers, ConnectRequest, Depth, Device, Endpoint, Listener, Mtu, Prepared, QueuePair,
    Settings, VerbsError,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of send slots (buffers) and of receive slots of a queue pair. A rank reports to its peer
/// when half of the receive slots were consumed.
const SLOTS: u32 = 32;
/// Inline data of a work request, in bytes. All tested devices support this length, which is enough
/// for 56 bytes of payload.
const INLINE: u32 = 80;
const DEPTH: Depth = Depth { send: SLOTS, receive: SLOTS, inline: INLINE };
/// Maximum memory of the slots of all queue pairs of a process, in bytes. It is exceeded only if
/// the slots have the shortest payload.
const MEMORY: usize = 16 << 20;
/// Shortest and longest payload of a slot, in bytes.
const SHORTEST_PAYLOAD: usize = 1 << 10;
const LONGEST_PAYLOAD: usize = 16 << 10;

/// ACK timeout (4.096 us times 2^17, that is 0.54 s) and retry count of a queue pair. With these
/// values a busy processor or switch is not taken for a dead link, and a dead link is reported
/// within 5 s. The retry count is not 7, because soft RoCE then retries forever.
const TIMEOUT: u8 = 17;
const RETRIES: u8 = 6;

/// RDMA ports of this rank, and its queue pairs that are not connected yet.
#[derive(Debug)]
pub(crate) struct Fabric {
    me: Rank,
    job: String,
    key: RankKey,
    /// Longest payload of a slot, in bytes.
    payload: usize,
    ports: BTreeMap<PortKey, Port>,
    paths: BTreeMap<Rank, PairPath>,
    /// Queue pairs that were created before the all-gather of contacts.
    pairs: BTreeMap<Rank, QueuePair<Prepared>>,
}

/// Port of this rank: its index in the NIC list of this node in the rank table, and whether the
/// connection manager connects its queue pairs.
type PortKey = (u32, bool);

#[derive(Debug)]
struct Port {
    poller: Arc<CqPoller>,
    /// Listener of the connection manager, if it is used.
    listener: Option<Listener>,
    advert: PortAdvert,
}

/// Path from this rank to one peer: the ports at both ends, and the MTU.
#[derive(Clone, Copy, Debug)]
struct PairPath {
    port: PortKey,
    /// Index of the peer's NIC in the NIC list of its node.
    nic: u32,
    /// Path MTU in bytes, if known.
    mtu: Option<u32>,
}

/// Advert of a peer, and the parameters of the link with the peer.
type PeerAdvert = (Advert, LinkConfig);

/// Connected queue pair, which must not be used before the peer's queue pair is connected as well.
#[derive(Debug)]
pub(crate) struct ConnectedQp {
    slots: BounceBuffers,
    poller: Arc<CqPoller>,
    config: LinkConfig,
    first_sender: FirstSender,
}

impl ConnectedQp {
    /// Makes the link. The peer's queue pair must be connected already.
    pub(crate) fn link(self) -> VerbsLink {
        VerbsLink::new(self.slots, self.poller, self.config, self.first_sender)
    }
}

impl Fabric {
    /// Opens the devices that the rank table names for `me`. Unless `is_lazy`, creates a queue pair
    /// for each peer that `me` reaches by RDMA. Returns `None` if the table names no device.
    pub(crate) fn open(
        table: &RankTable,
        me: Rank,
        job: String,
        is_lazy: bool,
    ) -> Result<Option<Fabric>, ConnectError> {
        let named: Vec<(PortKey, Pair)> = pairs(table, me).collect();
        if named.is_empty() {
            return Ok(None);
        }
        let payload = payload(memory(), named.len());
        let key = RankKey::random().map_err(ConnectError::system("generate a key"))?;
        let ports = open_ports(table, me, &named, payload)?;
        let path = |(port, pair): (PortKey, Pair)| {
            let nic = pair.nic_b.unwrap_or(0);
            (pair.b, PairPath { port, nic, mtu: pair.mtu })
        };
        let paths = named.into_iter().map(path).collect();
        let pairs = BTreeMap::new();
        let mut fabric = Fabric { me, job, key, payload, ports, paths, pairs };
        if !is_lazy {
            for peer in fabric.paths.keys() {
                let prepared = fabric.prepare(table, *peer)?;
                fabric.pairs.extend(prepared.map(|pair| (*peer, pair)));
            }
        }
        Ok(Some(fabric))
    }

    /// Encodes the data that peers need to connect with this rank.
    pub(crate) fn advert(&self) -> Result<Vec<u8>, ConnectError> {
        let pairs = self.pairs.iter().map(|(peer, pair)| {
            let Endpoint { qpn, psn, .. } = *pair.endpoint();
            QpAdvert { peer: peer.0, qpn, psn }
        });
        let advert = Advert {
            slots: SLOTS,
            payload: u32::try_from(self.payload).unwrap_or(u32::MAX),
            key: self.key.clone(),
            ports: self.ports.values().map(|port| port.advert.clone()).collect(),
            pairs: pairs.collect(),
        };
        advert.encode()
    }

    /// Connects with all peers that have advertised queue pairs; the other peers are not reached by
    /// RDMA. Fails if a peer is not connected within `timeout`.
    pub(crate) fn connect(
        mut self,
        contacts: &[Contact],
        table: &RankTable,
        timeout: Duration,
    ) -> Result<BTreeMap<Rank, ConnectedQp>, ConnectError> {
        let cm_context = self.cm_context(table, Instant::now() + timeout);
        let (mut connected, mut cm_targets) = (BTreeMap::new(), Vec::new());
        let mut pairs = std::mem::take(&mut self.pairs);
        for (peer, advert) in self.adverts(contacts)? {
            let Some(path) = self.paths.get(&peer) else { continue };
            if path.port.1 {
                cm_targets.push((path.port, self.cm_target(table, peer, &advert)?));
            } else if let Some(pair) = pairs.remove(&peer) {
                let qp_advert = advert.0.pair(self.me, peer)?;
                connected.insert(peer, self.connect_pair(table, peer, pair, qp_advert, &advert)?);
            }
        }
        let listeners =
            self.ports.iter().filter_map(|(key, port)| Some((*key, port.listener.as_ref()?)));
        for (peer, done) in cm::connect(cm_targets, &listeners.collect(), &cm_context) {
            connected.insert(peer, done.map_err(self.no_rdma(table, peer))?);
        }
        Ok(connected)
    }

    /// Decodes the adverts of the peers that use RDMA, and computes the parameters of the links
    /// with them.
    fn adverts(&self, contacts: &[Contact]) -> Result<BTreeMap<Rank, PeerAdvert>, ConnectError> {
        let advertised = self.paths.keys().filter_map(|peer| {
            let contact = contacts.get(peer.index())?;
            (!contact.verbs.is_empty()).then_some((*peer, contact))
        });
        advertised
            .map(|(peer, contact)| {
                let advert = Advert::decode(peer, &contact.verbs)?;
                let config = advert.config(self.payload, SLOTS, peer)?;
                Ok((peer, (advert, config)))
            })
            .collect()
    }

    /// Creates a queue pair for a peer. Returns `None` if the connection manager will create it.
    fn prepare(
        &self,
        table: &RankTable,
        peer: Rank,
    ) -> Result<Option<QueuePair<Prepared>>, ConnectError> {
        let Some((path, port)) = self.find_path(peer) else { return Ok(None) };
        let Some(nic) = nic(table, self.me, path.port.0).filter(|_| !path.port.1) else {
            return Ok(None);
        };
        let pair = QueuePair::prepare(&port.poller.resources, nic.port, nic.gid_index);
        pair.map(Some).map_err(self.no_rdma(table, peer))
    }

    /// Connects a queue pair with the queue pair that the peer has advertised in `qp_advert`.
    fn connect_pair(
        &self,
        table: &RankTable,
        peer: Rank,
        pair: QueuePair<Prepared>,
        qp_advert: &QpAdvert,
        (advert, config): &PeerAdvert,
    ) -> Result<ConnectedQp, ConnectError> {
        let (path, port) = self.path(peer)?;
        let endpoint = advert.endpoint(qp_advert, peer, path.nic)?;
        let mtu = path.mtu.and_then(Mtu::up_to).unwrap_or(Mtu::B4096);
        let pair = pair.connect(&endpoint, &settings(table, mtu));
        let slots =
            pair.and_then(|pair| BounceBuffers::new(pair, LinkConfig::slot(config.payload)));
        let slots = slots.map_err(self.no_rdma(table, peer))?;
        Ok(ConnectedQp {
            slots,
            poller: port.poller.clone(),
            config: *config,
            first_sender: FirstSender::Either,
        })
    }

    /// Makes the parameters with which the connection manager connects with a peer.
    fn cm_target(
        &self,
        table: &RankTable,
        peer: Rank,
        (advert, config): &PeerAdvert,
    ) -> Result<cm::CmTarget, ConnectError> {
        let (path, port) = self.path(peer)?;
        let address = |rank, index| nic(table, rank, index).and_then(|nic| nic.address);
        let from = address(self.me, path.port.0).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let to = address(peer, path.nic).zip(advert.listener(path.nic));
        let why = "it has no RDMA listener";
        let to = to.map(SocketAddr::from).ok_or(ConnectError::Contact { rank: peer, why })?;
        let (key, poller, config) = (advert.key.clone(), port.poller.clone(), *config);
        Ok(cm::CmTarget { peer, from, to, key, poller, config })
    }

    fn find_path(&self, peer: Rank) -> Option<(&PairPath, &Port)> {
        let path = self.paths.get(&peer)?;
        Some((path, self.ports.get(&path.port)?))
    }

    /// Returns the path to a peer that has advertised RDMA, and this rank's port on it.
    fn path(&self, peer: Rank) -> Result<(&PairPath, &Port), ConnectError> {
        let why = "no RDMA path leads to it";
        self.find_path(peer).ok_or(ConnectError::Contact { rank: peer, why })
    }

    /// Returns the rank that sent a connection request; `None` if the request is not from a rank of
    /// this job.
    fn requester(&self, request: &ConnectRequest) -> Option<Rank> {
        cm::requester(request.private_data(), &self.key, &self.job, self.me)
    }

    /// Makes the data that this rank needs for requests and replies of the connection manager.
    fn cm_context(&self, table: &RankTable, deadline: Instant) -> cm::CmContext {
        let settings = settings(table, Mtu::B4096);
        let (job, own) = (self.job.clone(), self.key.clone());
        cm::CmContext { job, me: self.me, own, settings, deadline }
    }

    fn no_rdma(&self, table: &RankTable, peer: Rank) -> impl FnOnce(VerbsError) -> ConnectError {
        let nic = self.paths.get(&peer).and_then(|path| nic(table, self.me, path.port.0));
        no_rdma(table, nic, Some(peer), self.payload)
    }
}

fn settings(table: &RankTable, mtu: Mtu) -> Settings {
    let (timeout, retries) = (TIMEOUT, RETRIES);
    let PacketPriority { traffic_class, service_level } = table.packet_priority();
    Settings { mtu, timeout, retries, traffic_class, service_level, ..Settings::default() }
}

/// Returns the pairs of rank `me` and another rank that use RDMA, each with the port of `me`.
fn pairs(table: &RankTable, me: Rank) -> impl Iterator<Item = (PortKey, Pair)> {
    let peers = (0..table.world_size()).map(Rank).filter(move |peer| *peer != me);
    peers.filter_map(move |peer| {
        let pair = table.pair(me, peer)?;
        match pair.connect {
            PairTransport::Rdma => Some(((pair.nic_a?, false), pair)),
            PairTransport::RdmaCm => Some(((pair.nic_a?, true), pair)),
            PairTransport::SharedMemory | PairTransport::Tcp => None,
        }
    })
}

fn nic(table: &RankTable, rank: Rank, index: u32) -> Option<&Nic> {
    let row = table.ranks().get(rank.index())?;
    table.nodes().get(row.node.index())?.nics.get(index as usize)
}

/// Numbers of paths, by port, and by device and whether the connection manager makes them.
type PathCounts<'a> = (BTreeMap<PortKey, usize>, BTreeMap<(&'a str, bool), usize>);

/// Counts the paths of each port, for which its listener needs a backlog, and those of each device,
/// which share one completion queue.
fn count_paths<'a>(
    paths: impl Iterator<Item = PortKey>,
    device_of: impl Fn(u32) -> Option<&'a str>,
) -> PathCounts<'a> {
    let (mut of_ports, mut of_devices) = (BTreeMap::new(), BTreeMap::new());
    for (index, by_manager) in paths {
        *of_ports.entry((index, by_manager)).or_default() += 1;
        if let Some(device) = device_of(index) {
            *of_devices.entry((device, by_manager)).or_default() += 1;
        }
    }
    (of_ports, of_devices)
}

/// Opens the ports that `pairs` use. Each device is opened once for all its ports.
fn open_ports(
    table: &RankTable,
    me: Rank,
    pairs: &[(PortKey, Pair)],
    payload: usize,
) -> Result<BTreeMap<PortKey, Port>, ConnectError> {
    let device_of = |index| nic(table, me, index).map(|nic| nic.device.as_str());
    let (used, on_device) = count_paths(pairs.iter().map(|(key, _)| *key), device_of);
    let mut pollers: BTreeMap<(&str, bool), Arc<CqPoller>> = BTreeMap::new();
    let mut ports = BTreeMap::new();
    for (key, paths) in used {
        let (index, by_manager) = key;
        let Some(nic) = nic(table, me, index) else { continue };
        let device = (nic.device.as_str(), by_manager);
        let all = on_device.get(&device).copied().unwrap_or(paths);
        let known = pollers.get(&device).cloned();
        let open = || -> Result<Port, VerbsError> {
            let (context, listener) = if by_manager {
                let listener = listen(nic, paths)?;
                (listener.context().clone(), Some(listener))
            } else if let Some(poller) = &known {
                (poller.resources.domain.context().clone(), None)
            } else {
                (Device::by_name(&nic.device)?.open()?, None)
            };
            let poller = match known {
                Some(poller) => poller,
                None => CqPoller::open(&context, all, DEPTH)?,
            };
            let advert = cm::port(index, nic, &context, listener.as_ref())?;
            Ok(Port { poller, listener, advert })
        };
        let port = open().map_err(no_rdma(table, Some(nic), None, payload))?;
        pollers.insert(device, port.poller.clone());
        ports.insert(key, port);
    }
    Ok(ports)
}

/// Has the connection manager open the device, and listen at the address of `nic` for up to `paths`
/// connection requests.
fn listen(nic: &Nic, paths: usize) -> Result<Listener, VerbsError> {
    let address = nic.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    // iWARP resets connections beyond the backlog.
    let backlog = u32::try_from(paths).unwrap_or(u32::MAX);
    Listener::bind(SocketAddr::new(address, 0), backlog)?.require_device(&nic.device)
}

/// Returns the memory that slots may take, in bytes: half of the memory that this process may lock,
/// since devices also lock other memory. Raises the soft limit on locked memory to the hard limit
/// first.
fn memory() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK) else { return MEMORY };
    let raised = soft < hard && setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard).is_ok();
    let limit = if raised { hard } else { soft };
    usize::try_from(limit / 2).unwrap_or(MEMORY).min(MEMORY)
}

/// Returns the longest payload in bytes, a power of two, for which the slots of `peers` peers fit
/// into `memory` bytes; the shortest payload if none fits.
fn payload(memory: usize, peers: usize) -> usize {
    let fits = |payload: &usize| {
        let slots = BounceBuffers::memory_size(SLOTS, SLOTS, LinkConfig::slot(*payload));
        peers.saturating_mul(slots) <= memory
    };
    let mut payloads = std::iter::successors(Some(LONGEST_PAYLOAD), |payload| Some(payload / 2));
    payloads
        .find(|payload| *payload <= SHORTEST_PAYLOAD || fits(payload))
        .unwrap_or(SHORTEST_PAYLOAD)
}

/// Returns a function that adds the port, the peer and the memory limit to a verbs error.
fn no_rdma(
    table: &RankTable,
    nic: Option<&Nic>,
    peer: Option<Rank>,
    payload: usize,
) -> impl FnOnce(VerbsError) -> ConnectError {
    let port = nic.map(|nic| format!("{}/{}", nic.device, nic.port)).unwrap_or_default();
    let peer = peer.and_then(|peer| name(table, peer));
    let slots = BounceBuffers::memory_size(SLOTS, SLOTS, LinkConfig::slot(payload));
    move |error: VerbsError| {
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map(|(soft, _)| soft);
        let memory = limit.ok().filter(|_| is_out_of_memory(&error));
        let memory = memory.map(|limit| (slots as u64, limit));
        let hint = error.hint();
        ConnectError::NoRdma(Box::new(NoRdma { port, peer, memory, hint, source: error.into() }))
    }
}

fn is_out_of_memory(error: &VerbsError) -> bool {
    let enomem = nix::errno::Errno::ENOMEM as i32;
    matches!(error, VerbsError::Failed { source, .. } if source.raw_os_error() == Some(enomem))
}

fn name(table: &RankTable, rank: Rank) -> Option<PeerName> {
    let row = table.ranks().get(rank.index())?;
    let host = table.nodes().get(row.node.index())?.host.as_str().into();
    Some(PeerName { rank: rank.0, host })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counts prevent the faults dev.cq and iwarp.backlog.
    #[test]
    fn all_paths_of_a_device_share_a_completion_queue_and_each_has_a_place_at_its_listener() {
        let device_of = |index| (index < 3).then(|| ["mlx5_0", "mlx5_0", "siw0"][index as usize]);
        let paths = (0..700).map(|peer| (peer % 2, false)).chain((0..90).map(|_| (2, true)));
        let (of_ports, of_devices) = count_paths(paths, device_of);
        assert_eq!(of_devices, BTreeMap::from([(("mlx5_0", false), 700), (("siw0", true), 90)]));
        assert_eq!(of_ports[&(2, true)], 90);
        assert_eq!((of_ports[&(0, false)], of_ports[&(1, false)]), (350, 350));
    }

    #[test]
    fn slots_of_all_peers_fit_into_what_may_be_locked() {
        assert_eq!(payload(MEMORY, 1), LONGEST_PAYLOAD);
        assert_eq!(payload(MEMORY, 15), LONGEST_PAYLOAD);
        assert_eq!(payload(MEMORY, 255), SHORTEST_PAYLOAD);
        assert_eq!(payload(0, 1), SHORTEST_PAYLOAD, "and then the device says that it is too much");
        for peers in 1..200 {
            let payload = payload(MEMORY, peers);
            let slots = BounceBuffers::memory_size(SLOTS, SLOTS, LinkConfig::slot(payload));
            assert!(payload.is_power_of_two() && payload.is_multiple_of(64));
            assert!(slots * peers <= MEMORY || payload == SHORTEST_PAYLOAD, "{peers}");
        }
    }
}
