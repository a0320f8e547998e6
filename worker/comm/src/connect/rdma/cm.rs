//! Queue pairs that the RDMA connection manager (rdma_cm) connects.
//!
//! The lower rank of a pair sends a connection request to the higher one. The private data of
//! request and reply contain an HMAC under the higher rank's key, by which both ranks prove that
//! they belong to this job. Calls of the connection manager block. So dialling and accepting run in
//! several threads, and an absent peer does not delay other peers.
//!
//! Data about a rank's queue pairs that its peers need to connect their own queue pairs.

use super::super::ConnectError;
use super::super::handshake::RankKey;
use super::{ConnectedQp, CqPoller, FirstSender, LinkConfig, PortKey};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::Nic;
use rlaunch_verbs::{
    BounceBuffers, ConnectRequest, Connected, Context, Endpoint, Listener, Mtu, QueuePair, Route,
    Settings, Verb, VerbsError,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::Instant;

/// Maximum number of peers that are dialled at the same time.
const DIALS: usize = 16;

/// Peer to connect with, and the parameters of the connection.
#[derive(Debug)]
pub(super) struct CmTarget {
    pub(super) peer: Rank,
    pub(super) from: IpAddr,
    pub(super) to: SocketAddr,
    /// Key of the peer, for requests that this rank sends.
    pub(super) key: RankKey,
    pub(super) poller: Arc<CqPoller>,
    pub(super) config: LinkConfig,
}

/// Data that this rank needs for requests and replies to all peers, and the deadline of all
/// connections.
#[derive(Debug)]
pub(super) struct CmContext {
    pub(super) job: String,
    pub(super) me: Rank,
    pub(super) own: RankKey,
    pub(super) settings: Settings,
    pub(super) deadline: Instant,
}

/// Peer, and this rank's queue pair that is connected to the peer, or the error.
pub(super) type CmResult = (Rank, Result<ConnectedQp, VerbsError>);

/// Labels in the HMACs, so that a request cannot be used as a reply, nor a reply as a request.
const REQUEST: &[u8] = b"RDMA request";
const REPLY_LABEL: &[u8] = b"RDMA reply";
const MAC: usize = 32;
/// Length in bytes of a request's private data: two ranks and an HMAC.
const REQUEST_DATA: usize = 4 + 4 + MAC;

/// Makes the private data of a connection request from rank `from` to rank `to`. `key` is the key
/// of rank `to`.
fn request_data(key: &RankKey, job: &str, from: Rank, to: Rank) -> [u8; REQUEST_DATA] {
    let ranks = [from.0.to_le_bytes(), to.0.to_le_bytes()];
    let mut data = [0; REQUEST_DATA];
    data[..8].copy_from_slice(ranks.as_flattened());
    data[8..].copy_from_slice(&key.proof(&[REQUEST, job.as_bytes(), ranks.as_flattened()]));
    data
}

/// Makes the private data of the reply to a request from rank `from` to rank `to`. `key` is the key
/// of rank `to`.
fn reply_data(key: &RankKey, job: &str, from: Rank, to: Rank) -> [u8; MAC] {
    let ranks = [from.0.to_le_bytes(), to.0.to_le_bytes()];
    key.proof(&[REPLY_LABEL, job.as_bytes(), ranks.as_flattened()])
}

/// Returns whether `private_data` is a valid reply to a request from rank `from` to rank `to`.
/// Devices pad private data with zeros.
fn is_reply(private_data: &[u8], key: &RankKey, job: &str, from: Rank, to: Rank) -> bool {
    let ranks = [from.0.to_le_bytes(), to.0.to_le_bytes()];
    let words = [REPLY_LABEL, job.as_bytes(), ranks.as_flattened()];
    private_data.first_chunk::<MAC>().is_some_and(|proof| key.is_proof(&words, proof))
}

/// Returns the rank that sent the connection request with this private data to rank `at`, or `None`
/// if the request is invalid. `key` is the key of rank `at`.
pub(super) fn requester(private_data: &[u8], key: &RankKey, job: &str, at: Rank) -> Option<Rank> {
    let (ranks, proof) = private_data.first_chunk::<REQUEST_DATA>()?.split_first_chunk::<8>()?;
    let (from, to) = ranks.split_first_chunk()?;
    let from = Rank(u32::from_le_bytes(*from));
    let words = [REQUEST, job.as_bytes(), ranks];
    (*to == at.0.to_le_bytes() && key.is_proof(&words, proof)).then_some(from)
}

/// Connects with the peers of all `targets`. Each target has the port through which this rank
/// connects. Returns the result for each peer.
pub(super) fn connect(
    targets: Vec<(PortKey, CmTarget)>,
    listeners: &BTreeMap<PortKey, &Listener>,
    cm_context: &CmContext,
) -> Vec<CmResult> {
    let (dials, waits): (Vec<_>, Vec<_>) =
        targets.into_iter().partition(|(_, target)| cm_context.me < target.peer);
    let mut expected: BTreeMap<PortKey, BTreeMap<Rank, CmTarget>> = BTreeMap::new();
    for (port, target) in waits {
        expected.entry(port).or_default().insert(target.peer, target);
    }
    let dials: VecDeque<CmTarget> = dials.into_iter().map(|(_, target)| target).collect();
    let dialling = dials.len().min(DIALS);
    let dials = Mutex::new(dials);
    let (results, received) = channel();
    thread::scope(|scope| {
        for (port, targets) in expected {
            let (listener, results) = (listeners.get(&port).copied(), results.clone());
            if let Some(listener) = listener {
                scope.spawn(move || listen(scope, listener, targets, cm_context, &results));
            }
        }
        for _ in 0..dialling {
            let (results, dials) = (results.clone(), &dials);
            scope.spawn(move || {
                let next = || dials.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(target) = next() {
                    // The receiver outlives this thread.
                    let _ = results.send((target.peer, dial(target, cm_context)));
                }
            });
        }
    });
    drop(results);
    received.into_iter().collect()
}

pub(super) fn dial(target: CmTarget, cm_context: &CmContext) -> Result<ConnectedQp, VerbsError> {
    let (settings, deadline) = (&cm_context.settings, cm_context.deadline);
    let route = Route::resolve(target.from, target.to, settings, deadline)?
        .require_device(target.poller.device())?;
    let private_data = request_data(&target.key, &cm_context.job, cm_context.me, target.peer);
    let pair = route.connect(&target.poller.resources, &private_data, settings, deadline)?;
    if !is_reply(pair.private_data(), &target.key, &cm_context.job, cm_context.me, target.peer) {
        let addresses = format!("{} to {}", target.from, target.to);
        let event_name = "the process that answers is not of this job".to_owned();
        let source = std::io::ErrorKind::PermissionDenied.into();
        return Err(VerbsError::UnexpectedEvent {
            verb: Verb::Connect,
            addresses,
            event_name,
            source,
        });
    }
    connected(pair, target, FirstSender::Local)
}

fn connected(
    pair: QueuePair<Connected>,
    target: CmTarget,
    first_sender: FirstSender,
) -> Result<ConnectedQp, VerbsError> {
    let slots = BounceBuffers::new(pair, LinkConfig::slot(target.config.payload))?;
    Ok(ConnectedQp { slots, poller: target.poller, config: target.config, first_sender })
}

/// Accepts requests of the `expected` peers that authenticate themselves, and rejects all other
/// requests.
fn listen<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    listener: &'scope Listener,
    mut expected: BTreeMap<Rank, CmTarget>,
    cm_context: &'scope CmContext,
    results: &Sender<CmResult>,
) {
    let failed = |target: &CmTarget| VerbsError::TimedOut {
        verb: Verb::Accept,
        addresses: target.to.to_string(),
    };
    while !expected.is_empty() {
        let request = match listener.next_request(cm_context.deadline) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(error) => {
                if let Some((peer, _)) = expected.pop_first() {
                    let _ = results.send((peer, Err(error)));
                }
                break;
            }
        };
        let who =
            requester(request.private_data(), &cm_context.own, &cm_context.job, cm_context.me);
        let target = who.and_then(|peer| expected.remove(&peer));
        let Some(target) = target else {
            request.reject();
            continue;
        };
        let results = results.clone();
        // This runs in a thread of its own, so that a peer that stalls does not delay other peers.
        scope.spawn(move || {
            // The receiver outlives this thread.
            let _ = results.send((target.peer, accept(target, request, cm_context)));
        });
    }
    for (peer, target) in expected {
        let _ = results.send((peer, Err(failed(&target))));
    }
}

