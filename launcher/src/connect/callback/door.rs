//! Who may come in. Whoever connects has a few seconds to say what it wants; an agent comes in when
//! it has proved that it is the one whose key was announced, and once. Hosts that ask for an agent by
//! its hash are sent it, a few at a time, since it is no secret. Everybody else hears nothing, and a
//! flood from one address takes the place of no other.

use super::turns::{Guest, Turns};
use crate::connect::agent::store::AgentFile;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::security::admission::AdmissionQueue;
use rlaunch_bootstrap::security::callback::{
    CallbackError, CallbackHello, FetchRequest, FirstMessage, KeyPair, MAX_FIRST_MESSAGE,
    PublicKey, SharedStream,
};
use rlaunch_console::deadline::Deadline;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// How long whoever connects may take until it has proved who it is. An agent may be quicker than
/// its announcement.
const PATIENCE: Duration = Duration::from_secs(5);
/// Those who have proved nothing yet, at one address of this machine.
const MOST_STRANGERS: usize = 256;
/// How long a file may wait for its turn, and then take to be sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait when the system has no room for a connection.
const NO_ROOM: Duration = Duration::from_millis(100);

/// An agent that has called.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) tcp: TcpStream,
    pub(crate) conversation: SharedStream,
    /// What it has said already.
    pub(crate) heard: Vec<u8>,
}

/// Listens; no more when it goes.
pub(super) struct Door {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    listening: Vec<AbortHandle>,
}

struct Shared {
    own: KeyPair,
    patience: Duration,
    expected: Mutex<HashMap<NodeId, Slot>>,
    /// Told of everyone who is expected.
    news: watch::Sender<()>,
    lent: Mutex<Vec<Arc<AgentFile>>>,
    turns: Turns,
}

/// An agent that may come in.
struct Slot {
    key: PublicKey,
    to: oneshot::Sender<Called>,
}

impl Door {
    /// Needs a runtime.
    pub(super) fn open(own: KeyPair, listeners: Vec<TcpListener>) -> Door {
        Door::patient(own, listeners, PATIENCE)
    }

    pub(super) fn patient(own: KeyPair, listeners: Vec<TcpListener>, patience: Duration) -> Door {
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok());
        let addresses = addresses.collect();
        let shared = Arc::new(Shared {
            own,
            patience,
            expected: Mutex::default(),
            news: watch::Sender::new(()),
            lent: Mutex::default(),
            turns: Turns::new(),
        });
        let listening = listeners.into_iter();
        let listening = listening.map(|l| tokio::spawn(accept(l, shared.clone())).abort_handle());
        let listening = listening.collect();
        Door { shared, addresses, listening }
    }

    /// By what this end is known.
    pub(super) fn key(&self) -> PublicKey {
        self.shared.own.public()
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Lets whoever asks for its hash have this file.
    pub(super) fn lend(&self, file: &Arc<AgentFile>) {
        let mut lent = self.shared.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if !lent.iter().any(|other| other.sha256 == file.sha256) {
            lent.push(file.clone());
        }
    }

    /// Lets the agent of `node` in, as long as somebody waits for it.
    pub(super) fn expect(&self, node: NodeId, key: PublicKey) -> Expected {
        let (to, called) = oneshot::channel();
        self.shared.expected().insert(node, Slot { key, to });
        self.shared.news.send_replace(());
        Expected { shared: self.shared.clone(), node, called }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.listening.iter().for_each(AbortHandle::abort);
    }
}

/// Somebody waits for an agent. It is not let in any more when this goes.
pub(crate) struct Expected {
    shared: Arc<Shared>,
    node: NodeId,
    called: oneshot::Receiver<Called>,
}

impl Expected {
    /// The agent, once it has come. Safe to cancel.
    pub(crate) async fn called(&mut self) -> Option<Called> {
        (&mut self.called).await.ok()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.shared.expected().remove(&self.node);
    }
}

/// Why somebody is shown the door.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    CallbackHello(#[from] CallbackError),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("it has hung up")]
    HungUp,
    #[error("the agent of node {0} has come already")]
    Again(NodeId),
    #[error("there is no file {0}")]
    NoFile(String),
    #[error("too many wait for a file")]
    Crowded,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut strangers = JoinSet::new();
    let mut crowd: AdmissionQueue<AbortHandle> = AdmissionQueue::new(MOST_STRANGERS);
    loop {
        let (tcp, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!("cannot accept: {error}");
                    tokio::time::sleep(NO_ROOM).await;
                    continue;
                }
            },
            Some(_) = strangers.join_next() => continue,
        };
        let shared = shared.clone();
        let stranger = strangers.spawn(async move {
            if let Err(refusal) = shared.receive(tcp, address.ip()).await {
                tracing::debug!(%address, "refused: {refusal}");
            }
        });
        crowd.retain(|stranger| !stranger.is_finished());
        if let Some(stranger) = crowd.admit(address.ip(), stranger) {
            stranger.abort();
        }
    }
}

