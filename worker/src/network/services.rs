//! Unix socket through which the ranks of this node call the agent: barriers, gathers, the
//! key-value store, events.
//!
//! A client must belong to this user and prove with the job's token that it is a rank of this node.
//! A client that sends invalid frames or does not read its answers is disconnected, without effect
//! on other clients.

use crate::cleanup::workspace::Workspace;
use crate::console::errln;
use crate::node::environment::Environment;
use bytes::Bytes;
use rlaunch_bootstrap::env::{
    PATH, RLAUNCH_RANK_TABLE, RLAUNCH_SOCKET, RLAUNCH_TOKEN, join_search_path,
};
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::job::{Job, Problem};
use rlaunch_bootstrap::protocol::rank::{
    CLIENT_VERSION, FromRank, HelloRefusal, JobEvent, MAX_CALL, MAX_JOB_EVENTS, Reply, ToRank,
};
use rlaunch_bootstrap::rendezvous::codec::{Decoder, encode_head};
use rlaunch_bootstrap::rendezvous::node::{Answer, CallId, ClientId, NodeInput};
use rlaunch_bootstrap::rendezvous::payload::Payload;
use rlaunch_bootstrap::rendezvous::rank_set::RankSet;
use rlaunch_bootstrap::security::Token;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// File name of the socket in the job's directory.
const SOCKET_NAME: &str = "agent.sock";
/// Time limit for a client to authenticate itself.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after accept(2) has failed.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);
/// Maximum number of clients connected at the same time.
const MAX_CLIENTS: usize = 4096;
/// Maximum number of messages that are queued for a client that does not read them.
const MAX_UNREAD: usize = 1024;
/// Time that clients have to read the last answers after the job.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Values that a client's hello must have.
struct ExpectedHello {
    job: JobId,
    token: Token,
    world_size: u32,
    ranks: Vec<Rank>,
}

/// Message from the task of a connection to [`Services`].
enum ClientEvent {
    /// The client has authenticated itself; answers and job events are sent through this queue.
    Ready(ClientId, mpsc::Sender<ToClient>),
    Input(NodeInput),
}

/// Message to the task of a connection from [`Services`].
enum ToClient {
    Answer(u64, Reply, Payload),
    JobEvent(JobEvent),
    /// Ranks have finished. The task clears the flag and sends the whole set.
    RanksFinished(Arc<AtomicBool>, FinishedRanks),
}

/// Ranks that have exited successfully.
type FinishedRanks = Arc<Mutex<RankSet>>;

/// Client that has authenticated itself.
struct Client {
    answers: mpsc::Sender<ToClient>,
    /// Whether a [`ToClient::RanksFinished`] is in the client's queue. A second one is not queued,
    /// because they could otherwise fill the queue of a client that reads nothing.
    is_finished_queued: Arc<AtomicBool>,
}

impl Client {
    fn new(answers: mpsc::Sender<ToClient>) -> Client {
        Client { answers, is_finished_queued: Arc::default() }
    }

    /// Notifies the client of finished ranks. Returns false if the client's queue is full.
    fn send_finished(&self, finished: &FinishedRanks) -> bool {
        let is_queued = &self.is_finished_queued;
        let message = || ToClient::RanksFinished(is_queued.clone(), finished.clone());
        is_queued.swap(true, Ordering::Relaxed) || self.answers.try_send(message()).is_ok()
    }
}

/// Socket for ranks, and its clients.
pub(crate) struct Services {
    /// Path of the socket; `None` if the job has no socket.
    path: Option<PathBuf>,
    events: mpsc::Receiver<ClientEvent>,
    clients: BTreeMap<ClientId, Client>,
    /// Job events sent to all clients, kept for those that connect later.
    job_events: Vec<JobEvent>,
    finished: FinishedRanks,
    accept_task: JoinHandle<()>,
}

impl Services {
    /// Opens the job's socket. A job without a directory has no socket, and its ranks cannot call
    /// the agent.
    pub(crate) fn for_job(job: &Job, directory: Option<&Path>) -> Result<Services, Problem> {
        let Some(directory) = directory else { return Ok(Services::absent()) };
        let ranks = job.ranks.iter().map(|spec| spec.rank).collect();
        let opened = Services::open(directory, job.id, job.token, job.world_size, ranks);
        opened.map_err(|error| Problem::System {
            operation: format!("open a socket in {}", directory.display()),
            cause: error.to_string(),
        })
    }