pub(super) fn accept(
    target: CmTarget,
    request: ConnectRequest,
    cm_context: &CmContext,
) -> Result<ConnectedQp, VerbsError> {
    let private_data = reply_data(&cm_context.own, &cm_context.job, target.peer, cm_context.me);
    let pair = request.accept(
        &target.poller.resources, &private_data, &cm_context.settings, cm_context.deadline,
    )?;
    connected(pair, target, FirstSender::Peer)
}

/// Queue pairs and ports of a rank, as advertised to its peers. The encoded advert is a field of
/// the rank's [`Contact`](super::super::Contact).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Advert {
    /// Number of receive slots of each queue pair.
    pub(super) slots: u32,
    /// Longest payload of a slot, in bytes.
    pub(super) payload: u32,
    /// Secret key of the rank. A peer that has this key belongs to the rank's job.
    pub(super) key: RankKey,
    pub(super) ports: Vec<PortAdvert>,
    /// Queue pairs that are connected without the connection manager, ordered by peer.
    pub(super) pairs: Vec<QpAdvert>,
}

/// RDMA port that a rank uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortAdvert {
    /// Index of the port in the NIC list of its node in the rank table.
    pub(super) nic: u32,
    pub(super) lid: u16,
    pub(super) gid: Option<Ipv6Addr>,
    /// Path MTU in bytes.
    pub(super) mtu: u32,
    /// Port number, like a TCP port, on which the rank's connection manager listens. If present,
    /// `lid`, `gid` and `mtu` are unused.
    pub(super) listener: Option<u16>,
}

