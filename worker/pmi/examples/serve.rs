//! Starts MPI programs under this crate's servers, to try them with real MPI libraries.
//!
//! ```text
//! serve --family pmi1|pmix [--deal] [--trace] NODES RANKS COMMAND…
//! ```
//!
//! The nodes are faked: each has its own server and port in this process, and what they gather and store
//! is joined in memory. `RANKS` is the number of ranks per node, or a list with a number for each node
//! such as `3,1,2`. `--deal` gives the nodes one rank each in turn instead of a block, `--trace` prints all
//! messages of PMI-1.

use rlaunch_pmi::{ConnectionId, Family, JobLayout, NodeLayout, Output, Server, pmi1, pmix};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, ExitCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time after which the job is killed.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// What the command line asks for.
struct Arguments {
    family: Family,
    deal: bool,
    trace: bool,
    /// Number of ranks of each node.
    ranks: Vec<usize>,
    command: Vec<String>,
}

fn main() -> ExitCode {
    let Some(arguments) = arguments(std::env::args().skip(1)) else {
        eprintln!("usage: serve --family pmi1|pmix [--deal] [--trace] NODES RANKS COMMAND…");
        return ExitCode::from(2);
    };
    match run(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("serve: {error}");
            ExitCode::from(2)
        }
    }
}

fn arguments(mut given: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut family = None;
    let (mut deal, mut trace) = (false, false);
    let nodes: usize = loop {
        match given.next()?.as_str() {
            "--family" => match given.next()?.as_str() {
                "pmi1" => family = Some(Family::Pmi1),
                "pmix" => family = Some(Family::Pmix),
                _ => return None,
            },
            "--deal" => deal = true,
            "--trace" => trace = true,
            nodes => break nodes.parse().ok()?,
        }
    };
    let ranks: Option<Vec<usize>> =
        given.next()?.split(',').map(|number| number.parse().ok()).collect();
    let mut ranks = ranks?;
    if let [each] = ranks[..] {
        ranks = vec![each; nodes];
    }
    let command: Vec<String> = given.collect();
    let is_whole = ranks.len() == nodes && !command.is_empty();
    is_whole.then_some(Arguments { family: family?, deal, trace, ranks, command })
}

/// Runs the job and returns its exit code.
fn run(arguments: &Arguments) -> io::Result<u8> {
    let nodes = place(arguments);
    let token = format!("{:016x}{:016x}", random(), random());
    let directory = std::env::temp_dir().join(format!("serve-{token}"));
    let mut job = Job { trace: arguments.trace, ..Job::default() };
    let mut listeners = Vec::new();
    for (here, node) in nodes.iter().enumerate() {
        let layout = JobLayout {
            namespace: format!("serve-{token}"),
            nodes: nodes.clone(),
            here,
            application_of: vec![0; arguments.ranks.iter().sum()],
            directory: None,
            pmi_ids: node.ranks.iter().map(|_| random() as u32 >> 1).collect(),
        };
        job.servers.push(Server::new(layout));
        listeners.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    }
    let ports: Vec<u16> = listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect::<io::Result<_>>()?;
    let job = Arc::new(Mutex::new(job));
    for (node, listener) in listeners.into_iter().enumerate() {
        let job = Arc::clone(&job);
        thread::spawn(move || accept(&job, node, &listener));
    }
    for (node, &port) in ports.iter().enumerate() {
        let directory = directory.join(format!("node{node}"));
        std::fs::create_dir_all(&directory)?;
        for &rank in &nodes[node].ranks {
            start(&job, arguments, Place { node, rank, port }, &directory.to_string_lossy())?;
        }
    }
    let code = wait(&job);
    std::fs::remove_dir_all(&directory)?;
    Ok(code)
}

/// Returns the ranks of each node.
fn place(arguments: &Arguments) -> Vec<NodeLayout> {
    let host = |node| NodeLayout { host: format!("fake{node}"), ranks: Vec::new() };
    let mut nodes: Vec<NodeLayout> = (0..arguments.ranks.len()).map(host).collect();
    let mut next = 0;
    let mut add = |node: &mut NodeLayout| {
        node.ranks.push(next);
        next += 1;
    };
    if arguments.deal {
        for round in 0..arguments.ranks.iter().copied().max().unwrap_or(0) {
            let with_room =
                nodes.iter_mut().zip(&arguments.ranks).filter(|(_, ranks)| round < **ranks);
            with_room.for_each(|(node, _)| add(node));
        }
    } else {
        for (node, &ranks) in nodes.iter_mut().zip(&arguments.ranks) {
            (0..ranks).for_each(|_| add(node));
        }
    }
    nodes
}

