//! Queue pairs that the RDMA connection manager (rdma_cm) connects.
//!
//! The lower rank of a pair sends a connection request to the higher one. The private data of
//! request and reply contain an HMAC under the higher rank's key, by which both ranks prove that
//! they belong to this job. Calls of the connection manager block. So dialling and accepting run in
//! several threads, and an absent peer does not delay other peers.

use super::super::hello::RankKey;
use super::{ConnectedQp, CqPoller, FirstSender, LinkConfig, PortKey};
use rlaunch_bootstrap::id::Rank;
use rlaunch_verbs::{
    BounceBuffers, ConnectRequest, Connected, Listener, QueuePair, Route, Settings, Verb,
    VerbsError,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
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
        &target.poller.resources,
        &private_data,
        &cm_context.settings,
        cm_context.deadline,
    )?;
    connected(pair, target, FirstSender::Peer)
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
}
