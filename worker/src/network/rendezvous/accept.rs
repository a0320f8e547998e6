//! Accepting connections of child agents, and return connections of the parent. A *return connection*
//! is made by a parent back to its child, to prove that TCP works in both directions
//! ([`super::edge`]).
//!
//! Anyone can connect. A peer that has not authenticated itself within [`AUTH_TIMEOUT`] is
//! disconnected, and nothing is sent to a peer before it has authenticated itself. The number of
//! unauthenticated connections is limited. Beyond the limit, the network with most of them loses
//! its oldest connection, so that a flood from a few networks cannot keep a child out.

use super::super::ports;
use super::edge::{
    Negotiation, NegotiationError, Nonce, ProvedConnection, RETURN_MAGIC, SetupMessage,
    close_in_order, tune,
};
use rlaunch_bootstrap::id::{JobId, NodeId};
use rlaunch_bootstrap::rendezvous::oob::EDGE_TIMEOUT;
use rlaunch_bootstrap::security::handshake::{HandshakeStep, Listener};
use rlaunch_bootstrap::security::{AdmissionQueue, Secret};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Time limit for a peer to authenticate itself.
pub(super) const AUTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of unauthenticated connections of one listener, in addition to one for each
/// child.
const MAX_UNAUTHENTICATED: usize = 64;
/// Pause after accept(2) has failed.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// Settings of this node for making and accepting edges of the tree.
#[derive(Clone)]
pub(crate) struct EdgeContext {
    pub(crate) secret: Secret,
    pub(crate) job: JobId,
    pub(crate) me: NodeId,
    /// Addresses of this node's listeners.
    pub(crate) listeners: Vec<SocketAddr>,
    pub(crate) returns: ReturnConnections,
    /// Time after which an edge breaks if the neighbour (parent or child) sends or acknowledges
    /// nothing.
    pub(crate) node_timeout: Duration,
    /// Time until the next pair of addresses is tried; [`STAGGER`](super::dial::STAGGER) except in
    /// tests.
    pub(crate) stagger: Duration,
    /// Time limit for a peer to authenticate itself; [`AUTH_TIMEOUT`] except in tests.
    pub(crate) auth_timeout: Duration,
}

/// Return connections that this node expects from its parent, by the nonce that the parent has to
/// send. Clones share the set.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReturnConnections(Arc<Mutex<HashMap<Nonce, oneshot::Sender<()>>>>);

impl ReturnConnections {
    /// Registers a return connection that must carry this nonce. The receiver resolves when the
    /// connection has arrived.
    pub(super) fn expect(&self, nonce: Nonce) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(nonce, sender);
        receiver
    }

    /// Notifies the attempt that waits for the return connection with this nonce, which has arrived.
    /// Returns false if no attempt waits for it.
    fn notify(&self, nonce: &Nonce) -> bool {
        let expected = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(nonce);
        let Some(expected) = expected else { return false };
        // The attempt may have ended since.
        let _ = expected.send(());
        true
    }
}

/// Connection of a child agent that has authenticated itself.
struct AuthenticatedChild {
    negotiation: Negotiation,
    /// Address of the child's listener, to which this node must connect back.
    listener: SocketAddr,
    nonce: Nonce,
}

/// Connections whose peers have not authenticated themselves.
struct Unauthenticated {
    tasks: JoinSet<Option<AuthenticatedChild>>,
    admission: AdmissionQueue<AbortHandle>,
}

impl Unauthenticated {
    fn new(most: usize) -> Unauthenticated {
        Unauthenticated { tasks: JoinSet::new(), admission: AdmissionQueue::new(most) }
    }

    fn admit(&mut self, tcp: TcpStream, from: IpAddr, children: &[NodeId], context: &EdgeContext) {
        // Closed with a reset: after an orderly close the kernel keeps the connection in TIME_WAIT
        // at this port for a minute, and a flood would leave no port of the range to later jobs.
        let _ = tcp.set_zero_linger();
        let (children, context) = (children.to_vec(), context.clone());
        let task = self.tasks.spawn(async move {
            // A peer that fails to authenticate itself is only disconnected.
            timeout(context.auth_timeout, identify(tcp, &children, &context)).await.ok()?.ok()?
        });
        self.admission.retain(|task| !task.is_finished());
        if let Some(oldest) = self.admission.admit(from, task) {
            oldest.abort();
        }
    }
}

/// Accepts connections until the task is aborted. Connections of children are sent to `proved` once
/// they have been proved to work in both directions.
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
                // The peer has gone already, or the process has too many open files for the moment.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
            },
            Some(identified) = unauthenticated.tasks.join_next() => {
                if let Ok(Some(child)) = identified {
                    let proved = proved.clone();
                    authenticated.spawn(async move {
                        // The child reports the outcome.
                        let _ = prove_return_path(child, &proved).await;
                    });
                }
            }
            Some(_) = authenticated.join_next() => {}
        }
    }
}

/// Authenticates a child, or recognises a return connection. Returns `None` for a return connection
/// and for a node that is not a child.
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
        if context.returns.notify(&nonce) {
            // The parent would take a reset for a path that is blocked.
            close_in_order(&tcp)?;
        }
        return Ok(None);
    }
    tune(&tcp, context.node_timeout)?;
    authenticate(tcp, &begin, children, context).await
}

/// Connects back to the child, which proves that TCP works in both directions. If the child then
/// sends `Accept`, the child's authenticated connection becomes the edge of the tree between child
/// and parent.
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
        // The receiver is dropped when the agent leaves.
        let _ = proved.send(ProvedConnection::new(child, negotiation)?);
    }
    Ok(())
}

/// Runs the handshake up to the child's first message, which proves that the handshake is not a
/// replay.
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
            HandshakeStep::More(listener) => listener,
            HandshakeStep::Done(done) => break done,
        };
        length = tcp.read(&mut buffer).await?;
        if length == 0 {
            return Err(NegotiationError::Ended);
        }
    };
    if !children.contains(&done.parties.from) {
        return Ok(None);
    }
    close_in_order(&tcp)?;
    let mut negotiation = Negotiation::begin(tcp, done).await?;
    match negotiation.receive().await? {
        SetupMessage::ConnectBack { listener, nonce } => {
            Ok(Some(AuthenticatedChild { negotiation, listener, nonce }))
        }
        _ => Ok(None),
    }
}

/// Makes a return connection.
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