/// Returns a random number.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Rank that is to be started.
#[derive(Clone, Copy)]
struct Place {
    node: usize,
    rank: u32,
    port: u16,
}

/// Starts a rank.
fn start(
    job: &Arc<Mutex<Job>>,
    arguments: &Arguments,
    Place { node, rank, port }: Place,
    directory: &str,
) -> io::Result<()> {
    let mut command = Command::new(&arguments.command[0]);
    command.args(&arguments.command[1..]);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["PMI", "OMPI_", "HYDI_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    let mut locked = lock(job);
    let place = locked.servers[node].layout().place(rank).ok_or(io::ErrorKind::NotFound)?;
    command.envs(match arguments.family {
        Family::Pmi1 => pmi1::environment(&place, port),
        Family::Pmix => pmix::environment(&place, port, directory),
    });
    // Ranks of different faked nodes must not meet in the host's shared memory.
    command.env("OMPI_MCA_btl_vader_backing_directory", directory);
    let child = command.spawn()?;
    locked.children.push(Rank { node, rank, child, code: None });
    Ok(())
}

/// Waits until all ranks have ended, and returns the exit code of the job.
fn wait(job: &Mutex<Job>) -> u8 {
    let start = Instant::now();
    loop {
        let mut job = lock(job);
        let now = Instant::now();
        for server in &mut job.servers {
            if server.poll_timeout().is_some_and(|due| due <= now) {
                server.handle_timeout(now);
            }
        }
        if start.elapsed() > TIME_LIMIT && job.abort.is_none() {
            eprintln!("serve: the job is killed after {TIME_LIMIT:?}");
            job.abort = Some(124);
        }
        job.reap();
        job.settle();
        let codes: Option<Vec<i32>> = job.children.iter().map(|rank| rank.code).collect();
        if let Some(codes) = codes {
            let (begun, ended) = (job.begun, job.ended);
            eprintln!("serve: exit codes {codes:?}, {begun} began with MPI and {ended} ended it");
            let worst = codes.into_iter().find(|&code| code != 0).unwrap_or(0);
            return job.abort.unwrap_or(worst) as u8;
        }
        drop(job);
        thread::sleep(Duration::from_millis(2));
    }
}

fn lock(job: &Mutex<Job>) -> MutexGuard<'_, Job> {
    job.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts the connections to a node's port.
fn accept(job: &Arc<Mutex<Job>>, node: usize, listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        let Ok(writer) = stream.try_clone() else { continue };
        let mut locked = lock(job);
        let connection = locked.add(Box::new(writer));
        locked.servers[node].connected(connection);
        locked.settle();
        let job = Arc::clone(job);
        thread::spawn(move || read(&job, node, connection, stream));
    }
}

/// Reads from a connection until it ends.
fn read(job: &Mutex<Job>, node: usize, connection: ConnectionId, mut stream: impl Read) {
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer).unwrap_or(0);
        let mut job = lock(job);
        if length == 0 {
            job.servers[node].closed(connection);
            job.writers.remove(&connection);
            job.settle();
            return;
        }
        job.trace(connection, '>', &buffer[..length]);
        job.servers[node].received(connection, &buffer[..length], Instant::now());
        job.settle();
    }
}

/// Rank that was started.
struct Rank {
    node: usize,
    rank: u32,
    child: Child,
    code: Option<i32>,
}

/// What a rank brings to a gather.
struct Part {
    node: usize,
    request: u64,
    rank: u32,
    blob: Vec<u8>,
}

