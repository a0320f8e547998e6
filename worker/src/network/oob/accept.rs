//! The doors of a node: children knock here, and the parent's connections back.
//!
//! Anybody can knock. Whoever is not of the job is let go after [`AUTH_TIMEOUT`] at the latest and
//! hears nothing. Only so many may stand at the door at once; where there are more, the address that
//! most of them come from loses its oldest, so that a crowd keeps no child out.

use super::dial::EdgeContext;
use super::edge::{ProvedConnection, linger, tune};
use super::negotiation::{Negotiation, NegotiationError, Nonce, RETURN_MAGIC, SetupMessage};
use super::ports;
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
pub(super) const AUTH_TIMEOUT: Duration = Duration::from_secs(2);
/// How many may stand at a door at once, beyond the children.
const MAX_UNAUTHENTICATED: usize = 64;
/// Between two tries to open a door that jams.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// Connections back that are expected, by what they will say. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReturnConnections(Arc<Mutex<HashMap<Nonce, oneshot::Sender<()>>>>);

impl ReturnConnections {
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
struct AuthenticatedChild {
    negotiation: Negotiation,
    /// Where it listens, to be proved.
    listener: SocketAddr,
    nonce: Nonce,
}

/// Those who have not said yet who they are.
struct Unauthenticated {
    tasks: JoinSet<Option<AuthenticatedChild>>,
    crowd: Crowd<AbortHandle>,
}

impl Unauthenticated {
    fn new(most: usize) -> Unauthenticated {
        Unauthenticated { tasks: JoinSet::new(), crowd: Crowd::new(most) }
    }

    fn admit(&mut self, tcp: TcpStream, from: IpAddr, children: &[NodeId], context: &EdgeContext) {
        // Were it to close in order, the kernel would remember it at this port for a minute, and a
        // flood would leave no port of the range to the jobs that follow.
        let _ = tcp.set_zero_linger();
        let (children, context) = (children.to_vec(), context.clone());
        let task = self.tasks.spawn(async move {
            // A stranger's fault is its own affair.
            timeout(context.patience, identify(tcp, &children, &context)).await.ok()?.ok()?
        });
        self.crowd.retain(|task| !task.is_finished());
        if let Some(oldest) = self.crowd.admit(from, task) {
            oldest.abort();
        }
    }
}

/// Opens the door at `listener` until the task is aborted. Children come out of `proved`.
pub(crate) async fn accept_all(
    listener: TcpListener,
    children: Vec<NodeId>,
    context: EdgeContext,
    proved: mpsc::UnboundedSender<ProvedConnection>,
) {
    let mut unauthenticated = Unauthenticated::new(children.len() + MAX_UNAUTHENTICATED);
    let mut authenticated: JoinSet<()> = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((tcp, from)) => unauthenticated.admit(tcp, from.ip(), &children, &context),
                // The caller has gone already, or there are too many open files for a while.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
            },
            Some(identified) = unauthenticated.tasks.join_next() => {
                if let Ok(Some(child)) = identified {
                    let proved = proved.clone();
                    authenticated.spawn(async move {
                        // The child says what became of it.
                        let _ = prove_return_path(child, &proved).await;
                    });
                }
            }
            Some(_) = authenticated.join_next() => {}
        }
    }
}

/// Finds out who has come: a child, or a connection back.
async fn identify(
    mut tcp: TcpStream,
    children: &[NodeId],
    context: &EdgeContext,
) -> Result<Option<AuthenticatedChild>, NegotiationError> {
    let mut begin = [0; RETURN_MAGIC.len()];
    tcp.read_exact(&mut begin).await?;
    if &begin == RETURN_MAGIC {
        let mut nonce = Nonce::default();
        tcp.read_exact(&mut nonce).await?;
        if context.returns.arrived(&nonce) {
            // The parent would take a reset for a way that is closed.
            linger(&tcp)?;
        }
        return Ok(None);
    }
    tune(&tcp, context.silence)?;
    authenticate(tcp, &begin, children, context).await
}

/// Connects back to the child; if that leads there, it may take this for its edge.
async fn prove_return_path(
    AuthenticatedChild { mut negotiation, listener, nonce }: AuthenticatedChild,
    proved: &mpsc::UnboundedSender<ProvedConnection>,
) -> Result<(), NegotiationError> {
    let child = negotiation.parties.from;
    let connecting_back = timeout(EDGE_TIMEOUT, async {
        let local = negotiation.addresses()?.0.ip();
        connect_back(local, listener, &nonce).await
    });
    if !matches!(connecting_back.await, Ok(Ok(()))) {
        negotiation.send(&SetupMessage::NoReturnPath).await?;
        return Ok(());
    }
    let taken = timeout(EDGE_TIMEOUT, negotiation.receive())
        .await
        .map_err(|_| NegotiationError::Ended)??;
    if taken == SetupMessage::Accept {
        // The agent may have gone on without this edge.
        let _ = proved.send(ProvedConnection::new(child, negotiation)?);
    }
    Ok(())
}

/// The handshake and the first sentence, which proves that the child is no replay.
async fn authenticate(
    mut tcp: TcpStream,
    begin: &[u8],
    children: &[NodeId],
    context: &EdgeContext,
) -> Result<Option<AuthenticatedChild>, NegotiationError> {
    let mut listener = Listener::new(context.secret.clone(), context.job, context.me);
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
            return Err(NegotiationError::Ended);
        }
    };
    if !children.contains(&done.parties.from) {
        return Ok(None);
    }
    linger(&tcp)?;
    let mut negotiation = Negotiation::begin(tcp, done).await?;
    match negotiation.receive().await? {
        SetupMessage::ConnectBack { listener, nonce } => {
            Ok(Some(AuthenticatedChild { negotiation, listener, nonce }))
        }
        _ => Ok(None),
    }
}

async fn connect_back(
    local: IpAddr,
    listener: SocketAddr,
    nonce: &Nonce,
) -> Result<(), NegotiationError> {
    let mut tcp = ports::outgoing_socket(local)?.connect(listener).await?;
    let mut words = RETURN_MAGIC.to_vec();
    words.extend_from_slice(nonce);
    tcp.write_all(&words).await?;
    Ok(tcp.shutdown().await?)
}
