//! The stages of a round: prepared (queue pairs exist), connected, proved.

use crate::connect::{self, Job};
use crate::end::{End, Link};
use crate::{fault, measure, prove};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::{
    LocalPort, MeshPath, NodeEndpoints, PathAdvert, PathFault, PathOutcome, PortAdvert, ProofRound,
    ProofStep, RoundCost,
};
use rlaunch_verbs::{Listener, Prepared, QueuePair};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of paths in one [`NodeEndpoints`], which limits its size to about 60 KiB.
const PATHS_PER_PART: usize = 2048;

/// Maximum time for which paths are measured.
const MAX_MEASURE: Duration = Duration::from_secs(10);

/// Round with queue pairs that are created, but not connected.
pub(crate) struct PreparedRound {
    node: NodeId,
    round: ProofRound,
    ends: Vec<Result<OpenEnd, PathFault>>,
    paths: Vec<Result<PreparedPath, PathFault>>,
    cost: CostMeter,
}

/// End, with its listener if the connection manager serves it.
struct OpenEnd {
    end: Arc<End>,
    listener: Option<Listener>,
}

/// Path that is ready to be connected.
struct PreparedPath {
    /// Slot of the path in the memory of its [`End`].
    slot: usize,
    /// `None` if the connection manager creates the queue pair when it connects.
    pair: Option<QueuePair<Prepared>>,
    /// Secret that the peer has to send in the private data of its connect request.
    secret: u32,
}

/// Round with connected queue pairs, except those that failed.
pub(crate) struct ConnectedRound {
    round: ProofRound,
    /// Result for each path of the round, in the round's order: the connected path, or the fault.
    paths: Vec<Result<Link, PathFault>>,
    pub(crate) cost: RoundCost,
}

/// Cost of preparing a round, and the memory use before it, from which [`CostMeter::after`]
/// computes the cost of the round.
struct CostMeter {
    /// Anonymous memory of the process before the round, in bytes.
    memory_before: u64,
    /// Time spent in this process, without waiting for other nodes.
    spent: Duration,
    /// Number of queue pairs created.
    created: usize,
}

impl PreparedRound {
    /// Opens the round's devices and creates its queue pairs.
    pub(crate) fn new(round: ProofRound, node: NodeId) -> PreparedRound {
        let (memory_before, begin) = (anonymous_memory(), Instant::now());
        let slots = slots(&round);
        let ends = open_ends(&round);
        let random = RandomState::new();
        let jobs = round.paths.iter().zip(slots).collect();
        let paths =
            connect::map(jobs, connect::cpu_threads(), |(path, slot): (&MeshPath, usize)| {
                // Random: a process outside the job cannot guess it.
                let secret = random.hash_one(path.id) as u32;
                let opened = ends.get(path.port_index as usize).ok_or_else(|| no_end(path))?;
                let opened = opened.as_ref().map_err(Clone::clone)?;
                let pair = opened.prepare_pair()?;
                Ok(PreparedPath { slot, pair, secret })
            });
        let has_pair = |ready: &&PreparedPath| ready.pair.is_some();
        let created = paths.iter().flatten().filter(has_pair).count();
        let cost = CostMeter { memory_before, spent: begin.elapsed(), created };
        PreparedRound { node, round, ends, paths, cost }
    }

    /// Returns the data that peers need to connect, in parts of limited size.
    pub(crate) fn adverts(&self) -> Vec<NodeEndpoints> {
        let paths = self.round.paths.iter().zip(&self.paths).filter_map(|(path, ready)| {
            let ready = ready.as_ref().ok()?;
            let end = self.ends.get(path.port_index as usize)?.as_ref().ok()?;
            Some(end.path_advert(path, ready))
        });
        let paths: Vec<PathAdvert> = paths.collect();
        let ends = self.ends.iter().zip(0_u32..).filter_map(|(opened, index)| {
            let opened = opened.as_ref().ok()?;
            let listener = opened.listener.as_ref().map(Listener::port);
            Some(opened.end.advert(index, listener))
        });
        let ends: Vec<PortAdvert> = ends.collect();
        let part = |paths: &[PathAdvert]| NodeEndpoints {
            node: self.node,
            ports: ends.clone(),
            paths: paths.to_vec(),
        };
        paths.chunks(PATHS_PER_PART).map(part).collect()
    }

