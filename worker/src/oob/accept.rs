//! The doors of a node: children knock here, and the parent's connections back.
//!
//! Anybody can knock. Whoever is not of the job is let go after [`PATIENCE`] at the latest and
//! hears nothing. Only so many may stand at the door at once; where more come, who has stood there
//! longest goes, so that a crowd keeps no child out.

use super::dial::Dialling;
use super::edge::{Proved, tune};
use super::ports;
use super::talk::{BACK_MAGIC, Nonce, Talk, TalkError, Word};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::oob::EDGE_TIMEOUT;
use rlaunch_bootstrap::secure::{Listener, Step};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// How long a stranger may take to say who it is.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// How many may stand at a door at once, beyond the children.
const STRANGERS: usize = 64;
/// Between two tries to open a door that jams.
const BREATH: Duration = Duration::from_millis(10);

/// Connections back that are expected, by what they will say. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backs(Arc<Mutex<HashMap<Nonce, oneshot::Sender<()>>>>);

impl Backs {
    /// Resolves when a connection brings `nonce`.
    pub(super) fn expect(&self, nonce: Nonce) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(nonce, sender);
        receiver
    }

    fn arrived(&self, nonce: &Nonce) {
        let expected = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(nonce);
        if let Some(expected) = expected {
            // Whoever expected it may have found another way.
            let _ = expected.send(());
        }
    }
}

/// A child that has proved who it is.
struct Greeted {
    talk: Talk,
    /// Where it listens, to be proved.
    listener: SocketAddr,
    nonce: Nonce,
}

/// Those who have not said yet who they are.
#[derive(Default)]
struct Strangers {
    tasks: JoinSet<Option<Greeted>>,
    /// Longest at the door first.
    in_order: VecDeque<AbortHandle>,
}

impl Strangers {
    fn admit(&mut self, tcp: TcpStream, children: &[NodeId], dialling: &Dialling, most: usize) {
        self.in_order.retain(|stranger| !stranger.is_finished());
        if self.in_order.len() >= most
            && let Some(longest) = self.in_order.pop_front()
        {
            longest.abort();
        }
        let (children, dialling) = (children.to_vec(), dialling.clone());
        let task = self.tasks.spawn(async move {
            // A stranger's fault is its own affair.
            timeout(dialling.patience, receive(tcp, &children, &dialling)).await.ok()?.ok()?
        });
        self.in_order.push_back(task);
    }
}

/// Opens the door at `listener` until the task is aborted. Children come out of `proved`.
pub(crate) async fn accept_all(
    listener: TcpListener,
    children: Vec<NodeId>,
    dialling: Dialling,
    proved: mpsc::UnboundedSender<Proved>,
) {
    let mut strangers = Strangers::default();
    let mut greeted: JoinSet<()> = JoinSet::new();
    let most = children.len() + STRANGERS;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, _)) => strangers.admit(tcp, &children, &dialling, most),
                // The caller has gone already, or there are too many open files for a while.
                Err(_) => tokio::time::sleep(BREATH).await,
            },
            Some(said) = strangers.tasks.join_next() => {
                if let Ok(Some(child)) = said {
                    let proved = proved.clone();
                    greeted.spawn(async move {
                        // The child says what became of it.
                        let _ = prove(child, &proved).await;
                    });
                }
            }
            Some(_) = greeted.join_next() => {}
        }
    }
}

/// Finds out who has come: a child, or a connection back.
async fn receive(
    mut tcp: TcpStream,
    children: &[NodeId],
    dialling: &Dialling,
) -> Result<Option<Greeted>, TalkError> {
    let mut begin = [0; BACK_MAGIC.len()];
    tcp.read_exact(&mut begin).await?;
    if &begin == BACK_MAGIC {
        let mut nonce = Nonce::default();
        tcp.read_exact(&mut nonce).await?;
        dialling.backs.arrived(&nonce);
        return Ok(None);
    }
    tune(&tcp, dialling.silence)?;
    greet(tcp, &begin, children, dialling).await
}

/// Connects back to the child; if that leads there, it may take this for its edge.
async fn prove(
    Greeted { mut talk, listener, nonce }: Greeted,
    proved: &mpsc::UnboundedSender<Proved>,
) -> Result<(), TalkError> {
    let child = talk.parties.from;
    let connecting_back = timeout(EDGE_TIMEOUT, async {
        let local = talk.addresses()?.0.ip();
        connect_back(local, listener, &nonce).await
    });
    if !matches!(connecting_back.await, Ok(Ok(()))) {
        talk.say(&Word::NoWayBack).await?;
        return Ok(());
    }
    let taken = timeout(EDGE_TIMEOUT, talk.hear()).await.map_err(|_| TalkError::Ended)??;
    if taken == Word::Take {
        // The agent may have gone on without this edge.
        let _ = proved.send(Proved::new(child, talk)?);
    }
    Ok(())
}

/// The handshake and the first sentence, which proves that the child is no replay.
async fn greet(
    mut tcp: TcpStream,
    begin: &[u8],
    children: &[NodeId],
    dialling: &Dialling,
) -> Result<Option<Greeted>, TalkError> {
    let mut listener = Listener::new(dialling.secret.clone(), dialling.job, dialling.me);
    let mut buffer = [0; 4096];
    let mut length = begin.len();
    buffer[..length].copy_from_slice(begin);
    let done = loop {
        listener = match listener.receive(&buffer[..length])? {
            Step::More(listener) => listener,
            Step::Done(done) => break done,
        };
        length = tcp.read(&mut buffer).await?;
        if length == 0 {
            return Err(TalkError::Ended);
        }
    };
    if !children.contains(&done.parties.from) {
        return Ok(None);
    }
    let mut talk = Talk::begin(tcp, done).await?;
    match talk.hear().await? {
        Word::Offer { listener, nonce } => Ok(Some(Greeted { talk, listener, nonce })),
        _ => Ok(None),
    }
}

async fn connect_back(local: IpAddr, listener: SocketAddr, nonce: &Nonce) -> Result<(), TalkError> {
    let mut tcp = ports::dialling(local)?.connect(listener).await?;
    let mut words = BACK_MAGIC.to_vec();
    words.extend_from_slice(nonce);
    tcp.write_all(&words).await?;
    Ok(tcp.shutdown().await?)
}
