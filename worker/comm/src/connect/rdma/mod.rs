//! RDMA between ranks of different nodes: a queue pair for each pair of ranks, over the ports that
//! the rank table names.
//!
//! A rank makes its queue pairs before the gather and puts into it what their peers must know; after
//! it, it connects them. Where the connection manager does that, the lower rank knocks at the
//! higher one, and both show that they have its key. None carries anything before all ranks have
//! said that they are through ([`super::ready`]). In jobs of many ranks all that is left to each pair,
//! and to when it first speaks ([`later`]).

mod advert;
mod cm;
mod lazy;

pub(crate) use lazy::LazyRdma;

use super::error::NoRdma;
use super::hello::RankKey;
use super::{Contact, WireUpError};
use crate::transport::verbs::{CqPoller, FirstSender, LinkConfig, VerbsLink};
use crate::types::error::PeerName;
use advert::{Advert, PortAdvert, QpAdvert};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::{Nic, PacketMarks, Pair, PairTransport, RankTable};
use rlaunch_verbs::{
    BounceBuffers, ConnectRequest, Context, Depth, Device, Endpoint, Listener, Mtu, Prepared,
    QueuePair, Settings, VerbsError,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// BounceBuffers of a queue pair, for each direction: the peer is told of half of them at once.
const SLOTS: u32 = 32;
/// What small requests carry themselves, in bytes: as much as all devices that were met have room
/// for, enough for 56 bytes of payload.
const INLINE: u32 = 80;
const DEPTH: Depth = Depth { send: SLOTS, receive: SLOTS, inline: INLINE };
/// All slots of a process take no more than this, in bytes, however many peers it has; unless each
/// has the shortest.
const MEMORY: usize = 16 << 20;
/// Of a payload, in bytes.
const SHORTEST: usize = 1 << 10;
const LONGEST: usize = 16 << 10;

/// An answer within 0.54 s, at the seventh try: a processor that has much to do, or a switch that
/// has, is no dead link, and that one is named within 5 s. One retry more is for ever with soft RoCE.
const TIMEOUT: u8 = 17;
const RETRIES: u8 = 6;

/// This rank's ports, and its queue pairs that wait for their peers.
#[derive(Debug)]
pub(crate) struct Fabric {
    me: Rank,
    job: String,
    key: RankKey,
    /// Of its longest payload, in bytes.
    payload: usize,
    ports: BTreeMap<PortKey, Port>,
    ends: BTreeMap<Rank, PairPath>,
    /// Those that were made before the gather.
    pairs: BTreeMap<Rank, QueuePair<Prepared>>,
}

/// A NIC of the own node, and whether the connection manager serves it.
type PortKey = (u32, bool);

#[derive(Debug)]
struct Port {
    hub: Arc<CqPoller>,
    /// Where it is by the connection manager.
    listener: Option<Listener>,
    told: PortAdvert,
}

/// This end of a pair.
#[derive(Clone, Copy, Debug)]
struct PairPath {
    port: PortKey,
    /// The peer's NIC.
    nic: u32,
    /// The largest packet between the two, in bytes.
    mtu: Option<u32>,
}

/// What a peer has told, and how links with it are made.
type PeerAdvert = (Advert, LinkConfig);

/// A queue pair that is connected, and must not be used before its peer is ready.
#[derive(Debug)]
pub(crate) struct ConnectedQp {
    slots: BounceBuffers,
    hub: Arc<CqPoller>,
    config: LinkConfig,
    begins: FirstSender,
}

impl ConnectedQp {
    /// Its peer is ready.
    pub(crate) fn link(self) -> VerbsLink {
        VerbsLink::new(self.slots, self.hub, self.config, self.begins)
    }
}

impl Fabric {
    /// Opens the devices that the rank table names for `me`, and makes its queue pairs, unless they
    /// are made `later`. `None` where it names none.
    pub(crate) fn open(
        table: &RankTable,
        me: Rank,
        job: String,
        later: bool,
    ) -> Result<Option<Fabric>, WireUpError> {
        let named: Vec<(PortKey, Pair)> = pairs(table, me).collect();
        if named.is_empty() {
            return Ok(None);
        }
        let payload = payload(memory(), named.len());
        let key = RankKey::random();
        let key = key.map_err(|source| WireUpError::System { operation: "make a key", source })?;
        let ports = open_ports(table, me, &named, payload)?;
        let end = |(port, pair): (PortKey, Pair)| {
            let nic = pair.nic_b.unwrap_or(0);
            (pair.b, PairPath { port, nic, mtu: pair.mtu })
        };
        let ends = named.into_iter().map(end).collect();
        let pairs = BTreeMap::new();
        let mut fabric = Fabric { me, job, key, payload, ports, ends, pairs };
        if !later {
            for peer in fabric.ends.keys() {
                let prepared = fabric.prepare(table, *peer)?;
                fabric.pairs.extend(prepared.map(|pair| (*peer, pair)));
            }
        }
        Ok(Some(fabric))
    }

    /// What the other ranks must know of it.
    pub(crate) fn told(&self) -> Result<Vec<u8>, WireUpError> {
        let pairs = self.pairs.iter().map(|(peer, pair)| {
            let Endpoint { qpn, psn, .. } = *pair.endpoint();
            QpAdvert { peer: peer.0, qpn, psn }
        });
        let told = Advert {
            slots: SLOTS,
            payload: u32::try_from(self.payload).unwrap_or(u32::MAX),
            key: self.key.clone(),
            ports: self.ports.values().map(|port| port.told.clone()).collect(),
            pairs: pairs.collect(),
        };
        told.encode()
    }

    /// Connects with all peers that have told of theirs; with the others it has no RDMA. Fails after
    /// `patience`.
    pub(crate) fn connect(
        mut self,
        contacts: &[Contact],
        table: &RankTable,
        patience: Duration,
    ) -> Result<BTreeMap<Rank, ConnectedQp>, WireUpError> {
        let cm_context = self.cm_context(table, Instant::now() + patience);
        let (mut joined, mut jobs) = (BTreeMap::new(), Vec::new());
        let mut pairs = std::mem::take(&mut self.pairs);
        for (peer, theirs) in self.theirs(contacts)? {
            let Some(end) = self.ends.get(&peer) else { continue };
            if end.port.1 {
                jobs.push((end.port, self.job(table, peer, &theirs)?));
            } else if let Some(pair) = pairs.remove(&peer) {
                let told = theirs.0.pair(self.me, peer)?;
                joined.insert(peer, self.join(table, peer, pair, told, &theirs)?);
            }
        }
        let listeners =
            self.ports.iter().filter_map(|(key, port)| Some((*key, port.listener.as_ref()?)));
        for (peer, done) in cm::connect(jobs, &listeners.collect(), &cm_context) {
            joined.insert(peer, done.map_err(self.no_rdma(table, peer))?);
        }
        Ok(joined)
    }

    /// What the peers of this rank have told, those that have, and how links with them are made.
    fn theirs(&self, contacts: &[Contact]) -> Result<BTreeMap<Rank, PeerAdvert>, WireUpError> {
        let told = self.ends.keys().filter_map(|peer| {
            let contact = contacts.get(peer.index())?;
            (!contact.verbs.is_empty()).then_some((*peer, contact))
        });
        told.map(|(peer, contact)| {
            let theirs = Advert::decode(peer, &contact.verbs)?;
            let config = theirs.config(self.payload, SLOTS, peer)?;
            Ok((peer, (theirs, config)))
        })
        .collect()
    }

    /// A queue pair for this peer; `None` where the connection manager makes it.
    fn prepare(
        &self,
        table: &RankTable,
        peer: Rank,
    ) -> Result<Option<QueuePair<Prepared>>, WireUpError> {
        let Some((end, port)) = self.end(peer) else { return Ok(None) };
        let Some(nic) = nic(table, self.me, end.port.0).filter(|_| !end.port.1) else {
            return Ok(None);
        };
        let pair = QueuePair::prepare(&port.hub.resources, nic.port, nic.gid_index);
        pair.map(Some).map_err(self.no_rdma(table, peer))
    }

    /// Connects a queue pair with that which this peer has told of.
    fn join(
        &self,
        table: &RankTable,
        peer: Rank,
        pair: QueuePair<Prepared>,
        told: &QpAdvert,
        (theirs, config): &PeerAdvert,
    ) -> Result<ConnectedQp, WireUpError> {
        let (end, port) = self.path(peer)?;
        let theirs = theirs.endpoint(told, peer, end.nic)?;
        let mtu = end.mtu.and_then(Mtu::up_to).unwrap_or(Mtu::B4096);
        let pair = pair.connect(&theirs, &settings(table, mtu));
        let slots =
            pair.and_then(|pair| BounceBuffers::new(pair, LinkConfig::slot(config.payload)));
        let slots = slots.map_err(self.no_rdma(table, peer))?;
        Ok(ConnectedQp {
            slots,
            hub: port.hub.clone(),
            config: *config,
            begins: FirstSender::Either,
        })
    }

    /// What the connection manager is to do for this peer.
    fn job(
        &self,
        table: &RankTable,
        peer: Rank,
        (theirs, config): &PeerAdvert,
    ) -> Result<cm::CmTarget, WireUpError> {
        let (end, port) = self.path(peer)?;
        let address = |rank, index| nic(table, rank, index).and_then(|nic| nic.address);
        let from = address(self.me, end.port.0).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let to = address(peer, end.nic).zip(theirs.listener(end.nic));
        let why = "it does not listen for RDMA";
        let to = to.map(SocketAddr::from).ok_or(WireUpError::Contact { rank: peer, why })?;
        let (key, hub, config) = (theirs.key.clone(), port.hub.clone(), *config);
        Ok(cm::CmTarget { peer, from, to, key, hub, config })
    }

    fn end(&self, peer: Rank) -> Option<(&PairPath, &Port)> {
        let end = self.ends.get(&peer)?;
        Some((end, self.ports.get(&end.port)?))
    }

    /// This end of the pair with a peer that has told of its own.
    fn path(&self, peer: Rank) -> Result<(&PairPath, &Port), WireUpError> {
        let why = "nothing leads to it by RDMA";
        self.end(peer).ok_or(WireUpError::Contact { rank: peer, why })
    }

    /// Whose request that is, if it is of this job.
    fn requester(&self, request: &ConnectRequest) -> Option<Rank> {
        cm::requester(request.private_data(), &self.key, &self.job, self.me)
    }

    /// How this rank shows that it is of the job, until then.
    fn cm_context(&self, table: &RankTable, deadline: Instant) -> cm::CmContext {
        let settings = settings(table, Mtu::B4096);
        let (job, own) = (self.job.clone(), self.key.clone());
        cm::CmContext { job, me: self.me, own, settings, deadline }
    }

    /// See [`no_rdma`].
    fn no_rdma(&self, table: &RankTable, peer: Rank) -> impl FnOnce(VerbsError) -> WireUpError {
        let nic = self.ends.get(&peer).and_then(|end| nic(table, self.me, end.port.0));
        no_rdma(table, nic, Some(peer), self.payload)
    }
}

fn settings(table: &RankTable, mtu: Mtu) -> Settings {
    let (timeout, retries) = (TIMEOUT, RETRIES);
    let PacketMarks { traffic_class, service_level } = table.marks();
    Settings { mtu, timeout, retries, traffic_class, service_level }
}

/// The pairs of `me` that speak RDMA, and over which of its ports.
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

/// Opens each device once for all its ports that are used.
fn open_ports(
    table: &RankTable,
    me: Rank,
    pairs: &[(PortKey, Pair)],
    payload: usize,
) -> Result<BTreeMap<PortKey, Port>, WireUpError> {
    let mut used: BTreeMap<PortKey, usize> = BTreeMap::new();
    let mut on_device: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for (key, _) in pairs {
        *used.entry(*key).or_default() += 1;
        if let Some(nic) = nic(table, me, key.0) {
            *on_device.entry((&nic.device, key.1)).or_default() += 1;
        }
    }
    let mut hubs: BTreeMap<(&str, bool), Arc<CqPoller>> = BTreeMap::new();
    let mut ports = BTreeMap::new();
    for (key, paths) in used {
        let (index, by_manager) = key;
        let Some(nic) = nic(table, me, index) else { continue };
        let device = (nic.device.as_str(), by_manager);
        let all = on_device.get(&device).copied().unwrap_or(paths);
        let known = hubs.get(&device).cloned();
        let open = || -> Result<Port, VerbsError> {
            let (context, listener) = opened(nic, paths, by_manager, known.as_ref())?;
            let hub = match known {
                Some(hub) => hub,
                None => CqPoller::open(&context, all, DEPTH)?,
            };
            let told = advert::port(index, nic, &context, listener.as_ref())?;
            Ok(Port { hub, listener, told })
        };
        let port = open().map_err(no_rdma(table, Some(nic), None, payload))?;
        hubs.insert(device, port.hub.clone());
        ports.insert(key, port);
    }
    Ok(ports)
}

/// The device, and what listens at it where the connection manager serves it, which has opened it
/// itself then.
fn opened(
    nic: &Nic,
    paths: usize,
    by_manager: bool,
    known: Option<&Arc<CqPoller>>,
) -> Result<(Arc<Context>, Option<Listener>), VerbsError> {
    if by_manager {
        let address = nic.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        // iWARP resets those who knock beyond that.
        let backlog = u32::try_from(paths).unwrap_or(u32::MAX);
        let listener = Listener::bind(SocketAddr::new(address, 0), backlog)?;
        return Ok((listener.context().clone(), Some(listener)));
    }
    match known {
        Some(hub) => Ok((hub.resources.domain.context().clone(), None)),
        None => Ok((Device::by_name(&nic.device)?.open()?, None)),
    }
}

/// How much memory slots may take, in bytes: half of what may be locked, since devices lock memory
/// of their own. As much may be locked as the hard limit lets it.
fn memory() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK) else { return MEMORY };
    let raised = soft < hard && setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard).is_ok();
    let limit = if raised { hard } else { soft };
    usize::try_from(limit / 2).unwrap_or(MEMORY).min(MEMORY)
}