impl Shared {
    async fn receive(self: Arc<Self>, mut tcp: TcpStream, from: IpAddr) -> Result<(), Refusal> {
        let mut deadline = Deadline::after(self.patience);
        let late = || Refusal::Io(io::ErrorKind::TimedOut.into());
        let opening = deadline.keep(opening(&mut tcp)).await.ok_or_else(late)??;
        match opening {
            FirstMessage::Callback(call) => {
                deadline.keep(self.let_in(tcp, &call)).await.ok_or_else(late)?
            }
            FirstMessage::Fetch(fetch) => {
                let file = self.lent(&fetch.digest).ok_or(Refusal::NoFile(fetch.digest.clone()))?;
                let guest = self.turns.enter(from).ok_or(Refusal::Crowded)?;
                // It takes longer than a stranger may.
                tokio::spawn(async move { send(tcp, &file, &fetch, guest).await });
                Ok(())
            }
        }
    }

    /// Lets an agent in that proves who it is.
    async fn let_in(&self, mut tcp: TcpStream, call: &CallbackHello) -> Result<(), Refusal> {
        tcp.set_nodelay(true)?;
        let key = self.key_of(call.node).await;
        let (answer, stream) = call.answer(&self.own, &key)?;
        tcp.write_all(&answer).await?;
        let conversation = SharedStream::new(stream);
        let (mut heard, mut received) = (Vec::new(), Vec::with_capacity(4 << 10));
        // Who repeats what it has recorded comes as far as here: it cannot say anything.
        while heard.is_empty() {
            received.clear();
            if tcp.read_buf(&mut received).await? == 0 {
                return Err(Refusal::HungUp);
            }
            conversation.open(&received, &mut heard).map_err(CallbackError::from)?;
        }
        let slot = {
            let mut expected = self.expected();
            match expected.get(&call.node) {
                Some(slot) if slot.key == key => expected.remove(&call.node),
                _ => None,
            }
        };
        let called = Called { tcp, conversation, heard };
        let again = Refusal::Again(call.node);
        slot.and_then(|slot| slot.to.send(called).ok()).ok_or(again)
    }

    /// The key that the agent of `node` has announced, once it has.
    async fn key_of(&self, node: NodeId) -> PublicKey {
        let mut news = self.news.subscribe();
        loop {
            if let Some(key) = self.expected().get(&node).map(|slot| slot.key) {
                return key;
            }
            // The sender lives as long as `self`.
            let _ = news.changed().await;
        }
    }

    fn lent(&self, digest: &str) -> Option<Arc<AgentFile>> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        lent.iter().find(|file| file.sha256.eq_ignore_ascii_case(digest)).cloned()
    }

    fn expected(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Slot>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a file when it is this guest's turn.
async fn send(mut tcp: TcpStream, file: &AgentFile, fetch: &FetchRequest, guest: Guest) {
    let Ok(Some(_turn)) = timeout(SEND_TIMEOUT, guest.turn()).await else {
        return tracing::debug!("cannot send the agent: too many are sent it");
    };
    let sending = async {
        let content = file.payload(false).map_err(io::Error::other)?;
        if fetch.http {
            let length = content.len();
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n");
            tcp.write_all(head.as_bytes()).await?;
        }
        tcp.write_all(&content).await?;
        tcp.shutdown().await?;
        // Until the other end has read it all and closes.
        while tcp.read(&mut [0; 64]).await? > 0 {}
        io::Result::Ok(())
    };
    match timeout(SEND_TIMEOUT, sending).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("cannot send the agent: {error}"),
        Err(_) => tracing::debug!("cannot send the agent: too slow"),
    }
}

/// What somebody wants.
async fn opening(tcp: &mut TcpStream) -> Result<FirstMessage, Refusal> {
    let mut said = Vec::with_capacity(MAX_FIRST_MESSAGE);
    loop {
        if let Some(opening) = FirstMessage::read(&said)? {
            return Ok(opening);
        }
        // Never more than there is room for: what is longer has been refused.
        let mut room =
            (&mut *tcp).take((MAX_FIRST_MESSAGE - said.len().min(MAX_FIRST_MESSAGE)) as u64);
        if room.read_buf(&mut said).await? == 0 {
            return Err(Refusal::HungUp);
        }
    }
}
