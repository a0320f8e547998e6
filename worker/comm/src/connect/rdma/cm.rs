//! Connections by the connection manager: the lower rank knocks and shows that it has the key of the
//! higher one, which shows the same in turn.
//!
//! Both wait in the kernel for a peer that is not there, so no peer is waited for before another.

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

/// Peers that are dialled at once.
const DIALS: usize = 16;

/// A peer to be connected with.
#[derive(Debug)]
pub(super) struct CmTarget {
    pub(super) peer: Rank,
    pub(super) from: IpAddr,
    pub(super) to: SocketAddr,
    /// The peer's.
    pub(super) key: RankKey,
    pub(super) hub: Arc<CqPoller>,
    pub(super) config: LinkConfig,
}

/// Who knocks, how and until when.
#[derive(Debug)]
pub(super) struct CmContext {
    pub(super) job: String,
    pub(super) me: Rank,
    pub(super) own: RankKey,
    pub(super) settings: Settings,
    pub(super) deadline: Instant,
}

/// What came of a peer.
pub(super) type CmResult = (Rank, Result<ConnectedQp, VerbsError>);

/// Who says it; neither can be made to say the other's.
const REQUEST: &[u8] = b"knocks by RDMA";
const REPLY_LABEL: &[u8] = b"opens by RDMA";
const MAC: usize = 32;
/// Two ranks and a proof.
const SAID: usize = 4 + 4 + MAC;

/// What the rank `from` says when it knocks at `to`, whose key this is.
fn request_data(key: &RankKey, job: &str, from: Rank, to: Rank) -> [u8; SAID] {
    let ranks = [from.0.to_le_bytes(), to.0.to_le_bytes()];
    let mut said = [0; SAID];
    said[..8].copy_from_slice(ranks.as_flattened());
    said[8..].copy_from_slice(&key.proof(&[REQUEST, job.as_bytes(), ranks.as_flattened()]));
    said
}

/// What it is answered.
fn reply_data(key: &RankKey, job: &str, from: Rank, to: Rank) -> [u8; MAC] {
    let ranks = [from.0.to_le_bytes(), to.0.to_le_bytes()];
    key.proof(&[REPLY_LABEL, job.as_bytes(), ranks.as_flattened()])
}

/// Whether that is what was said; devices fill up with zeros.
fn is_reply(said: &[u8], key: &RankKey, job: &str, from: Rank, to: Rank) -> bool {
    let ranks = [from.0.to_le_bytes(), to.0.to_le_bytes()];
    let words = [REPLY_LABEL, job.as_bytes(), ranks.as_flattened()];
    said.first_chunk::<MAC>().is_some_and(|proof| key.is_proof(&words, proof))
}

/// Who has said that at the rank `at`, whose key this is, if it is of this job.
pub(super) fn requester(said: &[u8], key: &RankKey, job: &str, at: Rank) -> Option<Rank> {
    let (ranks, proof) = said.first_chunk::<SAID>()?.split_first_chunk::<8>()?;
    let (from, to) = ranks.split_first_chunk()?;
    let from = Rank(u32::from_le_bytes(*from));
    let words = [REQUEST, job.as_bytes(), ranks];
    (*to == at.0.to_le_bytes() && key.is_proof(&words, proof)).then_some(from)
}

/// Connects with all peers of `jobs`, each by one of the listeners' ports.
pub(super) fn connect(
    jobs: Vec<(PortKey, CmTarget)>,
    listeners: &BTreeMap<PortKey, &Listener>,
    cm_context: &CmContext,
) -> Vec<CmResult> {
    let (dials, waits): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(|(_, job)| cm_context.me < job.peer);
    let mut expected: BTreeMap<PortKey, BTreeMap<Rank, CmTarget>> = BTreeMap::new();
    for (port, job) in waits {
        expected.entry(port).or_default().insert(job.peer, job);
    }
    let dials: VecDeque<CmTarget> = dials.into_iter().map(|(_, job)| job).collect();
    let dialling = dials.len().min(DIALS);
    let dials = Mutex::new(dials);
    let (tell, told) = channel();
    thread::scope(|scope| {
        for (port, jobs) in expected {
            let (listener, tell) = (listeners.get(&port).copied(), tell.clone());
            if let Some(listener) = listener {
                scope.spawn(move || listen(scope, listener, jobs, cm_context, &tell));
            }
        }
        for _ in 0..dialling {
            let (tell, dials) = (tell.clone(), &dials);
            scope.spawn(move || {
                let next = || dials.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(job) = next() {
                    // The other side of the channel is open for longer than this thread lives.
                    let _ = tell.send((job.peer, dial(job, cm_context)));
                }
            });
        }
    });
    drop(tell);
    told.into_iter().collect()
}

