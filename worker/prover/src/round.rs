//! A round: its queue pairs are made so that they can receive, told of, connected and proved.

use crate::connect::{self, Job};
use crate::end::End;
use crate::fault;
use crate::link::Link;
use crate::prove;
use crate::workers;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::{
    EndAdvert, LocalPort, MeshPath, NodeEndpoints, PathAdvert, PathFault, PathOutcome, ProofStep,
    Round, RoundCost,
};
use rlaunch_verbs::{Listener, Prepared as Receives, QueuePair};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Paths of one part of what is told: some 60 KiB.
const PATHS_PER_PART: usize = 2048;

/// A round whose queue pairs can receive.
pub(crate) struct Prepared {
    node: NodeId,
    round: Round,
    ends: Vec<Result<Opened, PathFault>>,
    paths: Vec<Result<Ready, PathFault>>,
    costs: Costs,
}

/// An end, and what listens at it.
struct Opened {
    end: Arc<End>,
    listener: Option<Listener>,
}

/// An own path that a peer can be told of.
struct Ready {
    /// Which of its end's paths it is.
    place: usize,
    /// None yet with the connection manager, which makes it when it connects.
    pair: Option<QueuePair<Receives>>,
    /// What a peer has to show to the connection manager.
    secret: u32,
}

/// A round whose queue pairs can send.
pub(crate) struct Connected {
    round: Round,
    /// By path, in the round's order.
    paths: Vec<Result<Link, PathFault>>,
    pub(crate) cost: RoundCost,
}

/// What the round has cost so far.
struct Costs {
    /// Anonymous memory of the process before, in bytes.
    memory_before: u64,
    spent: Duration,
    /// Queue pairs that were made so far.
    made: usize,
}

impl Prepared {
    /// Opens devices and makes queue pairs.
    pub(crate) fn make(round: Round, node: NodeId) -> Prepared {
        let (memory_before, begin) = (anonymous_memory(), Instant::now());
        let places = places(&round);
        let ends = open_ends(&round);
        let random = RandomState::new();
        let jobs = round.paths.iter().zip(places).collect();
        let paths = workers::each(jobs, workers::busy(), |(path, place): (&MeshPath, usize)| {
            // Nobody guesses it who has not been told.
            let secret = random.hash_one(path.id) as u32;
            let opened = ends.get(path.end as usize).ok_or_else(|| no_end(path))?;
            let opened = opened.as_ref().map_err(Clone::clone)?;
            let pair = opened.make_pair()?;
            Ok(Ready { place, pair, secret })
        });
        let has_pair = |ready: &&Ready| ready.pair.is_some();
        let made = paths.iter().flatten().filter(has_pair).count();
        let costs = Costs { memory_before, spent: begin.elapsed(), made };
        Prepared { node, round, ends, paths, costs }
    }

    /// What the peers must know.
    pub(crate) fn told(&self) -> Vec<NodeEndpoints> {
        let paths = self.round.paths.iter().zip(&self.paths).filter_map(|(path, ready)| {
            let ready = ready.as_ref().ok()?;
            let end = self.ends.get(path.end as usize)?.as_ref().ok()?;
            Some(end.path_told(path, ready))
        });
        let paths: Vec<PathAdvert> = paths.collect();
        let ends = self.ends.iter().zip(0_u32..).filter_map(|(opened, index)| {
            let opened = opened.as_ref().ok()?;
            let listener = opened.listener.as_ref().map(Listener::port);
            Some(opened.end.told(index, listener))
        });
        let ends: Vec<EndAdvert> = ends.collect();
        let part = |paths: &[PathAdvert]| NodeEndpoints {
            node: self.node,
            ends: ends.clone(),
            paths: paths.to_vec(),
        };
        paths.chunks(PATHS_PER_PART).map(part).collect()
    }

    /// Connects with peers who have told this.
    pub(crate) fn connect(self, told: &[NodeEndpoints]) -> Connected {
        let begin = Instant::now();
        let peers = by_path(told);
        let (mut paths, mut jobs) = (Vec::new(), Vec::new());
        for (index, (path, ready)) in self.round.paths.iter().zip(self.paths).enumerate() {
            let opened = self.ends.get(path.end as usize).and_then(|opened| opened.as_ref().ok());
            let peer = peers.get(&(path.peer, path.id));
            // Until it has connected.
            paths.push(Err(ready.as_ref().err().cloned().unwrap_or_else(unprepared)));
            if let (Ok(ready), Some(opened), Some((end_told, path_told))) = (ready, opened, peer) {
                let Ready { place, pair, secret } = ready;
                let (end, path) = (opened.end.clone(), *path);
                let (end_told, path_told) = ((*end_told).clone(), **path_told);
                jobs.push(Job { index, path, place, pair, secret, end, end_told, path_told });
            }
        }
        let opened = self.ends.iter().flatten();
        let listeners = opened.filter_map(|it| Some((it.end.clone(), it.listener.as_ref()?)));
        for (index, connected) in connect::all(jobs, listeners.collect(), &self.round) {
            paths[index] = connected;
        }
        let ends: Vec<_> = self.ends.iter().flatten().map(|opened| opened.end.clone()).collect();
        let cost = self.costs.after(begin.elapsed(), &ends, &paths);
        Connected { round: self.round, paths, cost }
    }
}

