//! From a process that rlaunch started to a communicator: everything was decided before, so that
//! little is left to do.

use crate::api::communicator::Communicator;
use crate::api::group::Group;
use crate::connect::WireUpError;
use crate::connect::links;
use crate::progress::agent::Agent;
use crate::progress::engine::Engine;
use crate::progress::idle::EpollIdle;
use crate::progress::wait::{Progress, SpinPolicy};
use crate::transport::shm::{AttachError, ShmNode};
use crate::transport::{Link, SelfLink};
use crate::types::error::{LinkError, PeerName};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rlaunch_bootstrap::client::{Client, ClientError, Credentials};
use rlaunch_bootstrap::env;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::inventory::CpuSet;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_sys::let_descendants_read;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

/// How long ranks may take to come; they may be reading gigabytes before they ask.
const INIT_TIMEOUT: Duration = Duration::from_secs(300);
/// In jobs of more ranks than this, those of different nodes are connected when they first speak: few of
/// so many pairs ever do.
const EAGER_RANKS: u32 = 256;

/// How often this process has become a rank.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Why a process has no communicator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another launcher has started several ranks.
    #[error("WORLD_SIZE is {0}, but this process was not started by rlaunch")]
    NotLaunched(String),
    /// The agent does not answer, or not as it should.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A variable that rlaunch sets.
    #[error("{name} is {value:?}, which is no {wanted}")]
    BadVariable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// The rank table cannot be read.
    #[error("cannot read the rank table {}", path.display())]
    Table {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// This rank has no part in its node's memory.
    #[error(transparent)]
    SharedMemory(#[from] AttachError),
    /// Ranks of different nodes do not meet.
    #[error(transparent)]
    WireUp(#[from] WireUpError),
    /// There is no way to a rank of the same node.
    #[error("no way to {peer}: {source}")]
    Link {
        /// Which.
        peer: PeerName,
        /// Why.
        source: LinkError,
    },
    /// The system refuses what every rank needs.
    #[error(transparent)]
    System(#[from] LinkError),
}

impl StartError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            StartError::NotLaunched(_) => {
                Some("start it by rlaunch -H HOST,... PROGRAM".to_owned())
            }
            StartError::SharedMemory(AttachError::Taken { .. }) => {
                Some("a rank is one process: it may have one communicator, and split it".to_owned())
            }
            StartError::WireUp(error) => error.hint(),
            _ => None,
        }
    }
}

impl Communicator {
    /// All ranks of the job that this process is one of; of itself alone where nobody launched it.
    /// Waits until all ranks have called it, [`RLAUNCH_INIT_TIMEOUT`](env::RLAUNCH_INIT_TIMEOUT)
    /// seconds at most.
    pub fn from_env() -> Result<Communicator, StartError> {
        if std::env::var_os(env::RLAUNCH_SOCKET).is_some() {
            return start(Credentials::from_env()?);
        }
        match std::env::var(env::WORLD_SIZE) {
            Ok(size) if size != "1" && !size.is_empty() => Err(StartError::NotLaunched(size)),
            _ => alone(),
        }
    }
}

fn alone() -> Result<Communicator, StartError> {
    let names = [PeerName { rank: 0, host: "".into() }];
    let engine = Engine::new(0, vec![Box::new(SelfLink::default())], names.into());
    let progress = Progress::new(engine, Arc::new(EpollIdle::new()?), SpinPolicy::none(), None);
    Ok(Communicator::new(Arc::new(progress), Group::world(0, [0].into())))
}

