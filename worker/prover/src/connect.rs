//! Connects queue pairs with their peers: by what both have told of theirs, or by the connection
//! manager, where the end that dials knocks and the other one knows it by a secret.
//!
//! Both wait in the kernel for a peer that is not there, so paths to different peers do not wait
//! for one another, and a peer that has kept one path waiting is not waited for again.

use crate::end::End;
use crate::fault;
use crate::link::{Link, Remote};
use crate::workers;
use rlaunch_bootstrap::deadline::Deadline;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::{
    self, EndAdvert, MeshPath, PathAdvert, PathFault, ProofStep, Round,
};
use rlaunch_verbs::{
    ConnectRequest, Connected, Endpoint, Listener, Mtu, Prepared, QueuePair, Route, Settings,
    VerbsError,
};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// Peers that are connected with at once.
const PEERS: usize = 16;
/// Whoever takes longer to fail has waited for somebody.
const PATIENCE: Duration = Duration::from_millis(100);

/// A path to be connected.
pub(crate) struct Job {
    /// Of the path, in its round.
    pub(crate) index: usize,
    pub(crate) path: MeshPath,
    pub(crate) place: usize,
    pub(crate) pair: Option<QueuePair<Prepared>>,
    pub(crate) secret: u32,
    pub(crate) end: Arc<End>,
    pub(crate) end_told: EndAdvert,
    pub(crate) path_told: PathAdvert,
}

/// How it went, by [`Job::index`].
type Done = (usize, Result<Link, PathFault>);

/// How all of a round are connected.
#[derive(Clone, Copy)]
struct Manner {
    settings: mesh::QpSettings,
    /// Each wait has one of its own, which begins anew where this process stood still.
    deadline: Deadline,
}

/// Connects all of them. `listeners` are those of the ends that the connection manager serves.
pub(crate) fn all(
    jobs: Vec<Job>,
    listeners: Vec<(Arc<End>, &Listener)>,
    round: &Round,
) -> Vec<Done> {
    let within = Duration::from_millis(round.limits.connect_ms.into());
    let deadline = Deadline::after(within, Instant::now());
    let manner = Manner { settings: round.settings, deadline };
    let waits = |job: &Job| job.end.local.cm_address.is_some() && !job.path.dials;
    let (waiting, dialling): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(waits);
    let mut waiting = by_end(waiting);
    let (tell, told) = channel();
    thread::scope(|scope| {
        for (end, listener) in listeners {
            let expected = waiting.remove(&(Arc::as_ptr(&end) as usize)).unwrap_or_default();
            let tell = tell.clone();
            scope.spawn(move || listen(scope, listener, expected, manner, &tell));
        }
        let done = workers::each(by_peer(dialling), PEERS, |jobs| dial_peer(jobs, manner));
        for one in done.into_iter().flatten() {
            // The other side of the channel is open until the end of this function.
            let _ = tell.send(one);
        }
    });
    drop(tell);
    told.into_iter().collect()
}

fn by_end(jobs: Vec<Job>) -> HashMap<usize, HashMap<u32, Job>> {
    let mut ends: HashMap<usize, HashMap<u32, Job>> = HashMap::new();
    for job in jobs {
        ends.entry(Arc::as_ptr(&job.end) as usize).or_default().insert(job.path.id, job);
    }
    ends
}