    fn absent() -> Services {
        let (_, events) = mpsc::channel(1);
        Services::new(None, events, tokio::spawn(async {}))
    }

    fn new(
        path: Option<PathBuf>,
        events: mpsc::Receiver<ClientEvent>,
        accept_task: JoinHandle<()>,
    ) -> Services {
        Services {
            path,
            events,
            clients: BTreeMap::new(),
            job_events: Vec::new(),
            finished: FinishedRanks::default(),
            accept_task,
        }
    }

    /// Adds variables to the environment of ranks: the path of the socket, the path of the rank
    /// table and the token. Also appends to PATH the directory of the command `rlaunch`, which uses
    /// the socket.
    pub(crate) fn add_variables(&self, job: &Job, workspace: &Workspace, env: &mut Environment) {
        let (Some(path), Some(table)) = (&self.path, workspace.rank_table()) else { return };
        env.insert(RLAUNCH_SOCKET.into(), path.into());
        env.insert(RLAUNCH_TOKEN.into(), job.token.reveal().into());
        env.insert(RLAUNCH_RANK_TABLE.into(), table.into());
        match workspace.command_directory() {
            Ok(directory) => {
                let own = env.get(OsStr::new(PATH)).cloned().unwrap_or_default();
                env.insert(PATH.into(), join_search_path(&own, directory.as_os_str()));
            }
            // The ranks can still use the socket, without the commands.
            Err(error) => {
                errln!("rlaunch-worker: cannot put `rlaunch` on the PATH of ranks: {error}");
            }
        }
    }

    /// Opens the socket in `directory`, which only this user can enter.
    pub(crate) fn open(
        directory: &Path,
        job: JobId,
        token: Token,
        world_size: u32,
        ranks: Vec<Rank>,
    ) -> io::Result<Services> {
        let path = directory.join(SOCKET_NAME);
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let expected = Arc::new(ExpectedHello { job, token, world_size, ranks });
        let (sender, events) = mpsc::channel(64);
        let accept_task = tokio::spawn(accept_all(listener, expected, sender));
        Ok(Services::new(Some(path), events, accept_task))
    }

