//! The doors of a node: children knock here, and the parent's connections back.
//!
//! Anybody can knock. Whoever is not of the job is let go after [`PATIENCE`] at the latest and
//! hears nothing. Only so many may stand at the door at once; where there are more, the address that
//! most of them come from loses its oldest, so that a crowd keeps no child out.

use super::dial::Dialling;
use super::edge::{Proved, linger, tune};
use super::ports;
use super::talk::{BACK_MAGIC, Nonce, Talk, TalkError, Word};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::rendezvous::oob::EDGE_TIMEOUT;
use rlaunch_bootstrap::security::admission::Crowd;
use rlaunch_bootstrap::security::handshake::{Listener, Step};
use std::collections::HashMap;
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

    /// Whether a connection with this nonce was expected.
    fn arrived(&self, nonce: &Nonce) -> bool {
        let expected = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(nonce);
        // Whoever expected it may have found another way.
        expected.map(|expected| expected.send(())).is_some()
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
struct Strangers {
    tasks: JoinSet<Option<Greeted>>,
    crowd: Crowd<AbortHandle>,
}

impl Strangers {
    fn new(most: usize) -> Strangers {
        Strangers { tasks: JoinSet::new(), crowd: Crowd::new(most) }
    }

    fn admit(&mut self, tcp: TcpStream, from: IpAddr, children: &[NodeId], dialling: &Dialling) {
        // Were it to close in order, the kernel would remember it at this port for a minute, and a
        // flood would leave no port of the range to the jobs that follow.
        let _ = tcp.set_zero_linger();
        let (children, dialling) = (children.to_vec(), dialling.clone());
        let task = self.tasks.spawn(async move {
            // A stranger's fault is its own affair.
            timeout(dialling.patience, receive(tcp, &children, &dialling)).await.ok()?.ok()?
        });
        self.crowd.retain(|stranger| !stranger.is_finished());
        if let Some(stranger) = self.crowd.admit(from, task) {
            stranger.abort();
        }
    }
}

/// Opens the door at `listener` until the task is aborted. Children come out of `proved`.
pub(crate) async fn accept_all(
    listener: TcpListener,
    children: Vec<NodeId>,
    dialling: Dialling,
    proved: mpsc::UnboundedSender<Proved>,
) {
    let mut strangers = Strangers::new(children.len() + STRANGERS);
    let mut greeted: JoinSet<()> = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, from)) => strangers.admit(tcp, from.ip(), &children, &dialling),
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
        if dialling.backs.arrived(&nonce) {
            // The parent would take a reset for a way that is closed.
            linger(&tcp)?;
        }
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
    linger(&tcp)?;
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
