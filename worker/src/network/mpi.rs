//! The process manager of this node's MPI ranks: a port on loopback, and the connections to it.
//!
//! The *server* is the state machine of `rlaunch_pmi`, which knows the protocols of MPI libraries.
//! This module owns the sockets. Requests of the server that concern other nodes are carried out by
//! [`super::rendezvous`]. Before the first connection there is only the listening port, so a
//! job without MPI pays for nothing else.
//!
//! MPI libraries cannot authenticate themselves to a launcher beyond what is in their environment.
//! So the agent asks the kernel which user owns the connecting socket, as for Horovod, and refuses
//! connections of other users. In addition, a client must know a random value from its environment:
//! the job's namespace (PMIx) or the rank's secret number (PMI-1).

use crate::cleanup::shm;
use crate::console::errln;
use crate::network::ports::LOOPBACK;
use crate::network::tcp_owner::user_of;
use crate::network::until;
use rlaunch_bootstrap::env::RLAUNCH_HOST;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::job::{Job, MpiInterfaces, RankSpec};
use rlaunch_bootstrap::protocol::control::FromAgent;
use rlaunch_bootstrap::rank_table::{NodeRanks, TableMessage};
use rlaunch_bootstrap::rendezvous::message::CollectiveId;
use rlaunch_bootstrap::rendezvous::rank_set::RankSet;
use rlaunch_pmi::{
    ConnectionId, Family, JobLayout, NodeLayout, Output, RankPlace, Server, pmi1, pmix,
};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use std::{fs, io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Directory for temporary files of MPI libraries, below the private directory of the job.
const MPI_DIRECTORY: &str = "mpi";
/// Pause after accept(2) has failed.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
/// Number of bytes that are read from a connection at once.
const READ_SIZE: usize = 16 << 10;
/// Maximum number of events of connections that are queued for the server.
const EVENTS: usize = 64;

/// Ranks that have connected to the process manager and have not called `MPI_Finalize`. The set is
/// shared with the part of the agent that reports exits.
pub(crate) type UnfinalizedRanks = Rc<RefCell<RankSet>>;

/// Event on a connection of an MPI rank.
enum ConnectionEvent {
    Received(Vec<u8>),
    /// The client has closed the connection, or it broke.
    Closed,
}

/// Process manager of this node's MPI ranks.
pub(crate) struct MpiService {
    /// Listener on loopback; `None` if the job has no process manager.
    listener: Option<TcpListener>,
    identity: MpiIdentity,
    /// Message with the layout of the ranks, until the server is made from it. The server is made
    /// when the first client connects.
    table: Option<TableMessage>,
    node: usize,
    server: Option<Server>,
    next_connection: u64,
    /// Queue for the bytes to be written to each connection, in the order of their ids. Dropping a
    /// queue closes its connection after all bytes are written.
    connections: Vec<(ConnectionId, mpsc::UnboundedSender<Vec<u8>>)>,
    events: mpsc::Receiver<(ConnectionId, ConnectionEvent)>,
    events_in: mpsc::Sender<(ConnectionId, ConnectionEvent)>,
    unfinalized: UnfinalizedRanks,
    /// Names of files in `/dev/shm` to be removed at the end of the job.
    segments: Vec<String>,
    has_warned: bool,
    /// Tasks that read and write the connections, aborted when the service is dropped.
    tasks: JoinSet<()>,
}

/// Data from which the environment variables of the node's MPI ranks are made.
#[derive(Clone, Debug, Default)]
pub(crate) struct MpiIdentity {
    /// Port of the process manager on loopback; `None` if the job has no process manager.
    port: Option<u16>,
    /// Namespace: the name of the job in PMIx, which contains a secret.
    namespace: String,
    /// Secret number of each rank, by local rank, for PMI-1.
    pmi_ids: Vec<u32>,
    node: usize,
    world_size: u32,
    /// Private directory of the job on this node, if it has one.
    workspace: Option<PathBuf>,
}

/// Process management interfaces that the ranks of a program are offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MpiOffer {
    pub(crate) pmix: bool,
    pub(crate) pmi1: bool,
}

