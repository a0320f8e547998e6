//! Connects queue pairs with their peers, by one of two methods:
//!
//! * out of band: both ends have exchanged their endpoints, and each moves its queue pair to RTS;
//! * by the RDMA connection manager: the dialling end sends a connect request, with the path's id
//!   and the listening end's secret as private data; the listening end accepts requests whose
//!   secret is right.
//!
//! Both methods may block in the kernel if a peer is gone. Therefore paths to different peers are
//! connected in parallel, and after one path has failed slowly, the others to the same peer fail at
//! once.
//!
//! The threads here ([`map`]) also do other work that blocks in the kernel or in a card's
//! firmware.

use crate::end::{End, Link, RemoteMemory};
use crate::fault;
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::{
    self, MeshPath, PathAdvert, PathFault, PortAdvert, ProofRound, ProofStep,
};
use rlaunch_verbs::{
    ConnectRequest, Connected, Endpoint, Listener, Mtu, Prepared, QueuePair, Route, Settings,
    VerbsError,
};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// Maximum number of peers that are connected in parallel.
const CONCURRENT_PEERS: usize = 16;
/// Duration of a failed attempt to connect above which the peer counts as not answering.
const SLOW: Duration = Duration::from_millis(100);

/// Path that is to be connected.
pub(crate) struct Job {
    /// Index of the path in its round.
    pub(crate) index: usize,
    pub(crate) path: MeshPath,
    /// Slot of the path in the memory of `end`.
    pub(crate) slot: usize,
    /// `None` if the connection manager creates the queue pair.
    pub(crate) pair: Option<QueuePair<Prepared>>,
    /// Secret that the peer has to send, if the connection manager is used and the peer connects to
    /// this end.
    pub(crate) secret: u32,
    pub(crate) end: Arc<End>,
    /// Data that the peer has sent about its port.
    pub(crate) port_advert: PortAdvert,
    /// Data that the peer has sent about this path.
    pub(crate) path_advert: PathAdvert,
}

/// Result of a job, with its [`Job::index`].
type Done = (usize, Result<Link, PathFault>);

/// Parameters that all connections of a round share.
#[derive(Clone, Copy)]
struct ConnectParams {
    settings: mesh::QpSettings,
    /// Deadline to connect. Each waiting thread has a copy, which restarts if this process was
    /// suspended.
    deadline: Deadline,
}

/// Connects all paths of a round. `listeners` are those of the ends that the connection manager
/// serves.
pub(crate) fn all(
    jobs: Vec<Job>,
    listeners: Vec<(Arc<End>, &Listener)>,
    round: &ProofRound,
) -> Vec<Done> {
    let within = Duration::from_millis(round.limits.connect_ms.into());
    let deadline = Deadline::after(within, Instant::now());
    let params = ConnectParams { settings: round.settings, deadline };
    let waits = |job: &Job| job.end.local.cm_address.is_some() && !job.path.dials;
    let (waiting, dialling): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(waits);
    let mut waiting = by_end(waiting);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        for (end, listener) in listeners {
            let expected = waiting.remove(&(Arc::as_ptr(&end) as usize)).unwrap_or_default();
            let sender = sender.clone();
            scope.spawn(move || listen(scope, listener, expected, params, &sender));
        }
        let done = map(by_peer(dialling), CONCURRENT_PEERS, |jobs| dial_peer(jobs, params));
        for one in done.into_iter().flatten() {
            // Cannot fail: the receiver lives until the end of this function.
            let _ = sender.send(one);
        }
    });
    drop(sender);
    receiver.into_iter().collect()
}

fn by_end(jobs: Vec<Job>) -> HashMap<usize, HashMap<u32, Job>> {
    let mut ends: HashMap<usize, HashMap<u32, Job>> = HashMap::new();
    for job in jobs {
        ends.entry(Arc::as_ptr(&job.end) as usize).or_default().insert(job.path.id, job);
    }
    ends
}

/// Groups jobs by local port and peer, and splits the groups if there are fewer of them than CPU
/// threads.
fn by_peer(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let mut peers: BTreeMap<(u32, NodeId), Vec<Job>> = BTreeMap::new();
    for job in jobs {
        peers.entry((job.path.port_index, job.path.peer)).or_default().push(job);
    }
    let parts = cpu_threads().div_ceil(peers.len().max(1));
    let mut divided = Vec::new();
    for mut jobs in peers.into_values() {
        let part = jobs.len().div_ceil(parts).max(1);
        while jobs.len() > part {
            divided.push(jobs.split_off(jobs.len() - part));
        }
        divided.push(jobs);
    }
    divided
}

