//! Creation of the communicator of all ranks of a job.
//!
//! The launcher has decided everything beforehand (ranks, hosts, the transport of each pair of
//! ranks) and written it to the rank table. This module reads the table and connects the ranks.

use crate::api::communicator::{Communicator, Group};
use crate::connect::{self, ConnectError};
use crate::progress::agent::Agent;
use crate::progress::engine::Engine;
use crate::progress::idle::EpollIdle;
use crate::progress::wait::{Progress, SpinPolicy};
use crate::transport::shm::{AttachError, ShmNode};
use crate::transport::{Link, SelfLink};
use crate::types::{LinkError, PeerName};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::statvfs::statvfs;
use rlaunch_bootstrap::env;
use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::inventory::CpuSet;
use rlaunch_bootstrap::protocol::rank::WaitRecord;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_client::{Client, ClientError, Credentials};
use rlaunch_sys::{SharedMemory, let_descendants_read};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

/// Default time limit for all ranks to begin the creation of their communicator. The limit is long
/// because a rank may read gigabytes of data first.
const INIT_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum world size for which all pairs of ranks connect at the start. In larger jobs, two ranks
/// on different nodes connect when they send their first message, because few of the many pairs
/// ever exchange messages.
const EAGER_RANKS: u32 = 256;

/// Number of times that this process has begun to create a communicator. The name of an attempt's
/// shared memory contains this number, so that the names of two attempts differ.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Failure to create a communicator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `WORLD_SIZE` has this value, which is not 1, but rlaunch did not start the process.
    #[error("WORLD_SIZE is {0}, but this process was not started by rlaunch")]
    NotLaunched(String),
    /// A call to the agent failed, or an environment variable that identifies this rank is missing
    /// or invalid.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An environment variable that configures the communicator has an invalid value.
    #[error("{name} is {value:?}; expected {wanted}")]
    BadVariable {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// Description of the valid values.
        wanted: &'static str,
    },
    /// The rank table cannot be read or parsed.
    #[error("cannot read the rank table {}", path.display())]
    Table {
        /// Path of the rank table.
        path: PathBuf,
        /// Error of reading or parsing the table.
        source: io::Error,
    },
    /// The shared memory of the node cannot be used.
    #[error(transparent)]
    SharedMemory(#[from] AttachError),
    /// Ranks on different nodes cannot connect to each other.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A rank on the same node cannot be reached.
    #[error("cannot connect to {peer}: {source}")]
    Link {
        /// Rank that cannot be reached.
        peer: PeerName,
        /// Failure of the link to this rank.
        source: LinkError,
    },
    /// An epoll instance or an eventfd, which every rank needs, could not be created or used.
    #[error(transparent)]
    System(#[from] LinkError),
}

impl StartError {
    /// Returns advice on how to fix the problem, or `None` if there is no specific advice.
    pub fn hint(&self) -> Option<String> {
        match self {
            StartError::NotLaunched(_) => {
                Some("start it with: rlaunch -H HOST,... PROGRAM".to_owned())
            }
            StartError::SharedMemory(AttachError::Taken { .. }) => Some(
                "a rank is one process and creates one communicator; split it for more".to_owned(),
            ),
            StartError::SharedMemory(AttachError::Full { .. }) => Some(enlarge_shared_memory()),
            // Not even an empty segment: what is used up is inodes.
            StartError::SharedMemory(AttachError::System { source, .. })
                if source.kind() == io::ErrorKind::StorageFull =>
            {
                Some(enlarge_shared_memory())
            }
            StartError::Connect(error) => error.hint(),
            _ => None,
        }
    }
}

/// Returns advice on how to make /dev/shm larger, with its size.
fn enlarge_shared_memory() -> String {
    let stat = statvfs(SharedMemory::DIRECTORY);
    if stat.is_ok_and(|stat| stat.files() > 0 && stat.files_available() == 0) {
        return "/dev/shm has no inode left for another file (`df -i /dev/shm`): remove files of \
                programs that have ended, or `sudo mount -o remount,nr_inodes=1m /dev/shm`"
            .to_owned();
    }
    let size = stat.map_or_else(
        |_| String::new(),
        |stat| {
            let kib = |blocks: u64| (blocks * stat.fragment_size()) >> 10;
            let (all, free) = (kib(stat.blocks()), kib(stat.blocks_available()));
            format!(" (it has {all} KiB, of which {free} KiB are free)")
        },
    );
    format!(
        "make /dev/shm larger{size}: a container is started with --shm-size=1g or --ipc=host, on a host \
         `sudo mount -o remount,size=50% /dev/shm` does it"
    )
}

impl Communicator {
    /// Creates the communicator of all ranks of the job, or of this process alone if no launcher
    /// started it.
    ///
    /// Waits until all ranks have called this function, for at most
    /// [`RLAUNCH_INIT_TIMEOUT`](env::RLAUNCH_INIT_TIMEOUT) seconds (300 by default).
    pub fn from_env() -> Result<Communicator, StartError> {
        if std::env::var_os(env::RLAUNCH_SOCKET).is_some() {
            return start(Credentials::from_env()?);
        }
        match std::env::var(env::WORLD_SIZE) {
            Ok(size) if size != "1" && !size.is_empty() => Err(StartError::NotLaunched(size)),
            _ => without_launcher(),
        }
    }
}

fn without_launcher() -> Result<Communicator, StartError> {
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
            // Some kernels let a process read only its descendants' memory by default, and ranks
            // are siblings.
            let_siblings_read(&client);
            let name = format!("rlaunch-{job}-{}.{generation}", row.node);
            Some(ShmNode::attach(&name, row.local_rank.index(), size, size > cpus, timeout)?)
        }
    };
    let table = Arc::new(table);
    let names = names(&table);
    let is_large = table.world_size() > eager_ranks()?;
    let mut by_rank = connect::connect_all(&mut client, &table, me, job, &names, is_large)?;
    let mut links: Vec<Box<dyn Link>> = Vec::with_capacity(names.len());
    for rank in (0..table.world_size()).map(Rank) {
        let failed = |source| StartError::Link { peer: names[rank.index()].clone(), source };
        let absent = LinkError::Protocol(
            "it reported that it was ready, but has not attached to the shared memory",
        );
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
    let spin_policy = match may_spin()? {
        Some(false) => SpinPolicy::none(),
        Some(true) => SpinPolicy::new(engine.wake_latency(), false),
        // Yield the processor between polls if the node has more ranks than CPUs. Also yield if
        // each poll is a system call: a yield costs little in comparison, and virtual machines may
        // share processors without showing it.
        None => {
            SpinPolicy::new(engine.wake_latency(), locals.len() > cpus || engine.poll_is_syscall())
        }
    };
    let progress = Progress::new(engine, Arc::new(EpollIdle::new()?), spin_policy, timeout);
    let group = Group::world(me.index(), nodes.iter().map(|node| node.0).collect());
    progress.set_agent(Agent::new(client, nodes))?;
    if let Some(directory) = table_path()?.parent() {
        // Nothing but a view of this rank depends on it.
        let _ = progress.waited.publish(&directory.join(WaitRecord::file_name(me)));
    }
    Ok(Communicator::new(Arc::new(progress), group))
}