fn start(credentials: Credentials) -> Result<Communicator, StartError> {
    let (me, timeout) = (credentials.rank, credentials.timeout);
    let job = credentials.job;
    let mut client = Client::connect(credentials)?;
    client.set_timeout(Some(init_timeout()?));
    let table = read_table()?;
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
    let row = &table.ranks()[me.index()];
    let locals: Vec<Rank> = (0..table.world_size())
        .map(Rank)
        .filter(|rank| table.ranks()[rank.index()].node == row.node)
        .collect();
    let cpus = cpus(&table, &locals);
    let node = match locals.len() {
        1 => None,
        size => {
            // Ranks are siblings, and some kernels let only parents read.
            let_siblings_read(&client);
            let name = format!("rlaunch-{job}-{}.{generation}", row.node);
            Some(ShmNode::attach(&name, row.local_rank.index(), size, size > cpus, timeout)?)
        }
    };
    let table = Arc::new(table);
    let names = names(&table);
    let is_large = table.world_size() > eager_ranks()?;
    let mut by_rank = links::connect(&mut client, &table, (me, job), &names, is_large)?;
    let mut links: Vec<Box<dyn Link>> = Vec::with_capacity(names.len());
    for rank in (0..table.world_size()).map(Rank) {
        let failed = |source| StartError::Link { peer: names[rank.index()].clone(), source };
        let absent = LinkError::Protocol("it says that it is there, and is not");
        links.push(if rank == me {
            Box::new(SelfLink::default())
        } else if let Some(link) = by_rank.remove(&rank) {
            link
        } else {
            let local = table.ranks()[rank.index()].local_rank.index();
            let link = node.as_ref().map(|node| node.link(local)).transpose().map_err(failed)?;
            Box::new(link.flatten().ok_or_else(|| failed(absent))?)
        });
    }
    let nodes: Vec<NodeId> = table.ranks().iter().map(|row| row.node).collect();
    let engine = Engine::new(me.index(), links, names);
    let spin_policy = match spins()? {
        Some(false) => SpinPolicy::none(),
        Some(true) => SpinPolicy::new(engine.wake_latency(), false),
        // Where looks are system calls, one more is nothing, and hosts may share processors unseen.
        None => {
            SpinPolicy::new(engine.wake_latency(), locals.len() > cpus || engine.poll_is_syscall())
        }
    };
    let progress = Progress::new(engine, Arc::new(EpollIdle::new()?), spin_policy, timeout);
    let group = Group::world(me.index(), nodes.iter().map(|node| node.0).collect());
    progress.set_agent(Agent::new(client, nodes))?;
    Ok(Communicator::new(Arc::new(progress), group))
}

/// Lets the other ranks of the agent read this one's memory; without it they only take longer.
fn let_siblings_read(client: &Client) {
    let agent = getsockopt(client, PeerCredentials).map(|peer| peer.pid());
    let _ = agent.ok().and_then(|pid| u32::try_from(pid).ok()).map(let_descendants_read);
}

fn names(table: &RankTable) -> Arc<[PeerName]> {
    let hosts: Vec<Arc<str>> = table.nodes().iter().map(|row| row.host.as_str().into()).collect();
    let name = |row: &rlaunch_bootstrap::rank_table::RankRow| PeerName {
        rank: row.rank.0,
        host: hosts[row.node.index()].clone(),
    };
    table.ranks().iter().map(name).collect()
}

/// How many CPUs the ranks of this node have together.
fn cpus(table: &RankTable, locals: &[Rank]) -> usize {
    let own = |rank: &Rank| {
        let cpus = table.ranks()[rank.index()].cpus.as_deref()?;
        cpus.parse::<CpuSet>().ok()
    };
    let bound: Option<Vec<CpuSet>> = locals.iter().map(own).collect();
    let here = || thread::available_parallelism().map_or(1, usize::from);
    let together =
        |sets: Vec<CpuSet>| sets.iter().flat_map(CpuSet::iter).collect::<BTreeSet<u32>>().len();
    bound.map_or_else(here, together)
}

fn read_table() -> Result<RankTable, StartError> {
    let missing = ClientError::NotARank(env::RLAUNCH_RANK_TABLE);
    let path = PathBuf::from(std::env::var_os(env::RLAUNCH_RANK_TABLE).ok_or(missing)?);
    let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.map_err(|source| StartError::Table { path, source })
}

/// What a variable says, as `reads` understands it.
fn variable<T>(
    name: &'static str,
    wanted: &'static str,
    reads: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, StartError> {
    let Some(value) = std::env::var(name).ok().filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    match reads(&value) {
        Some(read) => Ok(Some(read)),
        None => Err(StartError::BadVariable { name, value, wanted }),
    }
}

fn init_timeout() -> Result<Duration, StartError> {
    let seconds = |value: &str| {
        let seconds = value.parse().ok().filter(|seconds| *seconds > 0.0)?;
        Duration::try_from_secs_f64(seconds).ok()
    };
    let timeout = variable(env::RLAUNCH_INIT_TIMEOUT, "number of seconds above 0", seconds)?;
    Ok(timeout.unwrap_or(INIT_TIMEOUT))
}

fn spins() -> Result<Option<bool>, StartError> {
    let spins = |value: &str| match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    variable(env::RLAUNCH_SPIN, "0 or 1", spins)
}

fn eager_ranks() -> Result<u32, StartError> {
    let ranks = |value: &str| value.parse().ok();
    Ok(variable(env::RLAUNCH_EAGER_RANKS, "number of ranks", ranks)?.unwrap_or(EAGER_RANKS))
}