/// Connects the paths to one peer, one after the other. After one path has failed slowly, the
/// remaining paths fail at once, unless this process was suspended meanwhile.
fn dial_peer(jobs: Vec<Job>, mut params: ConnectParams) -> Vec<Done> {
    let mut failed_peer: Option<PathFault> = None;
    let connect = |job: Job| {
        let index = job.index;
        if let Some(fault) = &failed_peer {
            return (index, Err(fault.clone()));
        }
        let (begin, restarts) = (Instant::now(), params.deadline.restarts());
        let connected = dial(job, &mut params);
        if let Err(fault) = &connected
            && begin.elapsed() > SLOW
            && params.deadline.restarts() == restarts
        {
            failed_peer = Some(fault.clone());
        }
        (index, connected)
    };
    jobs.into_iter().map(connect).collect()
}

fn dial(mut job: Job, params: &mut ConnectParams) -> Result<Link, PathFault> {
    if params.deadline.has_expired(Instant::now()) {
        let cause = format!("no time was left to connect within {}", params.within());
        return Err(PathFault { step: ProofStep::Connect, cause, hint: None, awaited_peer: false });
    }
    let connected = match job.pair.take() {
        Some(pair) => out_of_band(&job, pair, *params),
        None => {
            let settings = params.settings(Mtu::B4096);
            retry_after_suspension(&mut params.deadline, |due| {
                by_connection_manager(&job, &settings, due)
            })
        }
    };
    let (pair, mtu) = connected.map_err(|error| fault::from_verbs(ProofStep::Connect, &error))?;
    Ok(job.into_link(pair, mtu))
}

/// Calls `tries` with the time at which the attempt must be over. If the attempt fails and this
/// process was suspended until long after that time, tries again with a new deadline.
fn retry_after_suspension<T, E>(
    deadline: &mut Deadline,
    mut tries: impl FnMut(Instant) -> Result<T, E>,
) -> Result<T, E> {
    loop {
        let due = deadline.due();
        let tried = tries(due);
        let now = Instant::now();
        if tried.is_ok() || now < due || deadline.has_expired(now) {
            return tried;
        }
    }
}

fn out_of_band(
    job: &Job,
    pair: QueuePair<Prepared>,
    params: ConnectParams,
) -> Result<(QueuePair<Connected>, Option<u32>), VerbsError> {
    let (end, path) = (&job.port_advert, &job.path_advert);
    let theirs = Mtu::up_to(end.mtu).unwrap_or(Mtu::B256);
    let most = job.path.mtu.and_then(Mtu::up_to).unwrap_or(theirs);
    let mtu = most.min(theirs).min(pair.endpoint().mtu);
    let peer = Endpoint {
        qpn: path.qpn,
        psn: path.psn,
        lid: end.lid,
        gid: end.gid,
        mtu: theirs,
        memory: None,
    };
    let pair = pair.connect(&peer, &params.settings(mtu))?;
    Ok((pair, Some(mtu.bytes())))
}

fn by_connection_manager(
    job: &Job,
    settings: &Settings,
    due: Instant,
) -> Result<(QueuePair<Connected>, Option<u32>), VerbsError> {
    let from = job.end.local.cm_address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let address = job.port_advert.gid.map_or(from, |address| match address.to_ipv4_mapped() {
        Some(v4) => v4.into(),
        None => address.into(),
    });
    let to = SocketAddr::new(address, job.port_advert.listener.unwrap_or(0));
    let route = Route::resolve(from, to, settings, due)?.require_device(job.end.context.name())?;
    let private_data = encode_secret(job.path.id, job.path_advert.psn);
    Ok((route.connect(&job.end.resources, &private_data, settings, due)?, None))
}