/// Queue pair for one peer: its number, and the sequence number of its first packet (PSN).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QpAdvert {
    pub(super) peer: u32,
    pub(super) qpn: u32,
    pub(super) psn: u32,
}

/// Makes the advert of an opened port. `index` is the port's index in the NIC list of this node.
pub(super) fn port(
    index: u32,
    nic: &Nic,
    context: &Context,
    listener: Option<&Listener>,
) -> Result<PortAdvert, VerbsError> {
    let attributes = context.port(nic.port)?;
    let gid = match (listener, nic.gid_index) {
        (None, Some(index)) => context.gid(nic.port, index)?.map(|entry| entry.value),
        _ => None,
    };
    let (lid, mtu) = (attributes.lid, attributes.mtu.bytes());
    Ok(PortAdvert { nic: index, lid, gid, mtu, listener: listener.map(Listener::port) })
}

impl Advert {
    pub(super) fn encode(&self) -> Result<Vec<u8>, ConnectError> {
        postcard::to_stdvec(self).map_err(|_| ConnectError::System {
            operation: "encode this rank's queue pairs",
            source: std::io::ErrorKind::InvalidData.into(),
        })
    }

    pub(super) fn decode(rank: Rank, bytes: &[u8]) -> Result<Advert, ConnectError> {
        let why = "the data about its queue pairs is damaged";
        postcard::from_bytes(bytes).map_err(|_| ConnectError::Contact { rank, why })
    }

    /// Combines the limits that `rank` has advertised with this rank's `payload` and `slots`. The
    /// link gets the shorter of both payloads; each end keeps its number of slots.
    pub(super) fn config(
        &self,
        payload: usize,
        slots: u32,
        rank: Rank,
    ) -> Result<LinkConfig, ConnectError> {
        let payload = payload.min(self.payload as usize);
        if self.slots < 2 || payload < super::SHORTEST_PAYLOAD || !payload.is_multiple_of(64) {
            let why = "its slots are too few or too small";
            return Err(ConnectError::Contact { rank, why });
        }
        Ok(LinkConfig { payload, slots: (self.slots, slots) })
    }

    /// Returns the queue pair that `peer`, the sender of this advert, has made for rank `me`.
    pub(super) fn pair(&self, me: Rank, peer: Rank) -> Result<&QpAdvert, ConnectError> {
        let why = "it has no queue pair for this rank";
        let mut pairs = self.pairs.iter();
        pairs.find(|pair| pair.peer == me.0).ok_or(ConnectError::Contact { rank: peer, why })
    }

    /// Returns the endpoint of the queue pair `pair` of `peer`, the sender of this advert. `nic` is
    /// the index of the queue pair's port in the NIC list of the peer's node.
    pub(super) fn endpoint(
        &self,
        pair: &QpAdvert,
        peer: Rank,
        nic: u32,
    ) -> Result<Endpoint, ConnectError> {
        let port = self.ports.iter().find(|port| port.nic == nic && port.listener.is_none());
        let why = "it has no port for this rank";
        let port = port.ok_or(ConnectError::Contact { rank: peer, why })?;
        Ok(Endpoint {
            qpn: pair.qpn,
            psn: pair.psn,
            lid: port.lid,
            gid: port.gid,
            mtu: Mtu::up_to(port.mtu).unwrap_or(Mtu::B256),
            memory: None,
        })
    }