/// Those of one port to one peer, in as many parts as keep all processors busy.
fn by_peer(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let mut peers: BTreeMap<(u32, NodeId), Vec<Job>> = BTreeMap::new();
    for job in jobs {
        peers.entry((job.path.end, job.path.peer)).or_default().push(job);
    }
    let parts = workers::busy().div_ceil(peers.len().max(1));
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

/// Connects with one peer, path by path, as long as that does not keep this end waiting.
fn dial_peer(jobs: Vec<Job>, mut manner: Manner) -> Vec<Done> {
    let mut gone: Option<PathFault> = None;
    let connect = |job: Job| {
        let index = job.index;
        if let Some(fault) = &gone {
            return (index, Err(fault.clone()));
        }
        let (begin, standstills) = (Instant::now(), manner.deadline.restarts());
        let connected = dial(job, &mut manner);
        if let Err(fault) = &connected
            && begin.elapsed() > PATIENCE
            && manner.deadline.restarts() == standstills
        {
            gone = Some(fault.clone());
        }
        (index, connected)
    };
    jobs.into_iter().map(connect).collect()
}

fn dial(mut job: Job, manner: &mut Manner) -> Result<Link, PathFault> {
    if manner.deadline.has_expired(Instant::now()) {
        let cause = format!("no time was left to connect within {}", manner.within());
        return Err(PathFault { step: ProofStep::Connect, cause, hint: None, awaited_peer: false });
    }
    let connected = match job.pair.take() {
        Some(pair) => out_of_band(&job, pair, *manner),
        None => {
            let settings = manner.settings(Mtu::B4096);
            unless_late(&mut manner.deadline, |due| by_manager(&job, &settings, due))
        }
    };
    let (pair, mtu) = connected.map_err(|error| fault::of(ProofStep::Connect, &error))?;
    Ok(job.linked(pair, mtu))
}

/// Tries until `due`, and once more where this process stood still until long after that.
fn unless_late<T, E>(
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
    manner: Manner,
) -> Result<(QueuePair<Connected>, Option<u32>), VerbsError> {
    let (end, path) = (&job.end_told, &job.path_told);
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
    let pair = pair.connect(&peer, &manner.settings(mtu))?;
    Ok((pair, Some(mtu.bytes())))
}

fn by_manager(
    job: &Job,
    settings: &Settings,
    due: Instant,
) -> Result<(QueuePair<Connected>, Option<u32>), VerbsError> {
    let from = job.end.local.cm_address.unwrap_or(IpAddr::from([0, 0, 0, 0]));
    let address = job.end_told.gid.map_or(from, |address| match address.to_ipv4_mapped() {
        Some(v4) => v4.into(),
        None => address.into(),
    });
    let to = SocketAddr::new(address, job.end_told.listener.unwrap_or(0));
    let route = Route::resolve(from, to, settings, due)?.require_device(job.end.context.name())?;
    let saying = said(job.path.id, job.path_told.psn);
    Ok((route.connect(&job.end.resources, &saying, settings, due)?, None))
}

/// Lets those in who show that they were told of it.
fn listen<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    listener: &'scope Listener,
    mut expected: HashMap<u32, Job>,
    mut manner: Manner,
    tell: &Sender<Done>,
) {
    while !expected.is_empty() {
        let request = match listener.next_request(manner.deadline.due()) {
            Ok(Some(request)) => request,
            Ok(None) if manner.deadline.has_expired(Instant::now()) => break,
            Ok(None) => continue,
            Err(error) => {
                return refuse_all(expected, &fault::of(ProofStep::Connect, &error), tell);
            }
        };
        let Some(job) = whose(request.private_data(), &mut expected) else {
            request.reject();
            continue;
        };
        let tell = tell.clone();
        // A peer that stops half way does not keep the others out.
        scope.spawn(move || {
            // The other side of the channel is open for longer than this thread lives.
            let _ = tell.send((job.index, accept(job, request, manner)));
        });
    }
    let cause = format!("the peer did not connect within {}", manner.within());
    refuse_all(expected, &fault::waited(ProofStep::Connect, cause), tell);
}

fn refuse_all(jobs: HashMap<u32, Job>, fault: &PathFault, tell: &Sender<Done>) {
    for job in jobs.into_values() {
        // The other side of the channel is open for longer than this thread lives.
        let _ = tell.send((job.index, Err(fault.clone())));
    }
}

fn accept(job: Job, request: ConnectRequest, manner: Manner) -> Result<Link, PathFault> {
    let settings = manner.settings(Mtu::B4096);
    let pair = request
        .accept(&job.end.resources, &[], &settings, manner.deadline.due())
        .map_err(|error| fault::of(ProofStep::Connect, &error))?;
    Ok(job.linked(pair, None))
}

/// What a peer shows when it knocks: the path, and the secret of the end that it knocks at.
fn said(path: u32, secret: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&path.to_le_bytes());
    bytes[4..].copy_from_slice(&secret.to_le_bytes());
    bytes
}

/// The path whose peer says this, which is expected no more then.
fn whose(words: &[u8], expected: &mut HashMap<u32, Job>) -> Option<Job> {
    // Devices fill up with zeros.
    let words = words.first_chunk::<8>()?;
    let path = u32::from_le_bytes(*words.first_chunk()?);
    if *words != said(path, expected.get(&path)?.secret) {
        return None;
    }
    expected.remove(&path)
}

impl Job {
    fn linked(self, pair: QueuePair<Connected>, mtu: Option<u32>) -> Link {
        let remote = Remote::told(&self.end_told, &self.path_told);
        Link::new(pair, (self.path, self.place), self.end, remote, mtu)
    }
}

impl Manner {
    fn settings(self, mtu: Mtu) -> Settings {
        let mesh::QpSettings { traffic_class, service_level, timeout, retries } = self.settings;
        Settings { mtu, timeout, retries, service_level, traffic_class }
    }

    /// `1.5 s`.
    fn within(self) -> String {
        format!("{:.1} s", self.deadline.limit().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;

    const LIMIT: Duration = Duration::from_millis(50);

    /// How often is tried what fails `late` after it was due.
    fn tries(late: Duration) -> u32 {
        let (mut deadline, mut tries) = (Deadline::after(LIMIT, Instant::now()), 0);
        let failed: Result<(), ()> = unless_late(&mut deadline, |due| {
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
}