    /// Waits for the next call of a client, or the end of its connection. Cancel-safe.
    pub(crate) async fn next_input(&mut self) -> NodeInput {
        loop {
            match self.events.recv().await {
                Some(ClientEvent::Ready(id, answers)) => {
                    // The queue is empty and has room: nothing was sent to this client yet.
                    for event in &self.job_events {
                        let _ = answers.try_send(ToClient::JobEvent(event.clone()));
                    }
                    let client = Client::new(answers);
                    if !lock(&self.finished).is_empty() {
                        client.send_finished(&self.finished);
                    }
                    self.clients.insert(id, client);
                }
                Some(ClientEvent::Input(input)) => {
                    if let NodeInput::ClientGone(id) = &input {
                        self.clients.remove(id);
                    }
                    return input;
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Sends an answer to its client. Disconnects a client that leaves [`MAX_UNREAD`] messages
    /// unread.
    pub(crate) fn answer(&mut self, id: CallId, answer: Answer) {
        let (reply, payload) = answer.split();
        if let Some(client) = self.clients.get(&id.client)
            && client.answers.try_send(ToClient::Answer(id.request, reply, payload)).is_err()
        {
            self.clients.remove(&id.client);
        }
    }

    /// Sends a job event to all clients, connected and future. An event that was sent before is not
    /// sent again.
    pub(crate) fn send_job_event(&mut self, event: &JobEvent) {
        if let JobEvent::RanksFinished { ranks } = event {
            lock(&self.finished).extend(ranks);
            self.clients.retain(|_, client| client.send_finished(&self.finished));
            return;
        }
        if self.job_events.len() == MAX_JOB_EVENTS || self.job_events.contains(event) {
            return;
        }
        self.job_events.push(event.clone());
        let sent = |client: &mut Client| client.answers.try_send(ToClient::JobEvent(event.clone()));
        self.clients.retain(|_, client| sent(client).is_ok());
    }

    /// Closes the socket, and waits up to [`DRAIN_TIMEOUT`] until the queues of all clients are
    /// empty.
    pub(crate) async fn close(mut self) {
        self.accept_task.abort();
        let open: Vec<_> = std::mem::take(&mut self.clients).into_values().collect();
        let all_read = async {
            for Client { answers, .. } in open {
                let sent = answers.max_capacity();
                // All permits are free once the writer has taken everything from the queue.
                let _ = answers.reserve_many(sent).await;
            }
        };
        let _ = timeout(DRAIN_TIMEOUT, all_read).await;
    }
}

fn lock(finished: &FinishedRanks) -> MutexGuard<'_, RankSet> {
    finished.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept_all(
    listener: UnixListener,
    expected: Arc<ExpectedHello>,
    events: mpsc::Sender<ClientEvent>,
) {
    let permits = Arc::new(Semaphore::new(MAX_CLIENTS));
    for number in 0.. {
        // The semaphore is closed only with this task.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let socket = loop {
            match listener.accept().await {
                Ok((socket, _)) => break socket,
                // Too many open files for the moment.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
            }
        };
        let (expected, events) = (expected.clone(), events.clone());
        tokio::spawn(async move {
            serve(socket, ClientId(number), &expected, events).await;
            drop(permit);
        });
    }
}

/// Authenticates a client and serves its connection until it ends.
async fn serve(
    socket: UnixStream,
    id: ClientId,
    expected: &ExpectedHello,
    events: mpsc::Sender<ClientEvent>,
) {
    if !is_admitted(&socket) {
        return;
    }
    let (reading, mut writing) = socket.into_split();
    let mut client = ClientReader { reading, decoder: Decoder::new(0).with_head_limit(MAX_CALL) };
    let hello = timeout(HELLO_TIMEOUT, client.next_message()).await.ok().flatten();
    let Some(hello) = hello else { return };
    let rank = match expected.check(&hello) {
        Ok(rank) => rank,
        Err(why) => {
            let _ =
                timeout(HELLO_TIMEOUT, write_message(&mut writing, &ToRank::Refused(why))).await;
            return;
        }
    };
    let welcome = ToRank::Welcome { world_size: expected.world_size };
    if write_message(&mut writing, &welcome).await.is_err() {
        return;
    }
    let (answers, queue) = mpsc::channel(MAX_UNREAD);
    if events.send(ClientEvent::Ready(id, answers)).await.is_err() {
        return;
    }
    tokio::select! {
        () = client.forward_calls(id, rank, &events) => {}
        () = write_answers(writing, queue) => {}
    }
    // The receiver is dropped when the agent leaves.
    let _ = events.send(ClientEvent::Input(NodeInput::ClientGone(id))).await;
}

/// Tells whether the client runs as the agent's user, as ranks do, or as root.
fn is_admitted(socket: &UnixStream) -> bool {
    let uid = nix::unistd::geteuid().as_raw();
    socket.peer_cred().is_ok_and(|peer| peer.uid() == uid || peer.uid() == 0)
}

impl ExpectedHello {
    fn check(&self, hello: &FromRank) -> Result<Rank, HelloRefusal> {
        match hello {
            FromRank::Hello { version, .. } if *version != CLIENT_VERSION => {
                Err(HelloRefusal::Version(CLIENT_VERSION))
            }
            FromRank::Hello { job, rank, token, .. }
                if *job == self.job && *token == self.token && self.ranks.contains(rank) =>
            {
                Ok(*rank)
            }
            _ => Err(HelloRefusal::WrongJob),
        }
    }
}

struct ClientReader {
    reading: OwnedReadHalf,
    decoder: Decoder<FromRank>,
}

impl ClientReader {
    /// Waits for the next frame. Returns `None` at the end of the connection and for an invalid
    /// frame.
    async fn next_message(&mut self) -> Option<FromRank> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some((message, _)) = self.decoder.next_frame().ok()? {
                return Some(message);
            }
            match self.reading.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(length) => self.decoder.push(&buffer[..length]),
            }
        }
    }

