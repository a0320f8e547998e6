//! Queue pairs that are connected when two ranks exchange their first message.
//!
//! Two ranks first connect over TCP. Over this socket they exchange the data that the ranks of a
//! small job exchange in the all-gather:
//!
//! 1. Each rank sends the number of its queue pair and the sequence number of its first packet
//!    (PSN). If the connection manager connects the pair, only the higher rank sends a message,
//!    [`READY`], and the lower rank then sends its connection request.
//! 2. Each rank connects its queue pair and sends [`READY`].
//! 3. A rank that has received the [`READY`] of step 2 passes the link to its user, and closes the
//!    socket.
//!
//! Only calls of the connection manager block; these calls run in threads of their own.

use super::super::handshake::HandshakeSocket;
use super::super::wake_fd;
use super::cm::{self, CmContext, CmResult, QpAdvert};
use super::{ConnectError, ConnectedQp, Contact, Fabric, FirstSender, PeerAdvert, name};
use crate::transport::verbs::VerbsLink;
use crate::transport::{LinkHint, WakeFd};
use crate::types::PeerName;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::RankTable;
use rlaunch_verbs::{ConnectRequest, Prepared, QueuePair, VerbsError};
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;
use std::{io, thread};

/// Length in bytes of the message about a queue pair: its number and first PSN.
const PAIR_LENGTH: usize = 8;
/// Message of one byte. In step 1 it permits the peer to send its connection request; in step 2 it
/// says that this rank is connected.
const READY: [u8; 1] = [1];

/// RDMA ports of this rank, and the peers with which it is connecting.
#[derive(Debug)]
pub(crate) struct LazyRdma {
    fabric: Fabric,
    table: Arc<RankTable>,
    adverts: BTreeMap<Rank, PeerAdvert>,
    pending: BTreeMap<Rank, PendingQp>,
    /// Results of the threads that call the connection manager. A thread that has sent its result
    /// wakes the connecting thread through `wake`.
    done: Receiver<CmResult>,
    results: Sender<CmResult>,
    wake: Arc<WakeFd>,
}

/// Progress of connecting with one peer.
#[derive(Debug)]
struct PendingQp {
    handshake: HandshakeSocket,
    step: QpStep,
    is_peer_ready: bool,
    deadline: Instant,
}

#[derive(Debug)]
enum QpStep {
    /// Waits for the data of the peer's queue pair. This variant contains this rank's queue pair.
    AwaitsPair(QueuePair<Prepared>),
    /// Waits until this rank may send its connection request.
    AwaitsPermission,
    /// Waits for the peer's connection request.
    AwaitsRequest,
    /// Waits for the result of the connection manager.
    Connects,
    /// This rank is connected, and waits until the peer is.
    AwaitsReady(ConnectedSide),
    Failed(ConnectError),
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
    /// Makes a connector for the peers that have advertised RDMA ports. None of these peers is
    /// connected yet.
    pub(crate) fn lazy(
        self,
        contacts: &[Contact],
        table: &Arc<RankTable>,
    ) -> Result<LazyRdma, ConnectError> {
        let adverts = self.adverts(contacts)?;
        let ((results, done), table, wake) = (channel(), table.clone(), Arc::new(wake_fd()?));
        Ok(LazyRdma { fabric: self, table, adverts, pending: BTreeMap::new(), done, results, wake })
    }
}

impl LazyRdma {
    /// Returns the properties of the links that this connector will make, by peer.
    pub(crate) fn link_hint(&self) -> BTreeMap<Rank, LinkHint> {
        let link_hint = |(_, config): &PeerAdvert| VerbsLink::link_hint(config.payload);
        self.adverts.iter().map(|(peer, advert)| (*peer, link_hint(advert))).collect()
    }

    /// Returns whether this rank reaches `peer` by RDMA.
    pub(crate) fn uses_rdma(&self, peer: Rank) -> bool {
        self.adverts.contains_key(&peer)
    }

    /// Returns whether this rank is connecting a queue pair with `peer`.
    pub(crate) fn is_connecting(&self, peer: Rank) -> bool {
        self.pending.contains_key(&peer)
    }

    /// Starts to connect a queue pair with a peer. `socket` is the TCP connection to the peer;
    /// `deadline` is the time limit.
    pub(crate) fn begin(
        &mut self,
        peer: Rank,
        socket: TcpStream,
        deadline: Instant,
    ) -> Result<(), ConnectError> {
        let handshake = HandshakeSocket::new(socket);
        let step = match self.fabric.prepare(&self.table, peer)? {
            Some(pair) => {
                let own = pair.endpoint();
                self.send(peer, &handshake, &encode_pair(own.qpn, own.psn))?;
                QpStep::AwaitsPair(pair)
            }
            None if self.fabric.me < peer => QpStep::AwaitsPermission,
            None => {
                self.send(peer, &handshake, &READY)?;
                QpStep::AwaitsRequest
            }
        };
        self.pending.insert(peer, PendingQp { handshake, step, is_peer_ready: false, deadline });
        Ok(())
    }

