//! Task of a session, which relays its input and output.

use super::SessionHandle;
use super::debugger::Debugger;
use crate::network::outbox::Outbox;
use rlaunch_bootstrap::protocol::control::{FromAgent, Stream};
use rlaunch_bootstrap::protocol::session::{FromSession, MAX_SESSION_DATA};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

/// Time without output after which a stream of a command that has ended counts as ended too: a
/// process in the background may keep it open.
const ABANDONED_AFTER: Duration = Duration::from_millis(50);

/// Task's ends of the channels of a session.
pub(super) struct Relay {
    sender: SessionSender,
    input: mpsc::Receiver<Vec<u8>>,
    turn: Arc<Semaphore>,
    last: watch::Receiver<Option<FromSession>>,
}

/// Handle for sending messages of one session.
#[derive(Clone)]
struct SessionSender {
    id: u32,
    outbox: Outbox,
}

impl SessionSender {
    fn send(&self, what: FromSession) {
        self.outbox.send(&FromAgent::Session { id: self.id, what });
    }
}

impl Relay {
    pub(super) fn new(id: u32, outbox: &Outbox) -> (Relay, SessionHandle) {
        let (sender, input) = mpsc::channel(1);
        let turn = Arc::new(Semaphore::new(1));
        let (end, last) = watch::channel(None);
        let handle = SessionHandle { input: sender, turn: turn.clone(), last: end };
        let sender = SessionSender { id, outbox: outbox.clone() };
        (Relay { sender, input, turn, last }, handle)
    }

    /// Relays for a command until it has ended and its output is sent.
    pub(super) async fn of_command(
        self,
        stdin: pipe::Sender,
        outputs: Vec<(Stream, pipe::Receiver)>,
    ) {
        let Relay { sender, input, turn, mut last } = self;
        let mut pumps = JoinSet::new();
        for (stream, pipe) in outputs {
            pumps.spawn(pump(stream, pipe, (sender.clone(), turn.clone()), last.clone()));
        }
        let feeding = feed(stdin, input, &sender);
        let finished = async {
            while pumps.join_next().await.is_some() {}
            // An error means that the agent is at its end.
            last.wait_for(Option::is_some).await.ok().and_then(|last| last.clone())
        };
        let last = tokio::select! {
            last = finished => last,
            never = feeding => match never {},
        };
        if let Some(last) = last {
            sender.send(last);
        }
    }

    /// Relays for a debugger until it closes the connection.
    pub(super) async fn of_debugger(self, debugger: Debugger) {
        let Relay { sender, input, turn, last } = self;
        let Debugger { stream, path, pid } = debugger;
        let (reader, writer) = stream.into_split();
        let pump = pump(Stream::Stdout, reader, (sender.clone(), turn), last);
        tokio::select! {
            () = pump => {}
            never = feed(writer, input, &sender) => match never {},
        }
        sender.send(Debugger::outcome(&path, pid));
    }
}

/// Type without values: of a task that goes on until it is dropped.
enum Never {}

/// Writes input until the session ends. Input that cannot be written is dropped, as by a command
/// that does not read it.
async fn feed(
    writer: impl AsyncWrite + Unpin,
    mut input: mpsc::Receiver<Vec<u8>>,
    sender: &SessionSender,
) -> Never {
    let mut open = Some(writer);
    while let Some(data) = input.recv().await {
        if let Some(mut writer) = open.take()
            && !data.is_empty()
            && writer.write_all(&data).await.is_ok()
        {
            open = Some(writer);
        }
        sender.send(FromSession::StdinTaken);
    }
    std::future::pending().await
}

/// Sends what can be read until the end of the stream.
async fn pump(
    stream: Stream,
    mut reader: impl AsyncRead + Unpin,
    (sender, turn): (SessionSender, Arc<Semaphore>),
    mut last: watch::Receiver<Option<FromSession>>,
) {
    let mut buffer = Vec::with_capacity(MAX_SESSION_DATA);
    loop {
        let abandoned = async {
            // The sender exists as long as the session does.
            let _ = last.wait_for(Option::is_some).await;
            tokio::time::sleep(ABANDONED_AFTER).await;
        };
        let read = tokio::select! {
            biased;
            read = reader.read_buf(&mut buffer) => read,
            () = abandoned => return,
        };
        // Reading a terminal fails once no process has it open.
        if !matches!(read, Ok(1..)) {
            return;
        }
        let Ok(permit) = turn.acquire().await else { return };
        permit.forget();
        let data = std::mem::replace(&mut buffer, Vec::with_capacity(MAX_SESSION_DATA));
        sender.send(FromSession::Output { stream, data });
    }
}