    async fn forward_calls(
        &mut self,
        client: ClientId,
        rank: Rank,
        events: &mpsc::Sender<ClientEvent>,
    ) {
        while let Some(FromRank::Call { request, call }) = self.next_message().await {
            let id = CallId { client, request };
            if events.send(ClientEvent::Input(NodeInput::Call(rank, id, call))).await.is_err() {
                return;
            }
        }
    }
}

async fn write_answers(mut writing: OwnedWriteHalf, mut queue: mpsc::Receiver<ToClient>) {
    while let Some(message) = queue.recv().await {
        let (frame, payload) = match message {
            ToClient::Answer(request, reply, payload) => {
                (ToRank::Reply { request, reply }, payload)
            }
            ToClient::JobEvent(event) => (ToRank::JobEvent(event), Payload::empty()),
            ToClient::RanksFinished(is_queued, finished) => {
                is_queued.store(false, Ordering::Relaxed);
                let ranks = lock(&finished).clone();
                (ToRank::JobEvent(JobEvent::RanksFinished { ranks }), Payload::empty())
            }
        };
        let head = encode_head(&frame, payload.len());
        let Ok(head) = head.map(Bytes::from) else { return };
        for chunk in std::iter::once(&head).chain(payload.chunks()) {
            if writing.write_all(chunk).await.is_err() {
                return;
            }
        }
    }
}

