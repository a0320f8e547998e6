//! Queue pairs of ranks that connect when they first speak.
//!
//! Two such ranks have met over TCP, and tell each other over that socket what others put into the
//! gather: which queue pairs are to be connected or, where the connection manager does it, that the
//! lower rank may knock; then that each is ready. With that the socket has served. Nothing in here
//! waits but the connection manager's calls, in threads of their own.

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

/// What is told of a queue pair, in bytes: its number and its first PSN.
const PAIR: usize = 8;
/// All else that is told: that the other end may knock, and that this one is ready.
const GO: [u8; 1] = [1];

/// This rank's ports, and the peers that it connects with just now.
#[derive(Debug)]
pub(crate) struct LazyRdma {
    fabric: Fabric,
    table: Arc<RankTable>,
    theirs: BTreeMap<Rank, PeerAdvert>,
    begun: BTreeMap<Rank, PendingQp>,
    /// From the threads, which ring the bell.
    done: Receiver<CmResult>,
    tell: Sender<CmResult>,
    wake: Arc<WakeFd>,
}

/// A peer that this rank connects with.
#[derive(Debug)]
struct PendingQp {
    wire: HandshakeSocket,
    step: QpStep,
    is_peer_ready: bool,
    until: Instant,
}

#[derive(Debug)]
enum QpStep {
    /// This end's, until the peer has told of its own.
    AwaitsPair(QueuePair<Prepared>),
    /// Until this rank may knock.
    AwaitsGo,
    /// Until the peer has knocked.
    AwaitsRequest,
    /// Until the connection manager is through.
    Connects,
    /// Until the peer is ready, too.
    AwaitsReady(ConnectedSide),
    Failed(WireUpError),
}

/// A queue pair that is connected.
#[derive(Debug)]
enum ConnectedSide {
    /// This end speaks first, and the peer is silent until then.
    Silent(Box<ConnectedQp>),
    /// The peer may speak as soon as it knows that this end is ready.
    Listens(Box<VerbsLink>),
}

impl Fabric {
    /// Connects with none of the peers that have told of their ports before it is wanted.
    pub(crate) fn lazy(
        self,
        contacts: &[Contact],
        table: &Arc<RankTable>,
    ) -> Result<LazyRdma, WireUpError> {
        let theirs = self.theirs(contacts)?;
        let ((tell, done), table, wake) = (channel(), table.clone(), Arc::new(wake_fd()?));
        Ok(LazyRdma { fabric: self, table, theirs, begun: BTreeMap::new(), done, tell, wake })
    }
}

impl LazyRdma {
    /// What links with its peers will be.
    pub(crate) fn link_hint(&self) -> BTreeMap<Rank, LinkHint> {
        let link_hint = |(_, config): &PeerAdvert| VerbsLink::link_hint(config.payload);
        self.theirs.iter().map(|(peer, theirs)| (*peer, link_hint(theirs))).collect()
    }

    /// Whether RDMA leads to this peer.
    pub(crate) fn speaks_with(&self, peer: Rank) -> bool {
        self.theirs.contains_key(&peer)
    }

    /// Whether a queue pair with this peer is being connected.
    pub(crate) fn begins(&self, peer: Rank) -> bool {
        self.begun.contains_key(&peer)
    }

    /// The two have met by this socket, and connect until then.
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