/// Request of the server that other nodes or the launcher must answer. The tree of agents passes
/// the request on.
#[derive(Debug)]
pub(crate) enum MpiRequest {
    /// Let a rank of this node take part in a gather of all ranks of the job, with `blob` as its
    /// data. The answer goes to [`MpiService::gathered`].
    Gather { request: u64, local_rank: usize, name: String, blob: Vec<u8> },
    /// Store a value that all nodes can read. An empty value removes the key.
    Put { key: String, value: Vec<u8> },
    /// Read a value. The answer goes to [`MpiService::value`].
    Get { request: u64, key: String, wait: bool },
    /// Tell the launcher that a rank has called `MPI_Abort`.
    Abort(FromAgent),
    /// Print a text of a rank's MPI library on the standard error of the rank.
    Print { rank: Rank, text: String },
}

impl MpiService {
    /// Opens the port, if the job needs a process manager. If the port cannot be opened, prints a
    /// warning, and the ranks of this node run without a process manager.
    pub(crate) fn open(job: &Job) -> MpiService {
        let warn = |error: &io::Error| {
            errln!("rlaunch-worker: MPI programs cannot start: listen on {LOOPBACK}: {error}");
        };
        let listener = if is_served(job) { listen().inspect_err(warn).ok() } else { None };
        let port = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let identity = match port {
            Some(address) => MpiIdentity::new(job, address.port()),
            None => MpiIdentity::default(),
        };
        let (events_in, events) = mpsc::channel(EVENTS);
        MpiService {
            listener,
            identity,
            table: None,
            node: job.node.index(),
            server: None,
            next_connection: 0,
            connections: Vec::new(),
            events,
            events_in,
            unfinalized: UnfinalizedRanks::default(),
            segments: Vec::new(),
            has_warned: false,
            tasks: JoinSet::new(),
        }
    }

    /// Returns the data for the variables by which MPI libraries find the process manager.
    pub(crate) fn identity(&self) -> MpiIdentity {
        self.identity.clone()
    }

    /// Returns the set of ranks that have connected to the process manager and have not finalized
    /// MPI. The set is shared, so later changes are visible in it.
    pub(crate) fn unfinalized(&self) -> UnfinalizedRanks {
        self.unfinalized.clone()
    }

    /// Stores the message from which the server is made when the first client connects. `workspace`
    /// is the private directory of the job, if it has one.
    pub(crate) fn set_table(&mut self, table: TableMessage, workspace: Option<&Path>) {
        self.table = self.listener.is_some().then_some(table);
        self.identity.workspace = workspace.map(Path::to_owned);
    }