    /// Returns the descriptors that become readable when there is work for [`LazyRdma::advance`].
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let listeners = self.fabric.ports.values().filter_map(|port| port.listener.as_ref());
        // A peer that is connected sends nothing more on the socket.
        let handshakes = self.pending.values().filter(|pending| !pending.is_peer_ready);
        let mut fds = vec![self.wake.as_fd()];
        fds.extend(listeners.map(AsFd::as_fd));
        fds.extend(handshakes.map(|pending| pending.handshake.socket().as_fd()));
        fds
    }

    /// Returns the earliest time limit of all pending peers.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.deadline).min()
    }

    /// Takes all steps that are possible, and returns the links or errors of the peers that have
    /// finished.
    pub(crate) fn advance(&mut self) -> Vec<(Rank, Result<Box<VerbsLink>, ConnectError>)> {
        self.wake.clear();
        self.accept_requests();
        let mut cm_result: BTreeMap<_, _> = self.done.try_iter().collect();
        let mut finished = Vec::new();
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|peer, pending| {
            match self.advance_peer(*peer, pending, cm_result.remove(peer)).transpose() {
                Some(result) => {
                    finished.push((*peer, result));
                    false
                }
                None => true,
            }
        });
        self.pending = pending;
        finished
    }

    /// Takes the steps that are possible for one peer. Returns the link after the last step, `None`
    /// before. `cm_result` is the result of the connection manager, if it has finished.
    fn advance_peer(
        &self,
        peer: Rank,
        pending: &mut PendingQp,
        cm_result: Option<Result<ConnectedQp, VerbsError>>,
    ) -> Result<Option<Box<VerbsLink>>, ConnectError> {
        let PendingQp { handshake, step, is_peer_ready, deadline } = pending;
        if let Some(connected) = cm_result {
            let connected = connected.map_err(self.fabric.no_rdma(&self.table, peer))?;
            *step = self.announce_ready(peer, handshake, connected)?;
        }
        *step = match std::mem::replace(step, QpStep::Connects) {
            QpStep::AwaitsPair(pair) => match self.receive(peer, handshake)? {
                Some(message) => {
                    let connected = self.connect_pair(peer, pair, message)?;
                    self.announce_ready(peer, handshake, connected)?
                }
                None => QpStep::AwaitsPair(pair),
            },
            QpStep::AwaitsPermission => match self.receive(peer, handshake)? {
                Some(READY) => {
                    let target = self.cm_target(peer)?;
                    self.spawn_cm_call(peer, *deadline, move |cm_context| {
                        cm::dial(target, cm_context)
                    })?;
                    QpStep::Connects
                }
                Some(_) => return Err(self.not_ready(peer, "it sent an unexpected message")),
                None => QpStep::AwaitsPermission,
            },
            QpStep::Failed(error) => return Err(error),
            step => {
                *is_peer_ready = *is_peer_ready || self.receive::<1>(peer, handshake)?.is_some();
                step
            }
        };
        match std::mem::replace(step, QpStep::Connects) {
            QpStep::AwaitsReady(connected) if *is_peer_ready => Ok(Some(connected.link())),
            _ if *deadline <= Instant::now() => {
                Err(self.not_ready(peer, "it has not answered in time"))
            }
            other => {
                *step = other;
                Ok(None)
            }
        }
    }

    fn connect_pair(
        &self,
        peer: Rank,
        pair: QueuePair<Prepared>,
        message: [u8; PAIR_LENGTH],
    ) -> Result<ConnectedQp, ConnectError> {
        let [qpn, psn] = decode_pair(message);
        let qp_advert = QpAdvert { peer: self.fabric.me.0, qpn, psn };
        self.fabric.connect_pair(&self.table, peer, pair, &qp_advert, self.advert_of(peer)?)
    }

    /// Sends the peer the message that this rank is connected.
    fn announce_ready(
        &self,
        peer: Rank,
        handshake: &HandshakeSocket,
        connected: ConnectedQp,
    ) -> Result<QpStep, ConnectError> {
        let side = match connected.first_sender {
            FirstSender::Local => ConnectedSide::Silent(Box::new(connected)),
            FirstSender::Peer | FirstSender::Either => {
                ConnectedSide::Listens(Box::new(connected.link()))
            }
        };
        self.send(peer, handshake, &READY)?;
        Ok(QpStep::AwaitsReady(side))
    }

    /// Accepts the connection requests of the peers that may send one, and rejects all other
    /// requests.
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
                self.pending.entry(peer).and_modify(|pending| pending.step = step);
            } else if let Ok(request) = request {
                request.reject();
            }
        }
    }

    fn accept(
        &self,
        peer: Rank,
        request: Result<ConnectRequest, VerbsError>,
    ) -> Result<(), ConnectError> {
        let request = request.map_err(self.fabric.no_rdma(&self.table, peer))?;
        let deadline =
            self.pending.get(&peer).map_or_else(Instant::now, |pending| pending.deadline);
        let target = self.cm_target(peer)?;
        self.spawn_cm_call(peer, deadline, move |cm_context| {
            cm::accept(target, request, cm_context)
        })
    }

    /// Returns the peers whose connection requests this rank waits for.
    fn awaited(&self) -> impl Iterator<Item = Rank> {
        let awaited =
            self.pending.iter().filter(|(_, it)| matches!(it.step, QpStep::AwaitsRequest));
        awaited.map(|(peer, _)| *peer)
    }

    fn advert_of(&self, peer: Rank) -> Result<&PeerAdvert, ConnectError> {
        let why = "it has advertised no RDMA";
        self.adverts.get(&peer).ok_or(ConnectError::Contact { rank: peer, why })
    }

    fn cm_target(&self, peer: Rank) -> Result<cm::CmTarget, ConnectError> {
        self.fabric.cm_target(&self.table, peer, self.advert_of(peer)?)
    }

    /// Runs a blocking call of the connection manager in a thread of its own.
    fn spawn_cm_call(
        &self,
        peer: Rank,
        deadline: Instant,
        call: impl FnOnce(&CmContext) -> Result<ConnectedQp, VerbsError> + Send + 'static,
    ) -> Result<(), ConnectError> {
        let (results, wake) = (self.results.clone(), self.wake.clone());
        let cm_context = self.fabric.cm_context(&self.table, deadline);
        let body = move || {
            // Fails only after the connector was dropped.
            let _ = results.send((peer, call(&cm_context)));
            wake.wake();
        };
        let thread = thread::Builder::new().name("rlaunch rdma_cm".to_owned()).spawn(body);
        thread.map(drop).map_err(ConnectError::system("start the thread that connects by rdma_cm"))
    }

    fn send(
        &self,
        peer: Rank,
        handshake: &HandshakeSocket,
        message: &[u8],
    ) -> Result<(), ConnectError> {
        handshake.send(message).map_err(|error| self.socket_error(peer, &error))
    }

    /// Returns the peer's next message of `N` bytes; `None` until it has arrived completely.
    fn receive<const N: usize>(
        &self,
        peer: Rank,
        handshake: &mut HandshakeSocket,
    ) -> Result<Option<[u8; N]>, ConnectError> {
        let message = handshake.receive(N).map_err(|error| self.socket_error(peer, &error))?;
        Ok(message.and_then(|message| message.first_chunk().copied()))
    }

    fn socket_error(&self, peer: Rank, error: &io::Error) -> ConnectError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.not_ready(peer, "it has given up or ended"),
            _ => self.not_ready(peer, &error.to_string()),
        }
    }

    fn not_ready(&self, peer: Rank, why: &str) -> ConnectError {
        let nowhere = || PeerName { rank: peer.0, host: "".into() };
        let peer = name(&self.table, peer).unwrap_or_else(nowhere);
        ConnectError::NotReady { peer, why: format!("{why} while RDMA was being connected") }
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

fn encode_pair(qpn: u32, psn: u32) -> [u8; PAIR_LENGTH] {
    let mut message = [0; PAIR_LENGTH];
    message[..4].copy_from_slice(&qpn.to_le_bytes());
    message[4..].copy_from_slice(&psn.to_le_bytes());
    message
}

fn decode_pair(message: [u8; PAIR_LENGTH]) -> [u32; 2] {
    let both = u64::from_le_bytes(message);
    [both as u32, (both >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_that_is_told_of_is_understood() {
        let message = encode_pair(0x00ab_cdef, 0x0012_3456);
        assert_eq!(message, [0xef, 0xcd, 0xab, 0, 0x56, 0x34, 0x12, 0]);
        assert_eq!(decode_pair(message), [0x00ab_cdef, 0x0012_3456]);
    }
}
