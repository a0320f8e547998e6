//! The launcher's end of a job's socket.
//!
//! A task accepts connections and answers what needs no agent; everything else goes to the supervisor as a
//! [`JobQuery`], whose replies come back by [`JobSocket::reply`].

use super::directory::{SocketDirectory, SocketName};
use super::messages::{Greeting, Reply, Request, SOCKET_VERSION};
use super::status::LiveStatus;
use crate::run::output::SharedTranscript;
use nix::unistd::Uid;
use rlaunch_bootstrap::frame::{self, FrameReader};
use rlaunch_bootstrap::protocol::inspection::Inspection;
use rlaunch_bootstrap::protocol::session::ToSession;
use rlaunch_plan::job::JobSpec;
use rlaunch_text::shell::without_secrets;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// Maximum number of connections at a time. Further ones are refused.
const MAX_CONNECTIONS: usize = 64;

/// Time limit for the first request of a client, so that one that says nothing keeps no place. This rlaunch sends a request
/// as soon as it is connected.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// Maximum length of a request, in bytes: far more than any has.
const MAX_REQUEST: usize = 1 << 20;

/// Number of a connection in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Request that the supervisor answers.
#[derive(Debug)]
pub(crate) struct JobQuery {
    pub connection: ConnectionId,
    pub kind: QueryKind,
}

#[derive(Debug)]
pub(crate) enum QueryKind {
    Inspect(Inspection),
    /// Request to end the job.
    End,
    Session(ToSession),
    /// The client has closed the connection, so nothing more is sent on it.
    Closed,
}

/// Receiver of queries; by default that of a job without a socket.
#[derive(Default)]
pub(crate) struct Queries(Option<mpsc::Receiver<JobQuery>>);

impl Queries {
    /// Waits for the next query; for ever if the job has no socket. Cancel-safe.
    pub(crate) async fn next(&mut self) -> JobQuery {
        if let Some(receiver) = &mut self.0
            && let Some(query) = receiver.recv().await
        {
            return query;
        }
        std::future::pending().await
    }
}

/// Socket of a running job. Dropping it closes all connections and removes the socket.
pub struct JobSocket {
    directory: SocketDirectory,
    name: SocketName,
    listening: JoinHandle<()>,
    shared: Arc<SocketState>,
    /// `None` once the supervisor has taken it.
    queries: Mutex<Option<mpsc::Receiver<JobQuery>>>,
}

/// State that the tasks of all connections share.
struct SocketState {
    job: String,
    name: String,
    program: Vec<String>,
    status: LiveStatus,
    /// Output of the ranks; `None` if no record is kept.
    output: Option<SharedTranscript>,
    queries: mpsc::Sender<JobQuery>,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    next: u64,
    open: HashMap<ConnectionId, mpsc::UnboundedSender<Reply>>,
    /// Whether ranks run, so that queries are answered.
    supervised: bool,
}

impl JobSocket {
    /// Opens the socket of a job and listens. Returns `None` if that is not possible, such as without a home
    /// directory: the job runs all the same, and cannot be asked.
    pub fn open(
        job: &JobSpec,
        status: LiveStatus,
        output: Option<SharedTranscript>,
    ) -> Option<JobSocket> {
        let opened = SocketDirectory::create()
            .and_then(|directory| JobSocket::listen(directory, job, status, output));
        opened.inspect_err(|error| tracing::info!("this job cannot be asked: {error}")).ok()
    }

    fn listen(
        directory: SocketDirectory,
        job: &JobSpec,
        status: LiveStatus,
        output: Option<SharedTranscript>,
    ) -> io::Result<JobSocket> {
        let name = SocketName::here(job.id.to_string());
        let listener = directory.listen(&name)?;
        let (sender, receiver) = mpsc::channel(MAX_CONNECTIONS);
        let shared = Arc::new(SocketState {
            job: job.id.to_string(),
            name: job.name.to_string(),
            program: without_secrets(&job.program_words()),
            status,
            output,
            queries: sender,
            connections: Mutex::default(),
        });
        let listening = tokio::spawn(accept_clients(listener, shared.clone()));
        let queries = Mutex::new(Some(receiver));
        Ok(JobSocket { directory, name, listening, shared, queries })
    }