    /// Waits for one event of a client or timer and handles it. Cancel-safe.
    pub(crate) async fn run_once(&mut self) {
        let Some(listener) = &self.listener else { return std::future::pending().await };
        let due = self.server.as_ref().and_then(Server::poll_timeout);
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, from)) => self.admit(socket, from),
                // The client has gone already, or the process has too many open files at present.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
            },
            Some((connection, event)) = self.events.recv() => self.on_connection_event(connection, event),
            Some(_) = self.tasks.join_next() => {}
            () = until(due) => {
                if let Some(server) = &mut self.server {
                    server.handle_timeout(Instant::now());
                }
            }
        }
    }

    /// Handles the answer to [`MpiRequest::Gather`]: the data of all ranks, by rank.
    pub(crate) fn gathered(&mut self, request: u64, data: Vec<Vec<u8>>) {
        if let Some(server) = &mut self.server {
            server.gathered(request, data);
        }
    }

    /// Handles the notice that a gather can never complete, or that a value cannot be read. Later
    /// notices of the same request are ignored.
    pub(crate) fn failed(&mut self, request: u64) {
        if let Some(server) = &mut self.server {
            server.failed(request);
        }
    }

    /// Handles the answer to [`MpiRequest::Get`]; `None` if the key has no value.
    pub(crate) fn value(&mut self, request: u64, value: Option<Vec<u8>>) {
        if let Some(server) = &mut self.server {
            server.value(request, value);
        }
    }

    /// Tells the server that the process of a rank has ended.
    pub(crate) fn rank_ended(&mut self, rank: Rank) {
        if let Some(server) = &mut self.server {
            server.rank_ended(rank.0);
        }
    }

    /// Returns the names of the files in `/dev/shm` that the ranks of this node have made or may make.
    pub(crate) fn segments(&self) -> &[String] {
        &self.segments
    }

    /// Executes the server's outputs that concern this node, and returns the next request that
    /// needs other nodes or the launcher.
    pub(crate) fn poll_request(&mut self) -> Option<MpiRequest> {
        while let Some(output) = self.server.as_mut()?.poll_output() {
            match output {
                Output::Send(connection, bytes) => {
                    if let Some(at) = self.position_of(connection) {
                        // The client may have gone.
                        let _ = self.connections[at].1.send(bytes);
                    }
                }
                Output::Close(connection) => self.close(connection),
                Output::Connected(rank, _) => {
                    self.unfinalized.borrow_mut().insert(Rank(rank));
                }
                Output::Finalized(rank) => {
                    self.unfinalized.borrow_mut().remove(Rank(rank));
                }
                Output::Gather { request, local_rank, name, blob } => {
                    return Some(MpiRequest::Gather { request, local_rank, name, blob });
                }
                Output::Put { key, value } => return Some(MpiRequest::Put { key, value }),
                Output::Get { request, key, wait } => {
                    return Some(MpiRequest::Get { request, key, wait });
                }
                Output::Print { rank, text } => {
                    return Some(MpiRequest::Print { rank: Rank(rank), text });
                }
                Output::Segment(name) => {
                    // Without the note the file may be left if this agent is killed, as it would
                    // be by the library itself.
                    if let Some(workspace) = &self.identity.workspace {
                        let _ = shm::note_for_removal(workspace, &name);
                    }
                    self.segments.push(name);
                }
                Output::Abort { rank, code, message } => {
                    let (rank, code) = (Rank(rank), Some(code));
                    let abort = FromAgent::Aborted { by: Some(rank), text: message, code };
                    return Some(MpiRequest::Abort(abort));
                }
            }
        }
        None
    }

    fn on_connection_event(&mut self, connection: ConnectionId, event: ConnectionEvent) {
        let Some(server) = &mut self.server else { return };
        match event {
            ConnectionEvent::Received(bytes) => {
                server.received(connection, &bytes, Instant::now());
            }
            ConnectionEvent::Closed => {
                server.closed(connection);
                self.close(connection);
            }
        }
    }

    /// Returns the position of an open connection.
    fn position_of(&self, connection: ConnectionId) -> Option<usize> {
        self.connections.binary_search_by_key(&connection, |(id, _)| *id).ok()
    }

    fn close(&mut self, connection: ConnectionId) {
        if let Some(at) = self.position_of(connection) {
            self.connections.remove(at);
        }
    }

    /// Starts to serve a connection. Refuses a connection of a user other than the agent's own or
    /// root.
    fn admit(&mut self, socket: TcpStream, from: SocketAddr) {
        let own = nix::unistd::geteuid().as_raw();
        match user_of(&socket, from) {
            Some(uid) if uid == own || uid == 0 => {}
            uid => {
                // A reset leaves no connection in TIME_WAIT.
                let _ = socket.set_zero_linger();
                if let Some(uid) = uid
                    && !std::mem::replace(&mut self.has_warned, true)
                {
                    errln!("rlaunch-worker: refused a connection of user {uid} to the MPI port");
                }
                return;
            }
        }
        if !self.ensure_server() {
            return;
        }
        let Some(server) = &mut self.server else { return };
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        server.connected(connection);
        let (queue, bytes) = mpsc::unbounded_channel();
        self.connections.push((connection, queue));
        let _ = socket.set_nodelay(true);
        self.tasks.spawn(carry(socket, connection, bytes, self.events_in.clone()));
    }

    /// Makes the server unless it exists. Returns false if the rank table cannot be read.
    fn ensure_server(&mut self) -> bool {
        if self.server.is_some() {
            return true;
        }
        let Some(table) = &self.table else { return false };
        let layout = match table.layout() {
            Ok(layout) => layout,
            Err(error) => {
                errln!("rlaunch-worker: MPI programs cannot start: {error}");
                return false;
            }
        };
        let world_size = layout.nodes.iter().map(|node| node.ranks.len()).sum::<usize>();
        let ranks = (0..u32::try_from(world_size).unwrap_or(u32::MAX)).map(Rank);
        let application = |rank| u32::try_from(layout.application_of(rank)).unwrap_or(u32::MAX);
        let application_of = ranks.map(application).collect();
        let node = |node: NodeRanks| NodeLayout {
            host: node.host,
            ranks: node.ranks.into_iter().map(|rank| rank.0).collect(),
        };
        let mut layout = JobLayout {
            namespace: self.identity.namespace.clone(),
            application_of,
            nodes: layout.nodes.into_iter().map(node).collect(),
            here: self.node,
            directory: self
                .identity
                .workspace
                .as_ref()
                .and_then(|workspace| Some(workspace.join(MPI_DIRECTORY).to_str()?.to_owned())),
            pmi_ids: self.identity.pmi_ids.clone(),
        };
        let of_ranks = layout.ranks_here().iter().filter_map(|&rank| layout.rank_directory(rank));
        if of_ranks.map(fs::create_dir_all).any(|created| created.is_err()) {
            layout.directory = None;
        }
        self.server = Some(Server::new(layout));
        self.table = None;
        true
    }
}

