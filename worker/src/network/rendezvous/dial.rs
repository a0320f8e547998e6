//! Connecting to the parent in the tree of agents: tries pairs of a local and a remote address
//! until a connection has been proved to work in both directions.

use super::super::ports;
use super::accept::EdgeContext;
use super::edge::{Negotiation, NegotiationError, Nonce, ProvedConnection, SetupMessage, tune};
use rlaunch_bootstrap::deadline::SUSPENSION_THRESHOLD;
use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::rendezvous::oob::{EDGE_TIMEOUT, EdgeAttempt, EdgeFailure, ParentPeer};
use rlaunch_bootstrap::security::handshake::{Dialer, HandshakeStep, Parties, SecureError};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Time after which the next pair of addresses is tried, if the previous one has not succeeded.
pub(super) const STAGGER: Duration = Duration::from_millis(200);

/// Outcome of connecting to the parent, with the attempts that failed.
pub(crate) struct DialOutcome {
    pub(crate) edge: Option<ProvedConnection>,
    pub(crate) failed: Vec<EdgeAttempt>,
}

impl EdgeContext {
    /// Connects to the parent, for at most [`EDGE_TIMEOUT`]. Starts again if this process was
    /// suspended meanwhile: answers may have arrived unread, and the parent may have given up as
    /// well.
    pub(crate) async fn connect_to_parent(self, parent: &ParentPeer) -> DialOutcome {
        loop {
            let deadline = Instant::now() + EDGE_TIMEOUT;
            let outcome = self.dial_all(parent, deadline).await;
            if outcome.edge.is_some() || Instant::now() <= deadline + SUSPENSION_THRESHOLD {
                return outcome;
            }
        }
    }

    async fn dial_all(&self, parent: &ParentPeer, deadline: Instant) -> DialOutcome {
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
                            (
                                index,
                                this.dial_pair(parent, local, remote, deadline, &progress).await,
                            )
                        });
                        next_at = Instant::now() + self.stagger;
                    }
                    None if running.is_empty() => return collect_outcome(None, parent, &outcomes),
                    // All pairs are being tried, each until the deadline at most: no more is to begin.
                    None => next_at = deadline + self.stagger,
                }
            }
            tokio::select! {
                Some(Ok((index, tried))) = running.join_next() => match accept_edge(tried, deadline).await {
                    Ok(edge) => {
                        // Later attempts are only slower; earlier ones have not succeeded.
                        outcomes.truncate(index);
                        return collect_outcome(Some(edge), parent, &outcomes);
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

    /// Connects with one pair of addresses, and has the parent connect back.
    async fn dial_pair(
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
            Ok(Err(error)) => return Err(edge_failure(&error)),
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
                // The parent says nothing here but `NoReturnPath`.
                word = negotiation.receive() => word.map(|_| false),
            }
        };
        match timeout_at(deadline, proof).await {
            Ok(Ok(true)) => Ok(negotiation),
            Ok(Err(error)) => Err(edge_failure(&error)),
            Ok(Ok(false)) | Err(_) => Err(EdgeFailure::NoReturnPath(listener)),
        }
    }

    /// Connects to one address and makes sure that the parent is there.
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
        Ok(taken) => taken.map_err(|error| edge_failure(&error)),
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
fn collect_outcome(
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

fn edge_failure(error: &NegotiationError) -> EdgeFailure {
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