    /// What becomes readable when there is something to [`advance`](Later::advance).
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let listeners = self.fabric.ports.values().filter_map(|port| port.listener.as_ref());
        // Who is ready has nothing more to say here.
        let wires = self.begun.values().filter(|begun| !begun.is_peer_ready);
        let mut fds = vec![self.wake.as_fd()];
        fds.extend(listeners.map(AsFd::as_fd));
        fds.extend(wires.map(|begun| begun.wire.socket().as_fd()));
        fds
    }

    /// When the first of the peers has had its time.
    pub(crate) fn end(&self) -> Option<Instant> {
        self.begun.values().map(|begun| begun.until).min()
    }

    /// Does what there is to do, and says who is connected, or never will be.
    pub(crate) fn advance(&mut self) -> Vec<(Rank, Result<Box<VerbsLink>, WireUpError>)> {
        self.wake.clear();
        self.let_in();
        let mut came: BTreeMap<_, _> = self.done.try_iter().collect();
        let mut over = Vec::new();
        let mut begun = std::mem::take(&mut self.begun);
        begun.retain(|peer, begun| match self.go_on(*peer, begun, came.remove(peer)).transpose() {
            Some(how) => {
                over.push((*peer, how));
                false
            }
            None => true,
        });
        self.begun = begun;
        over
    }

    /// Takes the steps that can be taken, and returns the link if that was the last; `came` is what the
    /// connection manager has made.
    fn go_on(
        &self,
        peer: Rank,
        begun: &mut PendingQp,
        came: Option<Result<ConnectedQp, VerbsError>>,
    ) -> Result<Option<Box<VerbsLink>>, WireUpError> {
        let PendingQp { wire, step, is_peer_ready, until } = begun;
        if let Some(joined) = came {
            let joined = joined.map_err(self.fabric.no_rdma(&self.table, peer))?;
            *step = self.is_ready(peer, wire, joined)?;
        }
        *step = match std::mem::replace(step, QpStep::Connects) {
            QpStep::AwaitsPair(pair) => match self.receive(peer, wire)? {
                Some(said) => {
                    let joined = self.join(peer, pair, said)?;
                    self.is_ready(peer, wire, joined)?
                }
                None => QpStep::AwaitsPair(pair),
            },
            QpStep::AwaitsGo => match self.receive(peer, wire)? {
                Some(GO) => {
                    let job = self.job(peer)?;
                    self.aside(peer, *until, move |cm_context| cm::dial(job, cm_context))?;
                    QpStep::Connects
                }
                Some(_) => return Err(self.not_ready(peer, "it speaks out of turn")),
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

    /// This end is connected, and tells the peer.
    fn is_ready(
        &self,
        peer: Rank,
        wire: &HandshakeSocket,
        joined: ConnectedQp,
    ) -> Result<QpStep, WireUpError> {
        let connected = match joined.begins {
            FirstSender::Local => ConnectedSide::Silent(Box::new(joined)),
            FirstSender::Peer | FirstSender::Either => {
                ConnectedSide::Listens(Box::new(joined.link()))
            }
        };
        self.send(peer, wire, &GO)?;
        Ok(QpStep::AwaitsReady(connected))
    }

    /// Lets those in who may knock.
    fn let_in(&mut self) {
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
                // Whosever that would have been.
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
        self.aside(peer, until, move |cm_context| cm::accept(job, request, cm_context))
    }

    /// Those who may knock.
    fn awaited(&self) -> impl Iterator<Item = Rank> {
        let awaited = self.begun.iter().filter(|(_, it)| matches!(it.step, QpStep::AwaitsRequest));
        awaited.map(|(peer, _)| *peer)
    }

    fn theirs_of(&self, peer: Rank) -> Result<&PeerAdvert, WireUpError> {
        let why = "it has told nothing of RDMA";
        self.theirs.get(&peer).ok_or(WireUpError::Contact { rank: peer, why })
    }

    fn job(&self, peer: Rank) -> Result<cm::CmTarget, WireUpError> {
        self.fabric.job(&self.table, peer, self.theirs_of(peer)?)
    }

    /// Has the connection manager connect, in a thread that ends with it.
    fn aside(
        &self,
        peer: Rank,
        until: Instant,
        connects: impl FnOnce(&CmContext) -> Result<ConnectedQp, VerbsError> + Send + 'static,
    ) -> Result<(), WireUpError> {
        let (tell, wake) = (self.tell.clone(), self.wake.clone());
        let cm_context = self.fabric.cm_context(&self.table, until);
        let runs = move || {
            // Nobody hears of it once the ranks have parted.
            let _ = tell.send((peer, connects(&cm_context)));
            wake.wake();
        };
        let thread = thread::Builder::new().name("rlaunch rdma_cm".to_owned()).spawn(runs);
        let operation = "start the thread that connects by rdma_cm";
        thread.map(drop).map_err(|source| WireUpError::System { operation, source })
    }

    fn send(&self, peer: Rank, wire: &HandshakeSocket, said: &[u8]) -> Result<(), WireUpError> {
        wire.send(said).map_err(|error| self.parted(peer, &error))
    }

    /// What the peer has said, once so many bytes have come.
    fn receive<const N: usize>(
        &self,
        peer: Rank,
        wire: &mut HandshakeSocket,
    ) -> Result<Option<[u8; N]>, WireUpError> {
        let said = wire.receive(N).map_err(|error| self.parted(peer, &error))?;
        Ok(said.and_then(|said| said.first_chunk().copied()))
    }

    fn parted(&self, peer: Rank, error: &io::Error) -> WireUpError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.not_ready(peer, "it has given up or ended"),
            _ => self.not_ready(peer, &error.to_string()),
        }
    }

    fn not_ready(&self, peer: Rank, why: &str) -> WireUpError {
        let nowhere = || PeerName { rank: peer.0, host: "".into() };
        let peer = name(&self.table, peer).unwrap_or_else(nowhere);
        WireUpError::NotReady { peer, why: format!("{why} while RDMA was connected") }
    }
}

impl ConnectedSide {
    fn link(self) -> Box<VerbsLink> {
        match self {
            ConnectedSide::Silent(joined) => Box::new(joined.link()),
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