/// Permits the agent's other descendants, among them the other ranks on this node, to read this
/// process's memory. If the kernel refuses, long messages are copied through shared memory, which
/// is slower.
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

/// Counts the CPUs that `locals`, the ranks on this node, may use together. If a rank is not bound
/// to CPUs, counts those that this process may use.
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

/// Returns the path of the rank table, which is in the job's directory on this node.
fn table_path() -> Result<PathBuf, StartError> {
    let missing = ClientError::NotARank(env::RLAUNCH_RANK_TABLE);
    Ok(PathBuf::from(std::env::var_os(env::RLAUNCH_RANK_TABLE).ok_or(missing)?))
}

fn read_table() -> Result<RankTable, StartError> {
    let path = table_path()?;
    let read = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.map_err(|source| StartError::Table { path, source })
}

/// Parses the environment variable `name` with `parse`; returns `None` if the variable is unset or
/// empty. If `parse` returns `None`, fails with an error that describes the valid values by
/// `wanted`.
fn variable<T>(
    name: &'static str,
    wanted: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, StartError> {
    let Some(value) = std::env::var(name).ok().filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    match parse(&value) {
        Some(read) => Ok(Some(read)),
        None => Err(StartError::BadVariable { name, value, wanted }),
    }
}

fn init_timeout() -> Result<Duration, StartError> {
    let seconds = |value: &str| {
        let seconds = value.parse().ok().filter(|seconds| *seconds > 0.0)?;
        Duration::try_from_secs_f64(seconds).ok()
    };
    let timeout = variable(env::RLAUNCH_INIT_TIMEOUT, "a number of seconds above 0", seconds)?;
    Ok(timeout.unwrap_or(INIT_TIMEOUT))
}

fn may_spin() -> Result<Option<bool>, StartError> {
    let may_spin = |value: &str| match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    variable(env::RLAUNCH_SPIN, "0 or 1", may_spin)
}

fn eager_ranks() -> Result<u32, StartError> {
    let ranks = |value: &str| value.parse().ok();
    Ok(variable(env::RLAUNCH_EAGER_RANKS, "a number of ranks", ranks)?.unwrap_or(EAGER_RANKS))
}
