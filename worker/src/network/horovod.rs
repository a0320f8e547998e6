//! The door of the store by which Horovod's ranks meet: one on each node, for its own ranks.
//!
//! Horovod's client cannot show that it is of the job. So an agent listens on loopback, where the
//! kernel knows whose process calls: the ranks' user, who is the agent's, and root are let in. Their
//! requests go up the tree of agents to rank 0's node, which has the store. What a caller may send,
//! and for how long, is bounded, and a crowd that says nothing keeps no rank out.

use crate::network::oob::ports::HeldPort;
use crate::network::socket_owner::owner;
use crate::say::complain;
use rlaunch_bootstrap::rendezvous::node::Answer;
use rlaunch_bootstrap::rendezvous::payload::Payload;
use rlaunch_horovod::{self as horovod, Refusal, Request, RequestReader, Store};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

/// Where ranks find it.
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// How long a request may take to arrive.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an answer may take to come and to be read.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests at once; more wait in the kernel. Bounds the memory for values that are arriving.
const MOST: usize = 64;
/// How long a request may take to arrive once there are so many: a rank sends it at once.
const CROWDED: Duration = Duration::from_millis(250);
/// How long to wait when the system has no room for a connection.
const NO_ROOM: Duration = Duration::from_millis(10);

/// A request on its way to the store.
struct Question {
    request: Request,
    answer: oneshot::Sender<Vec<u8>>,
}

/// The door of this node, open for as long as this is kept.
pub(crate) struct Door {
    questions: mpsc::Receiver<Question>,
    /// Callers that wait for their answer, by the number of their request.
    waiting: HashMap<u64, oneshot::Sender<Vec<u8>>>,
    asked: u64,
    /// Aborts its tasks when it goes.
    _tasks: JoinSet<()>,
}

impl Door {
    /// A node whose ranks do not meet so.
    pub(crate) fn absent() -> Door {
        let (_, questions) = mpsc::channel(1);
        Door { questions, waiting: HashMap::new(), asked: 0, _tasks: JoinSet::new() }
    }

    /// Opens it at a port that is held for it.
    pub(crate) fn open(port: u16, held: &mut Vec<HeldPort>) -> io::Result<Door> {
        let index = held.iter().position(|held| held.port == port);
        let Some(index) = index else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no port {port} is held")));
        };
        let listener = held.remove(index).listen(LOOPBACK)?;
        let (asking, questions) = mpsc::channel(MOST);
        let own = nix::unistd::geteuid().as_raw();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept_all(listener, move |uid| uid == own || uid == 0, asking));
        Ok(Door { questions, waiting: HashMap::new(), asked: 0, _tasks: tasks })
    }

    /// The next request and its number. Safe to cancel.
    pub(crate) async fn next(&mut self) -> (u64, Payload) {
        let Some(Question { request, answer }) = self.questions.recv().await else {
            return std::future::pending().await;
        };
        let number = self.asked;
        self.asked += 1;
        self.waiting.insert(number, answer);
        (number, request.to_bytes().into())
    }

    /// Hands the answer to the request of this number to its caller.
    pub(crate) fn answer(&mut self, number: u64, answer: Answer) {
        let bytes = match answer {
            Answer::Value(bytes) => bytes.to_vec(),
            _ => horovod::Answer::Refused(Refusal::Unavailable).to_bytes(),
        };
        if let Some(waiting) = self.waiting.remove(&number) {
            // The caller may have gone.
            let _ = waiting.send(bytes);
        }
    }
}

/// The store itself, on rank 0's node.
#[derive(Debug, Default)]
pub(crate) struct Backroom(Store);

impl Backroom {
    /// Answers a request that came up the tree.
    pub(crate) fn answer(&mut self, question: &Payload) -> Payload {
        let answer = match RequestReader::default().push(&question.to_vec()) {
            Ok(Some(request)) => self.0.answer(request),
            Ok(None) => horovod::Answer::Refused(Refusal::Malformed),
            Err(refusal) => horovod::Answer::Refused(refusal),
        };
        answer.to_bytes().into()
    }
}

/// A connection, from its first byte to its last.
struct Caller {
    task: AbortHandle,
    since: Instant,
    /// Its request is here.
    has_asked: Arc<AtomicBool>,
}

/// All connections at once.
#[derive(Default)]
struct Callers {
    tasks: JoinSet<()>,
    /// Oldest first.
    in_order: VecDeque<Caller>,
}

impl Callers {
    fn admit(&mut self, socket: TcpStream, asking: mpsc::Sender<Question>) {
        let has_asked = Arc::new(AtomicBool::new(false));
        let flag = has_asked.clone();
        // A caller whose request fails asks again, or has gone.
        let task = self.tasks.spawn(async move { drop(serve(socket, asking, &flag).await) });
        self.in_order.retain(|caller| !caller.task.is_finished());
        self.in_order.push_back(Caller { task, since: Instant::now(), has_asked });
    }

    /// Resolves when there is room for one more, which may take the place of one that has not asked.
    async fn room(&mut self) {
        while self.tasks.len() >= MOST {
            let silent = |caller: &&Caller| {
                !caller.task.is_finished() && !caller.has_asked.load(Ordering::Relaxed)
            };
            let oldest = self.in_order.iter().find(silent);
            let oldest = oldest.map(|caller| (caller.since + CROWDED, caller.task.clone()));
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
    is_welcome: impl Fn(u32) -> bool,
    asking: mpsc::Sender<Question>,
) {
    let mut callers = Callers::default();
    let mut has_complained = false;
    loop {
        callers.room().await;
        let (socket, from) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // The caller has gone already, or there are too many open files for a while.
                Err(_) => {
                    tokio::time::sleep(NO_ROOM).await;
                    continue;
                }
            },
            Some(_) = callers.tasks.join_next() => continue,
        };
        match user_of(&socket, from) {
            Some(uid) if is_welcome(uid) => callers.admit(socket, asking.clone()),
            uid => {
                // Nothing of it lingers at the port, which later jobs want.
                let _ = socket.set_zero_linger();
                if let Some(uid) = uid.filter(|_| !std::mem::replace(&mut has_complained, true)) {
                    complain!("rlaunch-worker: user {uid} has tried to reach Horovod's store");
                }
            }
        }
    }
}

/// The user whose process calls.
fn user_of(socket: &TcpStream, from: SocketAddr) -> Option<u32> {
    match (from, socket.local_addr().ok()?) {
        (SocketAddr::V4(caller), SocketAddr::V4(here)) => owner(caller, here),
        _ => None,
    }
}

/// One request, since Horovod's client opens a connection for each.
async fn serve(
    mut socket: TcpStream,
    asking: mpsc::Sender<Question>,
    has_asked: &AtomicBool,
) -> io::Result<()> {
    let answer = match timeout(PATIENCE, read(&mut socket)).await?? {
        Ok(request) => {
            has_asked.store(true, Ordering::Relaxed);
            let (answer, answered) = oneshot::channel();
            let question = Question { request, answer };
            asking.send(question).await.map_err(io::Error::other)?;
            timeout(ANSWER_TIMEOUT, answered).await?.map_err(io::Error::other)?
        }
        Err(refusal) => horovod::Answer::Refused(refusal).to_bytes(),
    };
    let written = async {
        socket.write_all(&answer).await?;
        socket.shutdown().await
    };
    timeout(ANSWER_TIMEOUT, written).await?
}

/// The request, or why there is none.
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

#[cfg(test)]
mod tests;
