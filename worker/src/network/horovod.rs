//! Proxy through which the Horovod ranks of a node reach the key-value store where they rendezvous,
//! and the check of who connects to it.
//!
//! The agent on rank 0's node has the store; requests travel there over the tree of agents. The
//! size of a request and the time it may take are limited. When too many connections send nothing,
//! the oldest of them is closed to make room for ranks.
//!
//! Horovod's client cannot authenticate itself. So each agent listens on loopback only, and accepts
//! only connections of the agent's own user, which is also the ranks' user, and of root. TCP
//! sockets carry no credentials, unlike Unix sockets, but the kernel knows the owner of the
//! connecting socket ([`user_of`]). It is asked over netlink (`linux/inet_diag.h`) for that single
//! socket, so the query takes no longer on a host with many sockets. If the kernel does not support
//! the query, its table of all sockets is read.

use crate::console::errln;
use crate::network::ports::ReservedPort;
use crate::node::inventory::netlink::{self, HEADER, REQUEST};
use nix::sys::socket::{AddressFamily, MsgFlags, SockProtocol, recv};
use rlaunch_bootstrap::rendezvous::node::Answer;
use rlaunch_bootstrap::rendezvous::payload::Payload;
use rlaunch_horovod as horovod;
use rlaunch_horovod::{Refusal, Request, RequestReader, Store};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

/// Address at which ranks find the proxy.
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Time limit for a complete request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the store to answer, and for the client to read the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of connections served at the same time, which bounds the memory of incomplete
/// requests. Further connections wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 64;
/// Time limit for a request to arrive while [`MAX_CONNECTIONS`] connections are served. The limit
/// is short, because ranks send their request immediately.
const FULL_TIMEOUT: Duration = Duration::from_millis(250);
/// Pause after accept(2) has failed.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// Request of a client, and the queue for its answer.
struct PendingRequest {
    request: Request,
    answer: oneshot::Sender<Vec<u8>>,
}

/// Horovod proxy of this node; dropping it closes the port.
pub(crate) struct HorovodProxy {
    requests: mpsc::Receiver<PendingRequest>,
    /// Queues for the answers that clients wait for, by number of the request.
    waiting: HashMap<u64, oneshot::Sender<Vec<u8>>>,
    next_number: u64,
    /// Task that accepts connections, aborted when the proxy is dropped.
    _tasks: JoinSet<()>,
}

impl HorovodProxy {
    /// Returns a proxy without a port, for a job without Horovod.
    pub(crate) fn absent() -> HorovodProxy {
        let (_, requests) = mpsc::channel(1);
        HorovodProxy { requests, waiting: HashMap::new(), next_number: 0, _tasks: JoinSet::new() }
    }

    /// Opens the proxy at `port`, which is removed from the reserved ports `reserved`.
    pub(crate) fn open(port: u16, reserved: &mut Vec<ReservedPort>) -> io::Result<HorovodProxy> {
        let index = reserved.iter().position(|reserved| reserved.port == port);
        let Some(index) = index else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("port {port} is not reserved"),
            ));
        };
        let listener = reserved.remove(index).listen(LOOPBACK)?;
        let (sender, requests) = mpsc::channel(MAX_CONNECTIONS);
        let own = nix::unistd::geteuid().as_raw();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept_all(listener, move |uid| uid == own || uid == 0, sender));
        Ok(HorovodProxy { requests, waiting: HashMap::new(), next_number: 0, _tasks: tasks })
    }

    /// Waits for the next request. Returns it with a number for [`HorovodProxy::answer`].
    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> (u64, Payload) {
        let Some(PendingRequest { request, answer }) = self.requests.recv().await else {
            return std::future::pending().await;
        };
        let number = self.next_number;
        self.next_number += 1;
        self.waiting.insert(number, answer);
        (number, request.to_bytes().into())
    }

    /// Passes an answer to the client that sent the request with this number.
    pub(crate) fn answer(&mut self, number: u64, answer: Answer) {
        let bytes = match answer {
            Answer::Value(bytes) => bytes.to_vec(),
            _ => horovod::Response::Refused(Refusal::Unavailable).to_bytes(),
        };
        if let Some(waiting) = self.waiting.remove(&number) {
            // The client may have gone.
            let _ = waiting.send(bytes);
        }
    }
}

/// Store of the job's Horovod ranks, on rank 0's node.
#[derive(Debug, Default)]
pub(crate) struct HorovodStore(Store);

