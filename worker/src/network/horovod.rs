//! Proxy through which the Horovod ranks of a node reach the key-value store where they rendezvous.
//!
//! The agent on rank 0's node has the store; requests travel there over the tree of agents. The
//! size of a request and the time it may take are limited. When too many connections send nothing,
//! the oldest of them is closed to make room for ranks.
//!
//! Horovod's client cannot authenticate itself. So each agent listens on loopback only, and accepts
//! only connections of the agent's own user, which is also the ranks' user, and of root
//! ([`user_of`]).

use crate::console::errln;
use crate::network::ports::{LOOPBACK, ReservedPort};
use crate::network::tcp_owner::user_of;
use rlaunch_bootstrap::rendezvous::node::Answer;
use rlaunch_bootstrap::rendezvous::payload::Payload;
use rlaunch_horovod as horovod;
use rlaunch_horovod::{Refusal, Request, RequestReader, Store};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

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
    pub(crate) async fn next_request(&mut self) -> (u64, Payload) {
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
    async fn make_room(&mut self) {
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
        connections.make_room().await;
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
                if let Some(uid) = uid
                    && !std::mem::replace(&mut has_warned, true)
                {
                    errln!("rlaunch-worker: refused a connection of user {uid} to Horovod's store");
                }
            }
        }
    }
}

/// Serves the single request of a connection; Horovod's client opens a connection for each request.
async fn serve(
    mut socket: TcpStream,
    requests: mpsc::Sender<PendingRequest>,
    has_request: &AtomicBool,
) -> io::Result<()> {
    let answer = match timeout(REQUEST_TIMEOUT, read_request(&mut socket)).await?? {
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
async fn read_request(socket: &mut TcpStream) -> io::Result<Result<Request, Refusal>> {
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

#[cfg(test)]
mod tests;