/// Describes a collective for the user.
pub(crate) fn collective_text(operation: &CollectiveId) -> String {
    let number = operation.sequence + 1;
    match Family::of_gather(&operation.name) {
        Some(Family::Pmix) => format!("PMIx fence {number}, as in MPI_Init and MPI_Finalize"),
        Some(Family::Pmi1) => format!("PMI barrier {number}, as in MPI_Init and MPI_Finalize"),
        None => operation.to_string(),
    }
}

/// Tells whether the ranks of a job are offered a process manager. A single rank needs none:
/// without a process manager, MPI libraries start it as rank 0 of 1.
fn is_served(job: &Job) -> bool {
    job.world_size > 1 && job.mpi != MpiInterfaces::None
}

fn listen() -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind((LOOPBACK, 0))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

impl MpiIdentity {
    fn new(job: &Job, port: u16) -> MpiIdentity {
        // All agents compute the same name, and who knows the name does not know the job's token.
        let mut digest = Sha256::new();
        digest.update(b"rlaunch MPI namespace");
        digest.update(job.token.0);
        let secret = digest.finalize();
        let secret: String = secret[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let random = || (uuid::Uuid::new_v4().as_u128() & 0x7fff_ffff) as u32;
        MpiIdentity {
            port: Some(port),
            namespace: format!("rlaunch-{secret}"),
            pmi_ids: job.ranks.iter().map(|_| random()).collect(),
            node: job.node.index(),
            world_size: job.world_size,
            workspace: None,
        }
    }

    /// Returns the variables by which a rank finds its process manager, for the interfaces in
    /// `offer`.
    pub(crate) fn environment(&self, spec: &RankSpec, offer: MpiOffer) -> Vec<(String, String)> {
        let directory = self.workspace.as_ref().and_then(|workspace| workspace.to_str());
        let directory = directory.unwrap_or("/tmp");
        let Some(port) = self.port else { return Vec::new() };
        let host = spec.env.iter().find(|(name, _)| name == RLAUNCH_HOST);
        let place = RankPlace {
            namespace: self.namespace.clone(),
            node: self.node,
            host: host.map(|(_, host)| host.clone()).unwrap_or_default(),
            rank: spec.rank.0,
            world_size: self.world_size,
            local_rank: spec.local_rank.index(),
            local_size: self.pmi_ids.len(),
            pmi_id: self.pmi_ids.get(spec.local_rank.index()).copied().unwrap_or_default(),
        };
        let mut variables = Vec::new();
        if offer.pmix {
            variables.extend(pmix::environment(&place, port, directory));
        }
        match offer {
            MpiOffer { pmi1: true, pmix: true } => {
                variables.extend(pmi1::environment_beside_pmix(&place, port));
            }
            MpiOffer { pmi1: true, pmix: false } => {
                variables.extend(pmi1::environment(&place, port));
            }
            MpiOffer { pmi1: false, .. } => {}
        }
        variables
    }
}

/// Carries bytes between a client and the server until either of them closes the connection.
/// Nothing is read from a client that does not take its answers.
async fn carry(
    mut socket: TcpStream,
    connection: ConnectionId,
    mut answers: mpsc::UnboundedReceiver<Vec<u8>>,
    events: mpsc::Sender<(ConnectionId, ConnectionEvent)>,
) {
    let mut buffer = vec![0; READ_SIZE];
    loop {
        tokio::select! {
            biased;
            answer = answers.recv() => match answer {
                Some(bytes) => if socket.write_all(&bytes).await.is_err() { break },
                None => {
                    let _ = socket.shutdown().await;
                    return;
                }
            },
            read = socket.read(&mut buffer) => {
                let Some(length) = read.ok().filter(|&length| length > 0) else { break };
                let received = ConnectionEvent::Received(buffer[..length].to_vec());
                if events.send((connection, received)).await.is_err() {
                    return;
                }
            }
        }
    }
    let _ = events.send((connection, ConnectionEvent::Closed)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::env::is_foreign_launch;
    use rlaunch_bootstrap::rendezvous::message::CollectiveKind;

    /// Ranks get no variables of other launchers from the launching shell or their host. What the
    /// agent sets must be among them, so that no other value takes its place, and so must what
    /// would lead MPI libraries elsewhere.
    #[test]
    fn no_other_launcher_leads_ranks_elsewhere() {
        let place = RankPlace { world_size: 2, local_size: 2, ..RankPlace::default() };
        let set = [
            pmi1::environment(&place, 1),
            pmi1::environment_beside_pmix(&place, 1),
            pmix::environment(&place, 1, "/tmp"),
        ];
        // A choice of the user, which MPICH's own launcher does not set.
        let is_choice = |name: &String| name == "MPIR_CVAR_PMI_VERSION";
        let set = set.into_iter().flatten().map(|(name, _)| name).filter(|name| !is_choice(name));
        let removed = pmi1::REMOVED.into_iter().chain(pmix::REMOVED).map(str::to_owned);
        for name in set.chain(removed) {
            assert!(is_foreign_launch(&name), "{name}");
        }
    }

    #[test]
    fn fences_are_described_for_users() {
        let described = |name: &str| {
            let (kind, sequence) = (CollectiveKind::Gather, 2);
            collective_text(&CollectiveId { kind, name: name.into(), sequence })
        };
        assert_eq!(described("pmix:fence"), "PMIx fence 3, as in MPI_Init and MPI_Finalize");
        assert_eq!(described("pmi1:fence"), "PMI barrier 3, as in MPI_Init and MPI_Finalize");
        assert_eq!(described("x"), "all-gather \"x\"");
    }
}