    /// Takes the receiver of queries, which are refused until then.
    pub(crate) fn take_queries(&self) -> Queries {
        self.shared.connections().supervised = true;
        Queries(self.queries.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    /// Sends a reply on a connection, unless it is closed.
    pub fn reply(&self, connection: ConnectionId, reply: Reply) {
        if let Some(sender) = self.shared.connections().open.get(&connection) {
            // An error means that the client has gone.
            let _ = sender.send(reply);
        }
    }
}

impl Drop for JobSocket {
    fn drop(&mut self) {
        self.listening.abort();
        self.directory.remove(&self.name);
    }
}

impl SocketState {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept_clients(listener: UnixListener, shared: Arc<SocketState>) {
    let mut serving = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if is_own(&stream) => {
                    while serving.try_join_next().is_some() {}
                    if serving.len() < MAX_CONNECTIONS {
                        serving.spawn(serve_client(stream, shared.clone()));
                    } else if let Err(error) = refuse(stream) {
                        tracing::debug!("refusing a connection to the job's socket: {error}");
                    }
                }
                // Of another user: closed at once.
                Ok(_) => {}
                Err(error) => return tracing::info!("this job cannot be asked any more: {error}"),
            },
            Some(_) = serving.join_next() => {}
        }
    }
}

/// Tells whether the process at the other end has this process's user. The superuser, whom nothing keeps from looking,
/// is admitted too.
fn is_own(stream: &UnixStream) -> bool {
    let uid = stream.peer_cred().map(|credentials| Uid::from_raw(credentials.uid()));
    uid.is_ok_and(|uid| uid == Uid::effective() || uid.is_root())
}

/// Tells a client that every place is taken. A new socket has room for that, so nothing is waited for.
fn refuse(stream: UnixStream) -> io::Result<()> {
    let why = format!(
        "its {MAX_CONNECTIONS} connections are all in use; \
         end an `rlaunch monitor`, `wait` or `exec` of it"
    );
    let mut message = frame::encode(&greeting()).map_err(io::Error::other)?;
    message.extend(frame::encode(&Reply::Refused(why)).map_err(io::Error::other)?);
    stream.into_std()?.write_all(&message)
}

async fn serve_client(stream: UnixStream, shared: Arc<SocketState>) {
    let (sender, replies) = mpsc::unbounded_channel();
    let connection = {
        let mut connections = shared.connections();
        connections.next += 1;
        let connection = ConnectionId(connections.next);
        connections.open.insert(connection, sender.clone());
        connection
    };
    let (reader, writer) = stream.into_split();
    tokio::select! {
        () = read_requests(reader, connection, &sender, &shared) => {}
        () = write_replies(writer, replies) => {}
    }
    shared.connections().open.remove(&connection);
    // The supervisor takes queries, and it begins with the ranks.
    if shared.connections().supervised {
        let _ = shared.queries.send(JobQuery { connection, kind: QueryKind::Closed }).await;
    }
}

/// Reads requests until the client closes the connection or breaks the protocol.
async fn read_requests(
    mut reader: OwnedReadHalf,
    connection: ConnectionId,
    replies: &mpsc::UnboundedSender<Reply>,
    shared: &SocketState,
) {
    let mut frames = FrameReader::default();
    let mut buffer = Vec::with_capacity(4 << 10);
    let mut unread = 0;
    let mut first_due = Some(Instant::now() + FIRST_REQUEST);
    loop {
        loop {
            match frames.next_sized::<Request>() {
                Ok(Some((request, length))) => {
                    first_due = None;
                    unread = usize::saturating_sub(unread, length);
                    answer_or_pass_on(request, connection, replies, shared).await;
                }
                Ok(None) => break,
                Err(error) => return tracing::debug!("request on the job's socket: {error}"),
            }
        }
        buffer.clear();
        let reading = reader.read_buf(&mut buffer);
        let read = match first_due {
            Some(due) => timeout_at(due, reading).await.unwrap_or(Ok(0)),
            None => reading.await,
        };
        match read {
            Ok(length @ 1..) => unread += length,
            Ok(0) | Err(_) => return,
        }
        if unread > MAX_REQUEST {
            return;
        }
        frames.push(&buffer);
    }
}