    /// Returns the port number on which the connection manager of the advert's sender listens on
    /// the NIC with index `nic` in its node's NIC list; `None` if it does not listen there.
    pub(super) fn listener(&self, nic: u32) -> Option<u16> {
        self.ports.iter().filter(|port| port.nic == nic).find_map(|port| port.listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_verbs::MAX_PRIVATE_DATA;

    const ME: Rank = Rank(9);

    #[test]
    fn who_knocks_is_known_by_the_key_of_whom_it_knocks_at() {
        let own = RankKey::random().unwrap();
        let who = |private_data: &[u8]| requester(private_data, &own, "job", ME);
        let private_data = request_data(&own, "job", Rank(3), ME);
        const { assert!(REQUEST_DATA <= MAX_PRIVATE_DATA) };
        assert_eq!(who(&private_data), Some(Rank(3)));
        let filled = [&private_data[..], &[0; MAX_PRIVATE_DATA - REQUEST_DATA]].concat();
        assert_eq!(who(&filled), Some(Rank(3)), "devices fill up with zeros");
        assert_eq!(who(&private_data[..REQUEST_DATA - 1]), None);
        assert_eq!(who(&request_data(&own, "another", Rank(3), ME)), None);
        assert_eq!(who(&request_data(&own, "job", Rank(3), Rank(8))), None);
        assert_eq!(who(&request_data(&RankKey::random().unwrap(), "job", Rank(3), ME)), None);
        for at in 0..REQUEST_DATA {
            let mut other = private_data;
            other[at] ^= 1;
            assert_eq!(who(&other), None, "byte {at}");
        }
    }

    #[test]
    fn an_answer_is_no_echo() {
        let own = RankKey::random().unwrap();
        let is_reply = |private_data: &[u8]| is_reply(private_data, &own, "job", Rank(3), ME);
        assert!(is_reply(&reply_data(&own, "job", Rank(3), ME)));
        assert!(!is_reply(&reply_data(&own, "job", ME, Rank(3))));
        assert!(!is_reply(&request_data(&own, "job", Rank(3), ME)[8..]));
        assert!(!is_reply(&[]));
    }

    fn advert() -> Advert {
        let gid = Some("::ffff:10.0.0.1".parse().unwrap());
        let port = |nic, listener| PortAdvert { nic, lid: 3, gid, mtu: 1024, listener };
        Advert {
            slots: 32,
            payload: 4096,
            key: RankKey::random().unwrap(),
            ports: vec![port(0, None), port(1, Some(4711)), port(1, None)],
            pairs: vec![QpAdvert { peer: 5, qpn: 17, psn: 99 }],
        }
    }

    #[test]
    fn what_is_told_is_understood() {
        let advert = advert();
        let bytes = advert.encode().unwrap();
        assert_eq!(Advert::decode(Rank(1), &bytes).unwrap(), advert);
        let end = advert.endpoint(advert.pair(Rank(5), Rank(1)).unwrap(), Rank(1), 1).unwrap();
        assert_eq!((end.qpn, end.psn, end.lid), (17, 99, 3));
        assert_eq!((end.mtu, end.gid), (Mtu::B1024, advert.ports[0].gid));
        assert_eq!((advert.listener(1), advert.listener(0)), (Some(4711), None));
        let error = Advert::decode(Rank(1), &bytes[..9]).unwrap_err().to_string();
        assert_eq!(
            error,
            "the contact of rank 1 is invalid: the data about its queue pairs is damaged"
        );
    }

    #[test]
    fn a_peer_without_a_queue_pair_for_this_rank_is_named() {
        let advert = advert();
        let error = advert.pair(Rank(6), Rank(1)).unwrap_err().to_string();
        assert!(error.ends_with("of rank 1 is invalid: it has no queue pair for this rank"));
        let error = advert.endpoint(&advert.pairs[0], Rank(1), 2).unwrap_err().to_string();
        assert!(
            error.ends_with("of rank 1 is invalid: it has no port for this rank"),
            "nor a port"
        );
    }

    #[test]
    fn two_ends_agree_on_the_smaller_of_their_slots() {
        let config = advert().config(16 << 10, 8, Rank(1)).unwrap();
        assert_eq!((config.payload, config.slots), (4096, (32, 8)));
        assert_eq!(advert().config(2048, 8, Rank(1)).unwrap().payload, 2048);
        let few = Advert { slots: 1, ..advert() };
        assert!(few.config(2048, 8, Rank(1)).is_err());
        let short = Advert { payload: 100, ..advert() };
        assert!(short.config(2048, 8, Rank(1)).is_err());
    }
}