    /// Connects the round's paths with the peers that sent these adverts.
    pub(crate) fn connect(self, adverts: &[NodeEndpoints]) -> ConnectedRound {
        let begin = Instant::now();
        let peers = adverts_by_path(adverts);
        let (mut paths, mut jobs) = (Vec::new(), Vec::new());
        for (index, (path, ready)) in self.round.paths.iter().zip(self.paths).enumerate() {
            let opened =
                self.ends.get(path.port_index as usize).and_then(|opened| opened.as_ref().ok());
            let peer = peers.get(&(path.peer, path.id));
            // The fault of the path unless it connects below.
            paths.push(Err(ready.as_ref().err().cloned().unwrap_or_else(unprepared)));
            if let (Ok(ready), Some(opened), Some((port_advert, path_advert))) =
                (ready, opened, peer)
            {
                let PreparedPath { slot, pair, secret } = ready;
                let (end, path) = (opened.end.clone(), *path);
                let (port_advert, path_advert) = ((*port_advert).clone(), **path_advert);
                jobs.push(Job { index, path, slot, pair, secret, end, port_advert, path_advert });
            }
        }
        let opened = self.ends.iter().flatten();
        let listeners = opened.filter_map(|it| Some((it.end.clone(), it.listener.as_ref()?)));
        for (index, connected) in connect::all(jobs, listeners.collect(), &self.round) {
            paths[index] = connected;
        }
        let ends: Vec<_> = self.ends.iter().flatten().map(|opened| opened.end.clone()).collect();
        let cost = self.cost.after(begin.elapsed(), &ends, &paths);
        ConnectedRound { round: self.round, paths, cost }
    }
}

impl CostMeter {
    /// Returns the cost of the round after its paths were connected, which took the time
    /// `connecting`. The memory is the growth of the process's anonymous memory, or the size of
    /// regions and completion queues if that is more, because memory freed earlier may have been
    /// reused.
    fn after(
        &self,
        connecting: Duration,
        ends: &[Arc<End>],
        paths: &[Result<Link, PathFault>],
    ) -> RoundCost {
        let by_manager = |link: &&Link| link.end.local.cm_address.is_some();
        let created = self.created + paths.iter().flatten().filter(by_manager).count();
        let grown = anonymous_memory().saturating_sub(self.memory_before);
        let spent = self.spent + connecting;
        RoundCost {
            queue_pairs: u32::try_from(created).unwrap_or(u32::MAX),
            connect_us: u32::try_from(spent.as_micros()).unwrap_or(u32::MAX),
            memory: grown.max(ends.iter().map(|end| end.memory()).sum()),
        }
    }
}

impl OpenEnd {
    fn prepare_pair(&self) -> Result<Option<QueuePair<Prepared>>, PathFault> {
        let LocalPort { port, gid_index, cm_address, .. } = &self.end.local;
        if cm_address.is_some() {
            return Ok(None);
        }
        QueuePair::prepare(&self.end.resources, *port, *gid_index)
            .map(Some)
            .map_err(|error| fault::from_verbs(ProofStep::Prepare, &error))
    }

    fn path_advert(&self, path: &MeshPath, ready: &PreparedPath) -> PathAdvert {
        let endpoint = ready.pair.as_ref().map(QueuePair::endpoint);
        let control = self.end.layout().control_offset(ready.slot);
        PathAdvert {
            id: path.id,
            port_index: path.port_index,
            qpn: endpoint.map_or(0, |endpoint| endpoint.qpn),
            psn: endpoint.map_or(ready.secret, |endpoint| endpoint.psn),
            control: u32::try_from(control).unwrap_or(u32::MAX),
        }
    }
}