/// Answers what needs no agent, and passes everything else on to the supervisor.
async fn answer_or_pass_on(
    request: Request,
    connection: ConnectionId,
    replies: &mpsc::UnboundedSender<Reply>,
    shared: &SocketState,
) {
    let status = || {
        let SocketState { job, name, program, status, .. } = shared;
        status.report(job.clone(), name.clone(), program.clone())
    };
    let kind = match request {
        Request::Status => {
            // An error means that the client has gone.
            let _ = replies.send(Reply::Status(Box::new(status())));
            return;
        }
        Request::Output { position } => {
            let _ = replies.send(match &shared.output {
                Some(output) => Reply::Output(output.since(position)),
                None => Reply::Refused("it keeps no output, because of --no-record".to_owned()),
            });
            return;
        }
        Request::Inspect(what) => QueryKind::Inspect(what),
        Request::End => QueryKind::End,
        Request::Session(what) => QueryKind::Session(what),
    };
    if shared.connections().supervised {
        // An error means that the job has ended, which closes the connection.
        let _ = shared.queries.send(JobQuery { connection, kind }).await;
    } else {
        let why = format!("its ranks have not started, it is {}", status().phase.word());
        let _ = replies.send(Reply::Refused(why));
    }
}

async fn write_replies(mut writer: OwnedWriteHalf, mut replies: mpsc::UnboundedReceiver<Reply>) {
    if write_message(&mut writer, &greeting()).await.is_err() {
        return;
    }
    while let Some(reply) = replies.recv().await {
        if write_message(&mut writer, &reply).await.is_err() {
            return;
        }
    }
}

fn greeting() -> Greeting {
    Greeting { socket_version: SOCKET_VERSION, rlaunch: env!("CARGO_PKG_VERSION").to_owned() }
}

async fn write_message<T: Serialize>(writer: &mut OwnedWriteHalf, message: &T) -> io::Result<()> {
    writer.write_all(&frame::encode(message).map_err(io::Error::other)?).await
}

#[cfg(test)]
mod tests {
    use super::super::client::RunningJob;
    use super::*;
    use crate::run::output::OutputPart;
    use rlaunch_bootstrap::id::Rank;
    use rlaunch_bootstrap::protocol::control::Stream;

    fn socket() -> (tempfile::TempDir, JobSocket) {
        let place = tempfile::tempdir().unwrap();
        let directory = SocketDirectory::open_at(place.path().to_owned()).unwrap();
        let job = rlaunch_plan::testing::job("-H a hostname");
        let output = Some(SharedTranscript::default());
        (place, JobSocket::listen(directory, &job, LiveStatus::new(), output).unwrap())
    }

    /// Tells whether the job runs, as another rlaunch sees it, or why that is not known.
    async fn look(socket: &JobSocket) -> Result<bool, String> {
        let found = RunningJob::connect(&socket.directory, &socket.name).await;
        found.map(|job| job.is_some()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_full_socket_is_no_ended_job_and_the_silent_lose_their_places() {
        let (_place, socket) = socket();
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(UnixStream::connect(socket.directory.address(&socket.name)).await.unwrap());
        }
        let error = look(&socket).await.unwrap_err();
        assert!(error.contains("cannot answer: its 64 connections are all in use"), "{error}");

        tokio::time::pause();
        tokio::time::advance(FIRST_REQUEST).await;
        for stream in &mut silent {
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
        tokio::time::resume();
        assert_eq!(look(&socket).await, Ok(true));
    }

    #[tokio::test]
    async fn output_is_read_as_it_comes() {
        let (_place, socket) = socket();
        let found = RunningJob::connect(&socket.directory, &socket.name).await;
        let mut job = found.ok().flatten().unwrap();
        let output = socket.shared.output.clone().unwrap();
        let add = |text: &str| output.add((Rank(1), Stream::Stderr), text.as_bytes().to_vec());
        assert_eq!(job.output(0).await.unwrap(), OutputPart::default());
        add("a\n");
        let first = job.output(0).await.unwrap();
        add("b\n");
        let second = job.output(first.next).await.unwrap();
        for (part, text) in [(first, "a\n"), (second, "b\n")] {
            let [chunk] = &part.first[..] else { panic!("{part:?}") };
            assert_eq!(
                (chunk.rank, chunk.stream.as_str(), chunk.text.as_str()),
                (1, "stderr", text)
            );
        }
    }

    #[tokio::test]
    async fn clients_that_have_gone_before_ranks_run_keep_no_places() {
        let (_place, socket) = socket();
        for _ in 0..3 * MAX_CONNECTIONS {
            assert_eq!(look(&socket).await, Ok(true));
        }
    }
}
