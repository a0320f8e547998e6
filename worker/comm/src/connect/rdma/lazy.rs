//! Queue pairs that are connected at the pair's first message.
//!
//! Two ranks that have connected over TCP exchange over that socket the data that small jobs
//! exchange in the all-gather:
//!
//! 1. Each rank sends the number of its queue pair and the sequence number of its first packet
//!    (PSN). If the connection manager connects the pair, only the higher rank sends a message,
//!    [`GO`], and the lower rank then sends its connection request.
//! 2. Each rank connects its queue pair and sends [`GO`].
//! 3. A rank that has received the [`GO`] of step 2 passes the link to its user, and closes the
//!    socket.
//!
//! Only calls of the connection manager block; they run in threads of their own.

use super::super::handshake_socket::HandshakeSocket;
use super::super::wake_fd;
use super::advert::QpAdvert;
use super::cm::{self, CmContext, CmResult};
use super::{ConnectedQp, Contact, Fabric, FirstSender, PeerAdvert, WireUpError, name};
use crate::transport::LinkHint;
use crate::transport::verbs::VerbsLink;
use crate::transport::wake_fd::WakeFd;
use crate::types::error::PeerName;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_verbs::{ConnectRequest, Prepared, QueuePair, VerbsError};
use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

/// Length in bytes of the message about a queue pair: its number and first PSN.
const PAIR: usize = 8;
/// Message of one byte: in step 1 the peer may send its connection request, in step 2 this rank is
/// connected.
const GO: [u8; 1] = [1];

/// RDMA ports of this rank, and the peers with which it is connecting.
#[derive(Debug)]
pub(crate) struct LazyRdma {
    fabric: Fabric,
    table: Arc<RankTable>,
    theirs: BTreeMap<Rank, PeerAdvert>,
    begun: BTreeMap<Rank, PendingQp>,
    /// Results of the threads that call the connection manager. They also wake the connecting
    /// thread.
    done: Receiver<CmResult>,
    results: Sender<CmResult>,
    wake: Arc<WakeFd>,
}

/// Progress of connecting with one peer.
#[derive(Debug)]
struct PendingQp {
    wire: HandshakeSocket,
    step: QpStep,
    is_peer_ready: bool,
    until: Instant,
}

#[derive(Debug)]
enum QpStep {
    /// Waits for the data of the peer's queue pair; contains this rank's own.
    AwaitsPair(QueuePair<Prepared>),
    /// Waits until this rank may send its connection request.
    AwaitsGo,
    /// Waits for the peer's connection request.
    AwaitsRequest,
    /// Waits for the result of the connection manager.
    Connects,
    /// This rank is connected, and waits until the peer is.
    AwaitsReady(ConnectedSide),
    Failed(WireUpError),
}

/// Connected queue pair of this rank, while the peer may not be connected yet.
#[derive(Debug)]
enum ConnectedSide {
    /// This rank sends the first message, which it must not do before the peer is connected.
    Silent(Box<ConnectedQp>),
    /// The peer may send as soon as it knows that this rank is connected, so this rank's receives
    /// are posted already.
    Listens(Box<VerbsLink>),
}

impl Fabric {
    /// Makes a connector for the peers that have advertised RDMA ports. It connects none of them
    /// yet.
    pub(crate) fn lazy(
        self,
        contacts: &[Contact],
        table: &Arc<RankTable>,
    ) -> Result<LazyRdma, WireUpError> {
        let theirs = self.theirs(contacts)?;
        let ((results, done), table, wake) = (channel(), table.clone(), Arc::new(wake_fd()?));
        Ok(LazyRdma { fabric: self, table, theirs, begun: BTreeMap::new(), done, results, wake })
    }
}

impl LazyRdma {
    /// Returns the properties of the links that it will make, by peer.
    pub(crate) fn link_hint(&self) -> BTreeMap<Rank, LinkHint> {
        let link_hint = |(_, config): &PeerAdvert| VerbsLink::link_hint(config.payload);
        self.theirs.iter().map(|(peer, theirs)| (*peer, link_hint(theirs))).collect()
    }

    /// Returns whether this rank reaches `peer` by RDMA.
    pub(crate) fn uses_rdma(&self, peer: Rank) -> bool {
        self.theirs.contains_key(&peer)
    }

    /// Returns whether this rank is connecting a queue pair with `peer`.
    pub(crate) fn is_connecting(&self, peer: Rank) -> bool {
        self.begun.contains_key(&peer)
    }

    /// Starts to connect a queue pair with a peer. `socket` is the TCP connection to the peer;
    /// `until` is the time limit.
    pub(crate) fn begin(
        &mut self,
        peer: Rank,
        socket: TcpStream,
        until: Instant,
    ) -> Result<(), WireUpError> {
        let wire = HandshakeSocket::new(socket);
        let step = match self.fabric.prepare(&self.table, peer)? {
            Some(pair) => {
                let own = pair.endpoint();
                self.send(peer, &wire, &encode_pair(own.qpn, own.psn))?;
                QpStep::AwaitsPair(pair)
            }
            None if self.fabric.me < peer => QpStep::AwaitsGo,
            None => {
                self.send(peer, &wire, &GO)?;
                QpStep::AwaitsRequest
            }
        };
        self.begun.insert(peer, PendingQp { wire, step, is_peer_ready: false, until });
        Ok(())
    }