/// Job whose nodes are all in this process.
#[derive(Default)]
struct Job {
    servers: Vec<Server>,
    connections: u64,
    writers: HashMap<ConnectionId, Box<dyn Write + Send>>,
    children: Vec<Rank>,
    stored: BTreeMap<String, Vec<u8>>,
    /// Nodes that wait for a value: node, request and key.
    waiting: Vec<(usize, u64, String)>,
    /// What the ranks that take part in a gather bring to it, by the gather's name and number.
    gathers: BTreeMap<(String, u64), Vec<Part>>,
    /// Number of gathers of a name in which a rank has taken part.
    counts: BTreeMap<(String, u32), u64>,
    /// Exit code, once the job is to be killed.
    abort: Option<i32>,
    begun: usize,
    ended: usize,
    trace: bool,
}

impl Job {
    /// Adds a connection.
    fn add(&mut self, writer: Box<dyn Write + Send>) -> ConnectionId {
        let connection = ConnectionId(self.connections);
        self.connections += 1;
        self.writers.insert(connection, writer);
        connection
    }

    fn trace(&self, connection: ConnectionId, direction: char, bytes: &[u8]) {
        if self.trace {
            for line in String::from_utf8_lossy(bytes).lines() {
                eprintln!("[{}]{direction} {line}", connection.0);
            }
        }
    }

    /// Takes notice of ranks that have ended, and kills the rest if the job is to end.
    fn reap(&mut self) {
        for rank in self.children.iter_mut().filter(|rank| rank.code.is_none()) {
            if self.abort.is_some() {
                let _ = rank.child.kill();
            }
            if let Ok(Some(status)) = rank.child.try_wait() {
                rank.code = Some(status.code().unwrap_or(-1));
                self.servers[rank.node].rank_ended(rank.rank);
            }
        }
    }

    /// Executes the actions of all servers until there are none.
    fn settle(&mut self) {
        let mut next = 0;
        while next < self.servers.len() {
            match self.servers[next].poll_output() {
                Some(output) => {
                    self.execute(next, output);
                    next = 0;
                }
                None => next += 1,
            }
        }
    }

    fn execute(&mut self, node: usize, output: Output) {
        match output {
            Output::Send(connection, bytes) => {
                self.trace(connection, '<', &bytes);
                if let Some(writer) = self.writers.get_mut(&connection) {
                    let _ = writer.write_all(&bytes);
                }
            }
            Output::Close(connection) => {
                eprintln!("serve: node {node} closes connection {}", connection.0);
                self.writers.remove(&connection);
            }
            Output::Put { key, value } => {
                self.stored.insert(key, value);
                for (node, request, key) in std::mem::take(&mut self.waiting) {
                    self.get(node, request, key, true);
                }
            }
            Output::Get { request, key, wait } => self.get(node, request, key, wait),
            Output::Gather { request, local_rank, name, blob } => {
                let rank = self.servers[node].layout().ranks_here()[local_rank];
                self.gather(&name, Part { node, request, rank, blob });
            }
            Output::Abort { rank, code, message } => {
                eprintln!("serve: rank {rank} aborts the job with code {code}: {message}");
                self.abort.get_or_insert(code);
            }
            Output::Print { text, .. } => eprintln!("{text}"),
            Output::Segment(name) => eprintln!("serve: node {node} leaves {name} in shared memory"),
            Output::Connected(..) => self.begun += 1,
            Output::Finalized(_) => self.ended += 1,
        }
    }

    fn get(&mut self, node: usize, request: u64, key: String, wait: bool) {
        let value = self.stored.get(&key).filter(|value| !value.is_empty()).cloned();
        if wait && value.is_none() {
            self.waiting.push((node, request, key));
        } else {
            self.servers[node].value(request, value);
        }
    }

    fn gather(&mut self, name: &str, part: Part) {
        let count = self.counts.entry((name.to_owned(), part.rank)).or_default();
        let gather = (name.to_owned(), *count);
        *count += 1;
        let parts = self.gathers.entry(gather.clone()).or_default();
        parts.push(part);
        if parts.len() < self.servers[0].layout().world_size() as usize {
            return;
        }
        let mut parts = self.gathers.remove(&gather).unwrap_or_default();
        parts.sort_by_key(|part| part.rank);
        let data: Vec<Vec<u8>> = parts.iter().map(|part| part.blob.clone()).collect();
        for part in parts {
            self.servers[part.node].gathered(part.request, data.clone());
        }
    }
}