impl Costs {
    /// The costs of a round that was connected in this time. Memory is what the process has grown
    /// by, without files and what the kernel has mapped; regions and completion queues where memory
    /// was used again.
    fn after(
        &self,
        connecting: Duration,
        ends: &[Arc<End>],
        paths: &[Result<Link, PathFault>],
    ) -> RoundCost {
        let by_manager = |link: &&Link| link.end.local.cm_address.is_some();
        let made = self.made + paths.iter().flatten().filter(by_manager).count();
        let grown = anonymous_memory().saturating_sub(self.memory_before);
        let spent = self.spent + connecting;
        RoundCost {
            queue_pairs: u32::try_from(made).unwrap_or(u32::MAX),
            connect_us: u32::try_from(spent.as_micros()).unwrap_or(u32::MAX),
            memory: grown.max(ends.iter().map(|end| end.memory()).sum()),
        }
    }
}

impl Opened {
    fn make_pair(&self) -> Result<Option<QueuePair<Receives>>, PathFault> {
        let LocalPort { port, gid_index, cm_address, .. } = &self.end.local;
        if cm_address.is_some() {
            return Ok(None);
        }
        QueuePair::prepare(&self.end.resources, *port, *gid_index)
            .map(Some)
            .map_err(|error| fault::of(ProofStep::Prepare, &error))
    }

    fn path_told(&self, path: &MeshPath, ready: &Ready) -> PathAdvert {
        let endpoint = ready.pair.as_ref().map(QueuePair::endpoint);
        let control = self.end.layout().control(ready.place);
        PathAdvert {
            id: path.id,
            end: path.end,
            qpn: endpoint.map_or(0, |endpoint| endpoint.qpn),
            psn: endpoint.map_or(ready.secret, |endpoint| endpoint.psn),
            control: u32::try_from(control).unwrap_or(u32::MAX),
        }
    }
}

impl Connected {
    /// Moves tokens and blocks; what has connected stays so.
    pub(crate) fn prove<E>(
        self,
        meanwhile: impl FnMut() -> Result<(), E>,
    ) -> Result<(Vec<Link>, Vec<PathOutcome>), E> {
        let mut outcomes = prove::prove(&self.paths, &self.round.limits, meanwhile)?;
        for (path, connected) in self.round.paths.iter().zip(&self.paths) {
            if let Err(fault) = connected {
                outcomes.push(PathOutcome { id: path.id, result: Err(fault.clone()) });
            }
        }
        Ok((self.paths.into_iter().flatten().collect(), outcomes))
    }
}

/// Of each path, which of its end's paths it is.
fn places(round: &Round) -> Vec<usize> {
    let mut taken: HashMap<u32, usize> = HashMap::new();
    let place = |path: &MeshPath| {
        let next = taken.entry(path.end).or_default();
        *next += 1;
        *next - 1
    };
    round.paths.iter().map(place).collect()
}

fn open_ends(round: &Round) -> Vec<Result<Opened, PathFault>> {
    let mut on_end: BTreeMap<u32, usize> = BTreeMap::new();
    let mut on_device: HashMap<&str, usize> = HashMap::new();
    for path in &round.paths {
        *on_end.entry(path.end).or_default() += 1;
        if let Some(end) = round.ends.get(path.end as usize) {
            *on_device.entry(&end.device).or_default() += 1;
        }
    }
    let open = |(local, index): (&LocalPort, u32)| {
        let paths = on_end.get(&index).copied().unwrap_or(0);
        let on_device = on_device.get(local.device.as_str()).copied().unwrap_or(0);
        let (end, listener) = End::open(local, paths, on_device)?;
        Ok(Opened { end: Arc::new(end), listener })
    };
    round.ends.iter().zip(0..).map(open).collect()
}

/// What has been told of the other end, by its node and the path.
fn by_path(told: &[NodeEndpoints]) -> HashMap<(NodeId, u32), (&EndAdvert, &PathAdvert)> {
    let mut found = HashMap::new();
    for endpoints in told {
        for path in &endpoints.paths {
            if let Some(end) = endpoints.ends.iter().find(|end| end.end == path.end) {
                found.insert((endpoints.node, path.id), (end, path));
            }
        }
    }
    found
}

fn no_end(path: &MeshPath) -> PathFault {
    let cause = format!("there is no port {} in this round", path.end);
    PathFault { step: ProofStep::Prepare, cause, hint: None, awaited_peer: false }
}

fn unprepared() -> PathFault {
    fault::waited(ProofStep::Exchange, "the peer has no queue pair".to_owned())
}

/// What of this process is in memory and of no file, in bytes: what devices share with it, and what
/// libraries keep for them.
fn anonymous_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