impl ConnectedRound {
    /// Proves the connected paths, and measures those that this end dials if the round says so. Calls
    /// `meanwhile` regularly. Returns all connected paths,
    /// whether or not they carry data, and the outcome of every path.
    pub(crate) fn prove<E>(
        self,
        mut meanwhile: impl FnMut() -> Result<(), E>,
    ) -> Result<(Vec<Link>, Vec<PathOutcome>), E> {
        let mut outcomes = prove::prove(&self.paths, &self.round.limits, &mut meanwhile)?;
        if self.round.limits.measure_ms > 0 {
            self.measure(&mut outcomes, meanwhile)?;
        }
        for (path, connected) in self.round.paths.iter().zip(&self.paths) {
            if let Err(fault) = connected {
                outcomes.push(PathOutcome { id: path.id, result: Err(fault.clone()) });
            }
        }
        Ok((self.paths.into_iter().flatten().collect(), outcomes))
    }
}

impl ConnectedRound {
    /// Measures the bandwidth of the paths that carry data and that this end dials.
    fn measure<E>(
        &self,
        outcomes: &mut [PathOutcome],
        meanwhile: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let carries = |link: &&Link| {
            let id = link.path.id;
            outcomes.iter().any(|outcome| outcome.id == id && outcome.result.is_ok())
        };
        let links = self.paths.iter().flatten().filter(|link| link.path.dials);
        let links: Vec<&Link> = links.filter(carries).collect();
        let time = Duration::from_millis(self.round.limits.measure_ms.into()).min(MAX_MEASURE);
        let rates = measure::measure(&links, time, meanwhile)?;
        for (link, rate) in links.iter().zip(rates) {
            for outcome in outcomes.iter_mut().filter(|outcome| outcome.id == link.path.id) {
                if let Ok(proof) = &mut outcome.result {
                    proof.write_mbps = rate;
                }
            }
        }
        Ok(())
    }
}

/// Returns the slot of each path. The slots of an end are numbered from 0.
fn slots(round: &ProofRound) -> Vec<usize> {
    let mut taken: HashMap<u32, usize> = HashMap::new();
    let slot = |path: &MeshPath| {
        let next = taken.entry(path.port_index).or_default();
        *next += 1;
        *next - 1
    };
    round.paths.iter().map(slot).collect()
}

fn open_ends(round: &ProofRound) -> Vec<Result<OpenEnd, PathFault>> {
    let mut on_end: BTreeMap<u32, usize> = BTreeMap::new();
    let mut on_device: HashMap<&str, usize> = HashMap::new();
    for path in &round.paths {
        *on_end.entry(path.port_index).or_default() += 1;
        if let Some(end) = round.ports.get(path.port_index as usize) {
            *on_device.entry(&end.device).or_default() += 1;
        }
    }
    let open = |(local, index): (&LocalPort, u32)| {
        let paths = on_end.get(&index).copied().unwrap_or(0);
        let on_device = on_device.get(local.device.as_str()).copied().unwrap_or(0);
        let measures = round.limits.measure_ms > 0;
        let (end, listener) = End::open(local, paths, on_device, measures)?;
        Ok(OpenEnd { end: Arc::new(end), listener })
    };
    round.ports.iter().zip(0..).map(open).collect()
}

/// Indexes adverts by the node that sent them and the path's id.
fn adverts_by_path(
    adverts: &[NodeEndpoints],
) -> HashMap<(NodeId, u32), (&PortAdvert, &PathAdvert)> {
    let mut found = HashMap::new();
    for endpoints in adverts {
        for path in &endpoints.paths {
            if let Some(end) = endpoints.ports.iter().find(|end| end.port_index == path.port_index)
            {
                found.insert((endpoints.node, path.id), (end, path));
            }
        }
    }
    found
}

fn no_end(path: &MeshPath) -> PathFault {
    let cause = format!("there is no port {} in this round", path.port_index);
    PathFault { step: ProofStep::Prepare, cause, hint: None, awaited_peer: false }
}

fn unprepared() -> PathFault {
    fault::awaiting_peer(ProofStep::Exchange, "the peer has no queue pair".to_owned())
}

/// Returns the resident anonymous memory of this process (`RssAnon`), in bytes; 0 if it is unknown.
fn anonymous_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