pub(super) fn dial(job: CmTarget, cm_context: &CmContext) -> Result<ConnectedQp, VerbsError> {
    let (settings, deadline) = (&cm_context.settings, cm_context.deadline);
    let route =
        Route::resolve(job.from, job.to, settings, deadline)?.require_device(job.hub.device())?;
    let saying = request_data(&job.key, &cm_context.job, cm_context.me, job.peer);
    let pair = route.connect(&job.hub.resources, &saying, settings, deadline)?;
    if !is_reply(pair.private_data(), &job.key, &cm_context.job, cm_context.me, job.peer) {
        let addresses = format!("{} to {}", job.from, job.to);
        let event_name = "who answers is not of this job".to_owned();
        let source = std::io::ErrorKind::PermissionDenied.into();
        return Err(VerbsError::UnexpectedEvent {
            verb: Verb::Connect,
            addresses,
            event_name,
            source,
        });
    }
    joined(pair, job, FirstSender::Local)
}

fn joined(
    pair: QueuePair<Connected>,
    job: CmTarget,
    begins: FirstSender,
) -> Result<ConnectedQp, VerbsError> {
    let slots = BounceBuffers::new(pair, LinkConfig::slot(job.config.payload))?;
    Ok(ConnectedQp { slots, hub: job.hub, config: job.config, begins })
}

/// Lets those in who are expected and show that they are.
fn listen<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    listener: &'scope Listener,
    mut expected: BTreeMap<Rank, CmTarget>,
    cm_context: &'scope CmContext,
    tell: &Sender<CmResult>,
) {
    let failed =
        |job: &CmTarget| VerbsError::TimedOut { verb: Verb::Accept, addresses: job.to.to_string() };
    while !expected.is_empty() {
        let request = match listener.next_request(cm_context.deadline) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(error) => {
                if let Some((peer, _)) = expected.pop_first() {
                    let _ = tell.send((peer, Err(error)));
                }
                break;
            }
        };
        let who =
            requester(request.private_data(), &cm_context.own, &cm_context.job, cm_context.me);
        let job = who.and_then(|peer| expected.remove(&peer));
        let Some(job) = job else {
            request.reject();
            continue;
        };
        let tell = tell.clone();
        // A peer that stops half way does not keep the others out.
        scope.spawn(move || {
            // The other side of the channel is open for longer than this thread lives.
            let _ = tell.send((job.peer, accept(job, request, cm_context)));
        });
    }
    for (peer, job) in expected {
        let _ = tell.send((peer, Err(failed(&job))));
    }
}

pub(super) fn accept(
    job: CmTarget,
    request: ConnectRequest,
    cm_context: &CmContext,
) -> Result<ConnectedQp, VerbsError> {
    let saying = reply_data(&cm_context.own, &cm_context.job, job.peer, cm_context.me);
    let pair =
        request.accept(&job.hub.resources, &saying, &cm_context.settings, cm_context.deadline)?;
    joined(pair, job, FirstSender::Peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_verbs::MAX_PRIVATE_DATA;

    const ME: Rank = Rank(9);

    #[test]
    fn who_knocks_is_known_by_the_key_of_whom_it_knocks_at() {
        let own = RankKey::random().unwrap();
        let who = |said: &[u8]| requester(said, &own, "job", ME);
        let said = request_data(&own, "job", Rank(3), ME);
        const { assert!(SAID <= MAX_PRIVATE_DATA) };
        assert_eq!(who(&said), Some(Rank(3)));
        let filled = [&said[..], &[0; MAX_PRIVATE_DATA - SAID]].concat();
        assert_eq!(who(&filled), Some(Rank(3)), "devices fill up with zeros");
        assert_eq!(who(&said[..SAID - 1]), None);
        assert_eq!(who(&request_data(&own, "another", Rank(3), ME)), None);
        assert_eq!(who(&request_data(&own, "job", Rank(3), Rank(8))), None);
        assert_eq!(who(&request_data(&RankKey::random().unwrap(), "job", Rank(3), ME)), None);
        for at in 0..SAID {
            let mut other = said;
            other[at] ^= 1;
            assert_eq!(who(&other), None, "byte {at}");
        }
    }

    #[test]
    fn an_answer_is_no_echo() {
        let own = RankKey::random().unwrap();
        let is_reply = |said: &[u8]| is_reply(said, &own, "job", Rank(3), ME);
        assert!(is_reply(&reply_data(&own, "job", Rank(3), ME)));
        assert!(!is_reply(&reply_data(&own, "job", ME, Rank(3))));
        assert!(!is_reply(&request_data(&own, "job", Rank(3), ME)[8..]));
        assert!(!is_reply(&[]));
    }
}