/// The longest payload for which the slots of so many peers fit into `memory`; the shortest where
/// none does. A power of two.
fn payload(memory: usize, peers: usize) -> usize {
    let fits = |payload: &usize| {
        let slots = BounceBuffers::memory_size(SLOTS, SLOTS, LinkConfig::slot(*payload));
        peers.saturating_mul(slots) <= memory
    };
    let mut payloads = std::iter::successors(Some(LONGEST), |payload| Some(payload / 2));
    payloads.find(|payload| *payload <= SHORTEST || fits(payload)).unwrap_or(SHORTEST)
}

/// Makes a verb's error one that names the port and the peer, and what memory it takes.
fn no_rdma(
    table: &RankTable,
    nic: Option<&Nic>,
    peer: Option<Rank>,
    payload: usize,
) -> impl FnOnce(VerbsError) -> WireUpError {
    let port = nic.map(|nic| format!("{}/{}", nic.device, nic.port)).unwrap_or_default();
    let peer = peer.and_then(|peer| name(table, peer));
    let slots = BounceBuffers::memory_size(SLOTS, SLOTS, LinkConfig::slot(payload));
    move |error: VerbsError| {
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map(|(soft, _)| soft);
        let memory = limit.ok().filter(|_| is_about_memory(&error));
        let memory = memory.map(|limit| (slots as u64, limit));
        let hint = error.hint();
        WireUpError::NoRdma(Box::new(NoRdma { port, peer, memory, hint, source: error.into() }))
    }
}

fn is_about_memory(error: &VerbsError) -> bool {
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

    #[test]
    fn slots_of_all_peers_fit_into_what_may_be_locked() {
        assert_eq!(payload(MEMORY, 1), LONGEST);
        assert_eq!(payload(MEMORY, 15), LONGEST);
        assert_eq!(payload(MEMORY, 255), SHORTEST);
        assert_eq!(payload(0, 1), SHORTEST, "and then the device says that it is too much");
        for peers in 1..200 {
            let payload = payload(MEMORY, peers);
            let slots = BounceBuffers::memory_size(SLOTS, SLOTS, LinkConfig::slot(payload));
            assert!(payload.is_power_of_two() && payload.is_multiple_of(64));
            assert!(slots * peers <= MEMORY || payload == SHORTEST, "{peers}");
        }
    }
}
