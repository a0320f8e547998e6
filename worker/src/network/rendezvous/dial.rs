//! Connecting to the parent in the tree of agents: tries pairs of a local and a remote address
//! until a connection has been proved to work in both directions.
//!
//! Accepts connections of child agents, and return connections of the parent. A *return connection*
//! is made by a parent back to its child, to prove that TCP works in both directions
//! ([`super::edge`]).
//!
//! Anyone can connect. A peer that has not authenticated itself within [`AUTH_TIMEOUT`] is
//! disconnected, and nothing is sent to a peer before it has authenticated itself. The number of
//! unauthenticated connections is limited. Beyond the limit, the network with most of them loses
//! its oldest connection, so that a flood from a few networks cannot keep a child out.

use super::super::ports;
use super::edge::{
    Negotiation, NegotiationError, Nonce, ProvedConnection, RETURN_MAGIC, SetupMessage, linger,
    tune,
};
use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
use rlaunch_bootstrap::id::{JobId, NodeId};
use rlaunch_bootstrap::rendezvous::oob::{EDGE_TIMEOUT, EdgeAttempt, EdgeFailure, ParentPeer};
use rlaunch_bootstrap::security::handshake::{
    Dialer, HandshakeStep, Listener, Parties, SecureError,
};
use rlaunch_bootstrap::security::{AdmissionQueue, Secret};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Time after which the next pair of addresses is tried, if the previous one has not succeeded.
pub(super) const STAGGER: Duration = Duration::from_millis(200);

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
    /// Time until the next pair of addresses is tried; [`STAGGER`] except in tests.
    pub(crate) stagger: Duration,
    /// Time limit for a peer to authenticate itself; [`AUTH_TIMEOUT`] except in
    /// tests.
    pub(crate) auth_timeout: Duration,
}

/// Outcome of connecting to the parent, with the attempts that failed.
pub(crate) struct DialOutcome {
    pub(crate) edge: Option<ProvedConnection>,
    pub(crate) failed: Vec<EdgeAttempt>,
}

impl EdgeContext {
    /// Connects to the parent, for at most [`EDGE_TIMEOUT`]. Starts again if this process was
    /// suspended meanwhile: answers may have arrived unread, and the parent may have given up as
    /// well.
    pub(crate) async fn join(self, parent: &ParentPeer) -> DialOutcome {
        loop {
            let deadline = Instant::now() + EDGE_TIMEOUT;
            let outcome = self.try_all(parent, deadline).await;
            if outcome.edge.is_some() || Instant::now() <= deadline + SUSPENSION_THRESHOLD {
                return outcome;
            }
        }
    }

    async fn try_all(&self, parent: &ParentPeer, deadline: Instant) -> DialOutcome {
        let mut outcomes: Vec<AttemptProgress> = Vec::new();
        let mut running: JoinSet<(usize, Result<Negotiation, EdgeFailure>)> = JoinSet::new();
        let mut next_at = Instant::now();
        loop {
            if running.is_empty() || Instant::now() >= next_at {
                match parent.pairs.get(outcomes.len()).copied() {
                    Some((local, remote)) => {
                        let (this, parent, index) = (self.clone(), parent.node, outcomes.len());
                        let progress = AttemptProgress::default();
                        outcomes.push(progress.clone());
                        running.spawn(async move {
                            (index, this.try_pair(parent, local, remote, deadline, &progress).await)
                        });
                        next_at = Instant::now() + self.stagger;
                    }
                    None if running.is_empty() => return outcome(None, parent, &outcomes),
                    None => next_at = deadline + self.stagger,
                }
            }
            tokio::select! {
                Some(Ok((index, tried))) = running.join_next() => match accept_edge(tried, deadline).await {
                    Ok(edge) => {
                        // Later attempts are only slower; earlier ones have not succeeded.
                        outcomes.truncate(index);
                        return outcome(Some(edge), parent, &outcomes);
                    }
                    Err(why) => {
                        let _ = outcomes[index].ended.set(why);
                        next_at = Instant::now();
                    }
                },
                () = sleep_until(next_at) => {}
            }
        }
    }

    async fn try_pair(
        self,
        parent: NodeId,
        local: IpAddr,
        remote: SocketAddr,
        deadline: Instant,
        progress: &AttemptProgress,
    ) -> Result<Negotiation, EdgeFailure> {
        let mut negotiation = match timeout_at(deadline, self.connect(parent, local, remote)).await
        {
            Ok(Ok(negotiation)) => negotiation,
            Ok(Err(error)) => return Err(outcome_of(&error)),
            Err(_) => return Err(EdgeFailure::NoAnswer),
        };
        let listener = self.listeners.iter().copied().find(|listener| listener.ip() == local);
        let Some(listener) = listener else {
            return Err(EdgeFailure::System(format!("this node has no listener on {local}")));
        };
        let nonce: Nonce = uuid::Uuid::new_v4().into_bytes();
        let arrived = self.returns.expect(nonce);
        let proof = async {
            negotiation.send(&SetupMessage::ConnectBack { listener, nonce }).await?;
            let _ = progress.offered.set(listener);
            tokio::select! {
                _ = arrived => Ok(true),
                word = negotiation.receive() => word.map(|_| false),
            }
        };
        match timeout_at(deadline, proof).await {
            Ok(Ok(true)) => Ok(negotiation),
            Ok(Err(error)) => Err(outcome_of(&error)),
            Ok(Ok(false)) | Err(_) => Err(EdgeFailure::NoReturnPath(listener)),
        }
    }