impl HorovodStore {
    /// Answers a request that arrived over the tree of agents.
    pub(crate) fn answer(&mut self, request: &Payload) -> Payload {
        let answer = match RequestReader::default().push(&request.to_vec()) {
            Ok(Some(request)) => self.0.handle(request),
            Ok(None) => horovod::Response::Refused(Refusal::Malformed),
            Err(refusal) => horovod::Response::Refused(refusal),
        };
        answer.to_bytes().into()
    }
}

/// Connection that is being served.
struct Connection {
    task: AbortHandle,
    since: Instant,
    /// Set once the request of this connection is complete.
    has_request: Arc<AtomicBool>,
}

/// Connections that are being served.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// Served connections, oldest first.
    in_order: VecDeque<Connection>,
}

impl Connections {
    fn admit(&mut self, socket: TcpStream, requests: mpsc::Sender<PendingRequest>) {
        let has_request = Arc::new(AtomicBool::new(false));
        let flag = has_request.clone();
        // A client retries a request that failed.
        let task = self.tasks.spawn(async move { drop(serve(socket, requests, &flag).await) });
        self.in_order.retain(|connection| !connection.task.is_finished());
        self.in_order.push_back(Connection { task, since: Instant::now(), has_request });
    }

    /// Waits until fewer than [`MAX_CONNECTIONS`] are served. If none ends by itself, closes the
    /// oldest connection that has not sent its request within [`FULL_TIMEOUT`].
    async fn room(&mut self) {
        while self.tasks.len() >= MAX_CONNECTIONS {
            let silent = |connection: &&Connection| {
                !connection.task.is_finished() && !connection.has_request.load(Ordering::Relaxed)
            };
            let oldest = self.in_order.iter().find(silent);
            let oldest =
                oldest.map(|connection| (connection.since + FULL_TIMEOUT, connection.task.clone()));
            let overdue = async {
                match oldest {
                    Some((due, task)) => {
                        sleep_until(due).await;
                        task.abort();
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(_) = self.tasks.join_next() => {}
                () = overdue => {}
            }
        }
    }
}

async fn accept_all(
    listener: TcpListener,
    is_allowed: impl Fn(u32) -> bool,
    requests: mpsc::Sender<PendingRequest>,
) {
    let mut connections = Connections::default();
    let mut has_warned = false;
    loop {
        connections.room().await;
        let (socket, from) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // The client has gone already, or the process has too many open files for the
                // moment.
                Err(_) => {
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
            Some(_) = connections.tasks.join_next() => continue,
        };
        match user_of(&socket, from) {
            Some(uid) if is_allowed(uid) => connections.admit(socket, requests.clone()),
            uid => {
                // A reset leaves no connection in TIME_WAIT at the port, which later jobs need.
                let _ = socket.set_zero_linger();
                if let Some(uid) = uid.filter(|_| !std::mem::replace(&mut has_warned, true)) {
                    errln!("rlaunch-worker: refused a connection of user {uid} to Horovod's store");
                }
            }
        }
    }
}

/// Returns the id of the user that owns the client's socket, or `None` if it is unknown.
pub(crate) fn user_of(socket: &TcpStream, from: SocketAddr) -> Option<u32> {
    match (from, socket.local_addr().ok()?) {
        (SocketAddr::V4(caller), SocketAddr::V4(here)) => owner(caller, here),
        _ => None,
    }
}

/// Serves the single request of a connection; Horovod's client opens a connection for each request.
async fn serve(
    mut socket: TcpStream,
    requests: mpsc::Sender<PendingRequest>,
    has_request: &AtomicBool,
) -> io::Result<()> {
    let answer = match timeout(REQUEST_TIMEOUT, read(&mut socket)).await?? {
        Ok(request) => {
            has_request.store(true, Ordering::Relaxed);
            let (answer, answered) = oneshot::channel();
            let request = PendingRequest { request, answer };
            requests.send(request).await.map_err(io::Error::other)?;
            timeout(ANSWER_TIMEOUT, answered).await?.map_err(io::Error::other)?
        }
        Err(refusal) => horovod::Response::Refused(refusal).to_bytes(),
    };
    let written = async {
        socket.write_all(&answer).await?;
        socket.shutdown().await
    };
    timeout(ANSWER_TIMEOUT, written).await?
}

/// Reads a request. The inner error tells why the request is refused.
async fn read(socket: &mut TcpStream) -> io::Result<Result<Request, Refusal>> {
    let mut reader = RequestReader::default();
    let mut buffer = [0; 4096];
    loop {
        let length = socket.read(&mut buffer).await?;
        if length == 0 {
            return Ok(Err(Refusal::Malformed));
        }
        match reader.push(&buffer[..length]) {
            Ok(None) => {}
            Ok(Some(request)) => return Ok(Ok(request)),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

// The owner of a connection.

const TABLE: &str = "/proc/net/tcp";

/// `SOCK_DIAG_BY_FAMILY`, the message type of request and answer.
const BY_FAMILY: u16 = 20;
const ANY_STATE: u32 = u32::MAX;
const ANY_COOKIE: [u8; 8] = [0xff; 8];
/// Size of `struct inet_diag_msg`, and the offsets of its last two fields, in bytes.
const ANSWER: usize = 72;
const ANSWER_UID: usize = 64;
const ANSWER_INODE: usize = 68;

/// Set once the kernel has answered a query. From then on, an error of a query means that the
/// socket does not exist. The kernel's table of all sockets, which may be long, need not be read
/// any more.
static ANSWERS: AtomicBool = AtomicBool::new(false);

/// Returns the user that owns the socket bound to `own` and connected to `other`. Returns `None` if
/// the kernel knows no owner, for example because the process has closed the socket.
pub(crate) fn owner(own: SocketAddrV4, other: SocketAddrV4) -> Option<u32> {
    match ask(own, other) {
        Ok(owner) => {
            ANSWERS.store(true, Ordering::Relaxed);
            owner
        }
        Err(_) if ANSWERS.load(Ordering::Relaxed) => None,
        Err(_) => look_up(&std::fs::read_to_string(TABLE).ok()?, own, other),
    }
}

/// Queries the kernel over netlink. The kernel returns ENOENT both for a socket that does not exist
/// and if it does not support the query.
fn ask(own: SocketAddrV4, other: SocketAddrV4) -> nix::Result<Option<u32>> {
    let socket = netlink::query(SockProtocol::NetlinkSockDiag, &question(own, other))?;
    let mut buffer = [0; 1 << 10];
    let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
    answer(buffer.get(..length).unwrap_or_default())
}

/// Encodes the query: `struct inet_diag_req_v2` behind a header. Addresses and ports are in network
/// byte order, all else in the machine's.
fn question(own: SocketAddrV4, other: SocketAddrV4) -> Vec<u8> {
    let (family, protocol) = (AddressFamily::Inet as u8, libc::IPPROTO_TCP as u8);
    let address = |address: SocketAddrV4| [&address.ip().octets()[..], &[0; 12]].concat();
    let body = [
        &[family, protocol, 0, 0][..],
        &ANY_STATE.to_ne_bytes(),
        &own.port().to_be_bytes(),
        &other.port().to_be_bytes(),
        &address(own),
        &address(other),
        &0_u32.to_ne_bytes(),
        &ANY_COOKIE,
    ]
    .concat();
    netlink::request(BY_FAMILY, REQUEST, &body)
}

fn answer(message: &[u8]) -> nix::Result<Option<u32>> {
    use nix::errno::Errno;
    let kind = message.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]]));
    let number = |at: usize| {
        let bytes = message.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
        bytes.map(u32::from_ne_bytes).ok_or(Errno::EBADMSG)
    };
    if kind == Some(BY_FAMILY) && message.len() >= HEADER + ANSWER {
        let uid = number(HEADER + ANSWER_UID)?;
        return Ok((number(HEADER + ANSWER_INODE)? != 0).then_some(uid));
    }
    // An error message, see `ask`.
    Err(Errno::from_raw(number(HEADER)?.cast_signed().saturating_neg()))
}

/// Finds the user of the socket in the kernel's table, which has lines like
/// `0: 0100007F:5208 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000 1000 0 4711 …`
fn look_up(table: &str, own: SocketAddrV4, other: SocketAddrV4) -> Option<u32> {
    let ends = [own, other]
        .map(|end| format!("{:08X}:{:04X}", u32::from_ne_bytes(end.ip().octets()), end.port()));
    table.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, local, remote, _, _, _, _, uid, _, inode, ..] = &words[..] else { return None };
        let is_it = [local, remote] == ends && inode != "0";
        is_it.then(|| uid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests;