/// Accepts connect requests that have the secret of an expected path, until all have arrived or the
/// deadline has passed.
fn listen<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    listener: &'scope Listener,
    mut expected: HashMap<u32, Job>,
    mut params: ConnectParams,
    sender: &Sender<Done>,
) {
    while !expected.is_empty() {
        let request = match listener.next_request(params.deadline.due()) {
            Ok(Some(request)) => request,
            Ok(None) if params.deadline.has_expired(Instant::now()) => break,
            Ok(None) => continue,
            Err(error) => {
                return refuse_all(
                    expected,
                    &fault::from_verbs(ProofStep::Connect, &error),
                    sender,
                );
            }
        };
        let Some(job) = take_expected(request.private_data(), &mut expected) else {
            request.reject();
            continue;
        };
        let sender = sender.clone();
        // In a thread of its own, so that a peer that stops responding does not delay the others.
        scope.spawn(move || {
            // Cannot fail: the receiver outlives this thread.
            let _ = sender.send((job.index, accept(job, request, params)));
        });
    }
    let cause = format!("the peer did not connect within {}", params.within());
    refuse_all(expected, &fault::awaiting_peer(ProofStep::Connect, cause), sender);
}

fn refuse_all(jobs: HashMap<u32, Job>, fault: &PathFault, sender: &Sender<Done>) {
    for job in jobs.into_values() {
        // Cannot fail: the receiver outlives this thread.
        let _ = sender.send((job.index, Err(fault.clone())));
    }
}

fn accept(job: Job, request: ConnectRequest, params: ConnectParams) -> Result<Link, PathFault> {
    let settings = params.settings(Mtu::B4096);
    let pair = request
        .accept(&job.end.resources, &[], &settings, params.deadline.due())
        .map_err(|error| fault::from_verbs(ProofStep::Connect, &error))?;
    Ok(job.into_link(pair, None))
}

/// Encodes the private data of a connect request: the path's id and the listening end's secret.
fn encode_secret(path: u32, secret: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&path.to_le_bytes());
    bytes[4..].copy_from_slice(&secret.to_le_bytes());
    bytes
}

/// Finds and removes the expected path that a connect request belongs to, if the request has the
/// path's secret.
fn take_expected(bytes: &[u8], expected: &mut HashMap<u32, Job>) -> Option<Job> {
    // InfiniBand and RoCE pad private data with zeros.
    let bytes = bytes.first_chunk::<8>()?;
    let path = u32::from_le_bytes(*bytes.first_chunk()?);
    if *bytes != encode_secret(path, expected.get(&path)?.secret) {
        return None;
    }
    expected.remove(&path)
}

impl Job {
    fn into_link(self, pair: QueuePair<Connected>, mtu: Option<u32>) -> Link {
        let remote = RemoteMemory::new(&self.port_advert, &self.path_advert);
        Link::new(pair, self.path, self.slot, self.end, remote, mtu)
    }
}

impl ConnectParams {
    fn settings(self, mtu: Mtu) -> Settings {
        let mesh::QpSettings { traffic_class, service_level, timeout, retries } = self.settings;
        let defaults = Settings::default();
        Settings { mtu, timeout, retries, service_level, traffic_class, ..defaults }
    }

    /// Formats the time limit to connect, like `1.5 s`.
    fn within(self) -> String {
        format!("{:.1} s", self.deadline.limit().as_secs_f64())
    }
}

/// Runs all jobs on up to `threads` threads, and returns the results in the order of the jobs.
pub(crate) fn map<J: Send, R: Send>(
    jobs: Vec<J>,
    threads: usize,
    work: impl Fn(J) -> R + Sync,
) -> Vec<R> {
    if threads < 2 || jobs.len() < 2 {
        return jobs.into_iter().map(work).collect();
    }
    let threads = threads.min(jobs.len());
    let (queue, done) = (Mutex::new(jobs.into_iter().enumerate()), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let one_worker = || {
        while let Some((index, job)) = next() {
            let result = work(job);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(one_worker);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Returns the number of threads for work that also computes: one per processor, up to 4.
pub(crate) fn cpu_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;

    const LIMIT: Duration = Duration::from_millis(50);

    /// Returns the number of attempts if the first one fails `late` after its due time.
    fn tries(late: Duration) -> u32 {
        let (mut deadline, mut tries) = (Deadline::after(LIMIT, Instant::now()), 0);
        let failed: Result<(), ()> = retry_after_suspension(&mut deadline, |due| {
            tries += 1;
            if tries == 1 {
                thread::sleep(due + late - Instant::now());
            }
            Err(())
        });
        assert!(failed.is_err());
        tries
    }

    #[test]
    fn a_process_that_stood_still_tries_again() {
        assert!(tries(2 * SUSPENSION_THRESHOLD) > 1);
    }

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        for threads in [0, 1, 3, 64] {
            let squares = map((0..50).collect(), threads, |number: u32| number * number);
            assert_eq!(squares, (0..50).map(|number| number * number).collect::<Vec<_>>());
        }
    }
}