    async fn connect(
        &self,
        parent: NodeId,
        local: IpAddr,
        remote: SocketAddr,
    ) -> Result<Negotiation, NegotiationError> {
        let mut tcp = ports::outgoing_socket(local)?.connect(remote).await?;
        tune(&tcp, self.node_timeout)?;
        let parties = Parties { job: self.job, from: self.me, to: parent };
        let (mut dialler, first) = Dialer::start(&self.secret, parties)?;
        tcp.write_all(&first).await?;
        let mut buffer = [0; 4096];
        loop {
            let length = tcp.read(&mut buffer).await?;
            if length == 0 {
                return Err(NegotiationError::Ended);
            }
            dialler = match dialler.receive(&buffer[..length])? {
                HandshakeStep::More(dialler) => dialler,
                HandshakeStep::Done(done) => return Negotiation::begin(tcp, done).await,
            };
        }
    }
}

/// Tells the parent that the connection of a successful attempt becomes the edge. Called for one
/// attempt at a time, even if several succeed at once, because the parent uses the first connection
/// on which it receives `Accept`.
async fn accept_edge(
    tried: Result<Negotiation, EdgeFailure>,
    deadline: Instant,
) -> Result<ProvedConnection, EdgeFailure> {
    let mut negotiation = tried?;
    let taken = async {
        negotiation.send(&SetupMessage::Accept).await?;
        ProvedConnection::new(negotiation.parties.to, negotiation)
    };
    match timeout_at(deadline, taken).await {
        Ok(taken) => taken.map_err(|error| outcome_of(&error)),
        Err(_) => Err(EdgeFailure::NoAnswer),
    }
}

/// Progress of an attempt to connect with one pair of addresses. Clones share the progress.
#[derive(Clone, Debug, Default)]
struct AttemptProgress {
    /// Listener of this node that the parent was asked to connect back to. Set once the parent has
    /// answered.
    offered: Arc<OnceLock<SocketAddr>>,
    ended: Arc<OnceLock<EdgeFailure>>,
}

impl AttemptProgress {
    /// Returns the reason why the attempt has failed. An attempt that is still in progress counts
    /// as not answered.
    fn outcome(&self) -> EdgeFailure {
        let waiting = || match self.offered.get() {
            Some(listener) => EdgeFailure::NoReturnPath(*listener),
            None => EdgeFailure::NoAnswer,
        };
        self.ended.get().cloned().unwrap_or_else(waiting)
    }
}

/// Combines `edge` with the outcomes of the attempts in `tried`.
fn outcome(
    edge: Option<ProvedConnection>,
    parent: &ParentPeer,
    tried: &[AttemptProgress],
) -> DialOutcome {
    let attempts = parent.pairs.iter().zip(tried);
    let failed = attempts.map(|(&(local, remote), progress)| EdgeAttempt {
        local,
        remote,
        outcome: progress.outcome(),
    });
    DialOutcome { edge, failed: failed.collect() }
}

fn outcome_of(error: &NegotiationError) -> EdgeFailure {
    match error {
        NegotiationError::Secure(SecureError::Noise(_)) => EdgeFailure::System(error.to_string()),
        NegotiationError::Secure(error) => EdgeFailure::WrongPeer(error.to_string()),
        NegotiationError::Ended => EdgeFailure::WrongPeer("the connection ended".to_owned()),
        NegotiationError::Wire(error) => EdgeFailure::WrongPeer(error.to_string()),
        NegotiationError::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => EdgeFailure::Refused,
            io::ErrorKind::TimedOut => EdgeFailure::NoAnswer,
            // An agent disconnects an unauthenticated peer with a reset.
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                EdgeFailure::WrongPeer("the connection was reset".to_owned())
            }
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                EdgeFailure::NoRoute
            }
            _ => EdgeFailure::System(error.to_string()),
        },
    }
}

/// Time limit for a peer to authenticate itself.
pub(super) const AUTH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of unauthenticated connections of one listener, in addition to one for each
/// child.
const MAX_UNAUTHENTICATED: usize = 64;
/// Pause after accept(2) has failed.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

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

    /// Handles the arrival of a return connection: notifies the attempt that waits for this nonce.
    /// Returns false if no attempt waits for it.
    fn arrived(&self, nonce: &Nonce) -> bool {
        let expected = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(nonce);
        // The attempt may have ended since.
        expected.map(|expected| expected.send(())).is_some()
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
        if context.returns.arrived(&nonce) {
            // The parent would take a reset for a path that is blocked.
            linger(&tcp)?;
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