    /// Returns the descriptors that become readable when there is work for [`LazyRdma::advance`].
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let listeners = self.fabric.ports.values().filter_map(|port| port.listener.as_ref());
        // A peer that is connected sends nothing more on the socket.
        let wires = self.begun.values().filter(|begun| !begun.is_peer_ready);
        let mut fds = vec![self.wake.as_fd()];
        fds.extend(listeners.map(AsFd::as_fd));
        fds.extend(wires.map(|begun| begun.wire.socket().as_fd()));
        fds
    }

    /// Returns the earliest time limit of all pending peers.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.begun.values().map(|begun| begun.until).min()
    }

    /// Takes all steps that are possible, and returns the links or errors of the peers that have
    /// finished.
    pub(crate) fn advance(&mut self) -> Vec<(Rank, Result<Box<VerbsLink>, WireUpError>)> {
        self.wake.clear();
        self.accept_requests();
        let mut cm_result: BTreeMap<_, _> = self.done.try_iter().collect();
        let mut over = Vec::new();
        let mut begun = std::mem::take(&mut self.begun);
        begun.retain(|peer, begun| {
            match self.advance_peer(*peer, begun, cm_result.remove(peer)).transpose() {
                Some(how) => {
                    over.push((*peer, how));
                    false
                }
                None => true,
            }
        });
        self.begun = begun;
        over
    }

    /// Takes the possible steps for one peer, and returns its link after the last step. `cm_result`
    /// is the result of the connection manager, if it has finished.
    fn advance_peer(
        &self,
        peer: Rank,
        begun: &mut PendingQp,
        cm_result: Option<Result<ConnectedQp, VerbsError>>,
    ) -> Result<Option<Box<VerbsLink>>, WireUpError> {
        let PendingQp { wire, step, is_peer_ready, until } = begun;
        if let Some(connected) = cm_result {
            let connected = connected.map_err(self.fabric.no_rdma(&self.table, peer))?;
            *step = self.is_ready(peer, wire, connected)?;
        }
        *step = match std::mem::replace(step, QpStep::Connects) {
            QpStep::AwaitsPair(pair) => match self.receive(peer, wire)? {
                Some(said) => {
                    let connected = self.join(peer, pair, said)?;
                    self.is_ready(peer, wire, connected)?
                }
                None => QpStep::AwaitsPair(pair),
            },
            QpStep::AwaitsGo => match self.receive(peer, wire)? {
                Some(GO) => {
                    let job = self.job(peer)?;
                    self.spawn_cm_call(peer, *until, move |cm_context| cm::dial(job, cm_context))?;
                    QpStep::Connects
                }
                Some(_) => return Err(self.not_ready(peer, "it sent an unexpected message")),
                None => QpStep::AwaitsGo,
            },
            QpStep::Failed(error) => return Err(error),
            step => {
                *is_peer_ready = *is_peer_ready || self.receive::<1>(peer, wire)?.is_some();
                step
            }
        };
        match std::mem::replace(step, QpStep::Connects) {
            QpStep::AwaitsReady(connected) if *is_peer_ready => Ok(Some(connected.link())),
            _ if *until <= Instant::now() => {
                Err(self.not_ready(peer, "it has not answered in time"))
            }
            other => {
                *step = other;
                Ok(None)
            }
        }
    }

    fn join(
        &self,
        peer: Rank,
        pair: QueuePair<Prepared>,
        said: [u8; PAIR],
    ) -> Result<ConnectedQp, WireUpError> {
        let [qpn, psn] = decode_pair(said);
        let told = QpAdvert { peer: self.fabric.me.0, qpn, psn };
        self.fabric.join(&self.table, peer, pair, &told, self.theirs_of(peer)?)
    }

    /// Sends the peer the message that this rank is connected.
    fn is_ready(
        &self,
        peer: Rank,
        wire: &HandshakeSocket,
        connected: ConnectedQp,
    ) -> Result<QpStep, WireUpError> {
        let side = match connected.begins {
            FirstSender::Local => ConnectedSide::Silent(Box::new(connected)),
            FirstSender::Peer | FirstSender::Either => {
                ConnectedSide::Listens(Box::new(connected.link()))
            }
        };
        self.send(peer, wire, &GO)?;
        Ok(QpStep::AwaitsReady(side))
    }

    /// Accepts the connection requests of the peers that may send one, and rejects all others.
    fn accept_requests(&mut self) {
        let mut requests = Vec::new();
        for listener in self.fabric.ports.values().filter_map(|port| port.listener.as_ref()) {
            let next = || listener.next_request(Instant::now()).transpose();
            while let Some(request) = next() {
                let is_over = request.is_err();
                requests.push(request);
                if is_over {
                    break;
                }
            }
        }
        for request in requests {
            let may_request = |peer: &Rank| self.awaited().any(|awaited| awaited == *peer);
            let (peer, request) = match request {
                Ok(request) => (self.fabric.requester(&request).filter(may_request), Ok(request)),
                // The error concerns an unknown peer; report it for one of the expected peers.
                Err(error) => (self.awaited().next(), Err(error)),
            };
            if let Some(peer) = peer {
                let step =
                    self.accept(peer, request).map_or_else(QpStep::Failed, |()| QpStep::Connects);
                self.begun.entry(peer).and_modify(|begun| begun.step = step);
            } else if let Ok(request) = request {
                request.reject();
            }
        }
    }

    fn accept(
        &self,
        peer: Rank,
        request: Result<ConnectRequest, VerbsError>,
    ) -> Result<(), WireUpError> {
        let request = request.map_err(self.fabric.no_rdma(&self.table, peer))?;
        let until = self.begun.get(&peer).map_or_else(Instant::now, |begun| begun.until);
        let job = self.job(peer)?;
        self.spawn_cm_call(peer, until, move |cm_context| cm::accept(job, request, cm_context))
    }

    /// Returns the peers whose connection requests this rank waits for.
    fn awaited(&self) -> impl Iterator<Item = Rank> {
        let awaited = self.begun.iter().filter(|(_, it)| matches!(it.step, QpStep::AwaitsRequest));
        awaited.map(|(peer, _)| *peer)
    }

    fn theirs_of(&self, peer: Rank) -> Result<&PeerAdvert, WireUpError> {
        let why = "it has advertised no RDMA";
        self.theirs.get(&peer).ok_or(WireUpError::Contact { rank: peer, why })
    }

    fn job(&self, peer: Rank) -> Result<cm::CmTarget, WireUpError> {
        self.fabric.job(&self.table, peer, self.theirs_of(peer)?)
    }

    /// Runs a blocking call of the connection manager in a thread of its own.
    fn spawn_cm_call(
        &self,
        peer: Rank,
        until: Instant,
        connects: impl FnOnce(&CmContext) -> Result<ConnectedQp, VerbsError> + Send + 'static,
    ) -> Result<(), WireUpError> {
        let (results, wake) = (self.results.clone(), self.wake.clone());
        let cm_context = self.fabric.cm_context(&self.table, until);
        let runs = move || {
            // Fails only after the connector was dropped.
            let _ = results.send((peer, connects(&cm_context)));
            wake.wake();
        };
        let thread = thread::Builder::new().name("rlaunch rdma_cm".to_owned()).spawn(runs);
        let operation = "start the thread that connects by rdma_cm";
        thread.map(drop).map_err(|source| WireUpError::System { operation, source })
    }

    fn send(&self, peer: Rank, wire: &HandshakeSocket, said: &[u8]) -> Result<(), WireUpError> {
        wire.send(said).map_err(|error| self.socket_error(peer, &error))
    }

    /// Returns the peer's next message of `N` bytes; `None` until it has arrived completely.
    fn receive<const N: usize>(
        &self,
        peer: Rank,
        wire: &mut HandshakeSocket,
    ) -> Result<Option<[u8; N]>, WireUpError> {
        let said = wire.receive(N).map_err(|error| self.socket_error(peer, &error))?;
        Ok(said.and_then(|said| said.first_chunk().copied()))
    }

    fn socket_error(&self, peer: Rank, error: &io::Error) -> WireUpError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.not_ready(peer, "it has given up or ended"),
            _ => self.not_ready(peer, &error.to_string()),
        }
    }

    fn not_ready(&self, peer: Rank, why: &str) -> WireUpError {
        let nowhere = || PeerName { rank: peer.0, host: "".into() };
        let peer = name(&self.table, peer).unwrap_or_else(nowhere);
        WireUpError::NotReady { peer, why: format!("{why} while RDMA was being connected") }
    }
}

impl ConnectedSide {
    fn link(self) -> Box<VerbsLink> {
        match self {
            ConnectedSide::Silent(connected) => Box::new(connected.link()),
            ConnectedSide::Listens(link) => link,
        }
    }
}

fn encode_pair(qpn: u32, psn: u32) -> [u8; PAIR] {
    let mut said = [0; PAIR];
    said[..4].copy_from_slice(&qpn.to_le_bytes());
    said[4..].copy_from_slice(&psn.to_le_bytes());
    said
}

fn decode_pair(said: [u8; PAIR]) -> [u32; 2] {
    let both = u64::from_le_bytes(said);
    [both as u32, (both >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_that_is_told_of_is_understood() {
        let said = encode_pair(0x00ab_cdef, 0x0012_3456);
        assert_eq!(said, [0xef, 0xcd, 0xab, 0, 0x56, 0x34, 0x12, 0]);
        assert_eq!(decode_pair(said), [0x00ab_cdef, 0x0012_3456]);
    }
}