async fn write_message(writing: &mut OwnedWriteHalf, message: &ToRank) -> io::Result<()> {
    let frame = encode_head(message, 0).map_err(io::Error::other)?;
    writing.write_all(&frame).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::id::NodeId;
    use rlaunch_bootstrap::rendezvous::Time;
    use rlaunch_bootstrap::rendezvous::node::{Node, NodeOutput};
    use rlaunch_bootstrap::rendezvous::shape::TreeShape;
    use rlaunch_client::{Client, ClientError, Credentials};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Blocking;
    use std::thread;

    const TOKEN: Token = Token([7; 16]);

    /// Agent with three ranks and without neighbours, which runs until the test ends.
    struct Agent {
        directory: tempfile::TempDir,
    }

    impl Agent {
        fn start() -> Agent {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().to_owned();
            let (ready, is_ready) = std::sync::mpsc::channel();
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(async {
                    let ranks: Vec<Rank> = (0..3).map(Rank).collect();
                    let mut node = Node::new(NodeId(0), TreeShape::new(1, 1), ranks.clone());
                    let mut services = Services::open(&path, JobId(1), TOKEN, 3, ranks).unwrap();
                    node.handle(Time(0), NodeInput::Table(Payload::empty())).unwrap();
                    ready.send(()).unwrap();
                    loop {
                        let input = services.next_input().await;
                        node.handle(Time(0), input).unwrap();
                        while let Some(output) = node.poll_output() {
                            if let NodeOutput::Answer(id, answer) = output {
                                services.answer(id, answer);
                            }
                        }
                    }
                });
            });
            is_ready.recv().unwrap();
            Agent { directory }
        }

        fn credentials(&self, rank: u32) -> Credentials {
            Credentials {
                socket: self.directory.path().join(SOCKET_NAME),
                job: JobId(1),
                rank: Rank(rank),
                token: TOKEN,
                timeout: Some(Duration::from_secs(10)),
            }
        }

        fn raw(&self) -> Blocking {
            let socket = Blocking::connect(self.directory.path().join(SOCKET_NAME)).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket
        }

        /// Checks that three ranks can synchronise and read a value that one of them has stored.
        fn assert_serves(&self) {
            let rank = |rank: u32| {
                let credentials = self.credentials(rank);
                thread::spawn(move || {
                    let mut client = Client::connect(credentials).unwrap();
                    if rank == 0 {
                        client.put("n", "k", b"value").unwrap();
                    }
                    assert_eq!(&client.wait("n", "k").unwrap()[..], b"value");
                    client.barrier("b").unwrap();
                    assert_eq!(client.get("n", "other").unwrap(), None);
                    client.all_gather("g", &[rank as u8]).unwrap()
                })
            };
            for thread in (0..3).map(rank).collect::<Vec<_>>() {
                assert_eq!(thread.join().unwrap(), [vec![0], vec![1], vec![2]]);
            }
        }
    }

    #[test]
    fn ranks_meet_over_the_socket() {
        Agent::start().assert_serves();
    }

    /// One notification is enough, however many ranks leave before the client reads anything.
    #[test]
    fn a_client_that_reads_late_hears_of_all_ranks_that_have_left() {
        const LEFT: u32 = 3 * MAX_UNREAD as u32;
        let directory = tempfile::tempdir().unwrap();
        let agent = Agent { directory };
        let credentials = agent.credentials(0);
        let (sent, is_sent) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let ranks = (0..3).map(Rank).collect();
            let path = agent.directory.path();
            let mut services = Services::open(path, JobId(1), TOKEN, 3, ranks).unwrap();
            let client = thread::spawn(move || {
                let mut client = Client::connect(credentials).unwrap();
                is_sent.recv().unwrap();
                let mut left = RankSet::new();
                while left.len() < LEFT {
                    match client.job_event(Some(Duration::from_secs(10))).unwrap() {
                        Some(JobEvent::RanksFinished { ranks }) => left.extend(&ranks),
                        other => panic!("{other:?}"),
                    }
                }
            });
            while services.clients.is_empty() {
                let _ = timeout(Duration::from_millis(1), services.next_input()).await;
            }
            for rank in 0..LEFT {
                services.send_job_event(&JobEvent::RanksFinished {
                    ranks: [Rank(rank)].into_iter().collect(),
                });
            }
            assert_eq!(services.clients.len(), 1);
            sent.send(()).unwrap();
            while !client.is_finished() {
                let _ = timeout(Duration::from_millis(1), services.next_input()).await;
            }
            client.join().unwrap();
        });
    }

    #[test]
    fn strangers_are_refused() {
        let agent = Agent::start();
        let good = agent.credentials(0);
        let bad = [
            Credentials { token: Token([8; 16]), ..good.clone() },
            Credentials { job: JobId(2), ..good.clone() },
            Credentials { rank: Rank(3), ..good },
        ];
        for credentials in bad {
            let refused = Client::connect(credentials).unwrap_err();
            assert!(matches!(refused, ClientError::Rejected(HelloRefusal::WrongJob)));
        }
        agent.assert_serves();
    }

    #[test]
    fn rubbish_ends_only_its_own_connection() {
        let agent = Agent::start();
        let rubbish: [&[u8]; 4] = [
            &[0xff; 64],                     // a head of 4 GiB
            &[1, 0, 0, 0, 0, 0, 0, 0, 99],   // an invalid head
            &[0, 0, 0, 0, 0xff, 0xff, 0, 0], // a payload, which ranks do not send
            &[9, 0, 0, 0, 0, 0, 0],          // half a frame
        ];
        for bytes in rubbish {
            let mut socket = agent.raw();
            socket.write_all(bytes).unwrap();
            assert_eq!(socket.read(&mut [0; 64]).unwrap(), 0, "{bytes:?} was answered");
        }
        let mut silent = agent.raw();
        assert_eq!(silent.read(&mut [0; 64]).unwrap(), 0, "silence was answered");
        agent.assert_serves();
    }

    #[test]
    fn who_leaves_in_a_call_has_arrived() {
        let agent = Agent::start();
        let mut impatient = agent.raw();
        let frames = [
            FromRank::Hello { version: CLIENT_VERSION, job: JobId(1), rank: Rank(0), token: TOKEN },
            FromRank::Call {
                request: 0,
                call: rlaunch_bootstrap::rendezvous::node::Call::Collective {
                    kind: rlaunch_bootstrap::rendezvous::message::CollectiveKind::Barrier,
                    name: "b".into(),
                    blob: vec![],
                    timeout: None,
                },
            },
        ];
        for frame in frames {
            impatient.write_all(&encode_head(&frame, 0).unwrap()).unwrap();
        }
        assert!(impatient.read(&mut [0; 64]).unwrap() > 0, "no welcome");
        drop(impatient);
        let others = [1, 2].map(|rank| {
            let credentials = agent.credentials(rank);
            thread::spawn(move || Client::connect(credentials).unwrap().barrier("b").unwrap())
        });
        others.into_iter().for_each(|other| other.join().unwrap());
    }
}
