//! The doors of a node: children knock here, and the parent's connections back.
//!
//! Anybody can knock. Whoever is not of the job is let go after [`PATIENCE`] at the latest and
//! hears nothing; only so many may stand at the door at once.

use super::dial::Dialling;
use super::edge::{Proved, tune};
use super::ports;
use super::talk::{BACK_MAGIC, Nonce, Talk, TalkError, Word};
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::oob::EDGE_TIMEOUT;
use rlaunch_bootstrap::secure::{Listener, Step};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long a stranger may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(2);
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

/// Opens the door at `listener` until the task is aborted. Children come out of `proved`.
pub(crate) async fn accept_all(
    listener: TcpListener,
    children: Vec<NodeId>,
    dialling: Dialling,
    proved: mpsc::UnboundedSender<Proved>,
) {
    let mut at_the_door: JoinSet<()> = JoinSet::new();
    let most = children.len() + STRANGERS;
    loop {
        tokio::select! {
            accepted = listener.accept(), if at_the_door.len() < most => {
                // The caller has gone already, or there are too many open files for a while.
                let Ok((tcp, _)) = accepted else {
                    tokio::time::sleep(BREATH).await;
                    continue;
                };
                let (children, dialling, proved) =
                    (children.clone(), dialling.clone(), proved.clone());
                at_the_door.spawn(async move {
                    // A stranger's fault is its own affair.
                    let _ = receive(tcp, &children, &dialling, &proved).await;
                });
            }
            Some(_) = at_the_door.join_next() => {}
        }
    }
}

async fn receive(
    mut tcp: TcpStream,
    children: &[NodeId],
    dialling: &Dialling,
    proved: &mpsc::UnboundedSender<Proved>,
) -> Result<(), TalkError> {
    let mut begin = [0; BACK_MAGIC.len()];
    let known = timeout(PATIENCE, async {
        tcp.read_exact(&mut begin).await?;
        if &begin == BACK_MAGIC {
            let mut nonce = Nonce::default();
            tcp.read_exact(&mut nonce).await?;
            dialling.backs.arrived(&nonce);
            return Ok(None);
        }
        tune(&tcp)?;
        greet(tcp, &begin, children, dialling).await
    });
    let known = known.await.map_err(|_| TalkError::Ended)??;
    let Some((mut talk, listener, nonce)) = known else { return Ok(()) };
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
) -> Result<Option<(Talk, SocketAddr, Nonce)>, TalkError> {
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
        Word::Offer { listener, nonce } => Ok(Some((talk, listener, nonce))),
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
