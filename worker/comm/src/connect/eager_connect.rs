//! Connects a rank to all its peers at once, in one thread.
//!
//! The numbers of two ranks decide which of them dials ([`dials`]). If no connection has arrived
//! after a while, the accepting rank dials as well, because a firewall may allow only one
//! direction. Then two connections may be made. The rank that normally accepts decides between
//! them: it keeps the connection that was complete first, whether it accepted or dialled that
//! connection.

use super::handshake::{self, AcceptOutcome, Dial, DialOutcome, Ends, InboundConnection, RankKey};
use super::{ConnectError, Contact, DialError, PeerAddress, RankListener, UnconnectedPair};
use crate::transport::tcp::TcpLink;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::RankTable;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Time that a rank waits for a connection from a peer before it dials the peer itself.
const REVERSE_AFTER: Duration = Duration::from_millis(300);
/// Pause between the first two attempts to reach a peer, and the longest pause. Each pause is twice
/// as long as the one before.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Number of unauthenticated connections that are kept open, in addition to one for each peer that
/// is not connected.
const MAX_UNAUTHENTICATED: usize = 64;

/// Connects this rank, `me`, with all `peers`, which listen at their `contacts` (indexed by rank).
/// Fails if a peer is not connected within `timeout`.
pub(crate) fn connect_all(
    listener: RankListener,
    contacts: &[Contact],
    table: &RankTable,
    me: Rank,
    peers: &[Rank],
    timeout: Duration,
) -> Result<BTreeMap<Rank, TcpLink>, ConnectError> {
    connect_all_within(listener, contacts, table, me, peers, timeout, REVERSE_AFTER)
}

/// Does the work of [`connect_all`]. Dials a peer that should dial this rank but has not connected
/// within `reverse_after`.
pub(super) fn connect_all_within(
    listener: RankListener,
    contacts: &[Contact],
    table: &RankTable,
    me: Rank,
    peers: &[Rank],
    timeout: Duration,
    reverse_after: Duration,
) -> Result<BTreeMap<Rank, TcpLink>, ConnectError> {
    let begin = Instant::now();
    let first = |peer: Rank| Some(if dials(me, peer) { begin } else { begin + reverse_after });
    let mut connector = TcpConnector::new(listener, contacts, table, me, peers, first)?;
    while connector.missing > 0 {
        if begin.elapsed() >= timeout {
            return Err(connector.unconnected(table, timeout));
        }
        connector.step(begin + timeout, &[])?;
    }
    let connected = connector.peers.into_iter();
    let connected = connected.filter_map(|(rank, peer)| Some((rank, peer.socket()?)));
    connected.map(|(rank, socket)| Ok((rank, link(rank, socket)?))).collect()
}

/// Returns whether rank `from` dials rank `to`, and not the reverse. By this rule each rank dials
/// about half of its peers.
pub(super) fn dials(from: Rank, to: Rank) -> bool {
    ((from.0 ^ to.0) & 1 == 0) == (from < to)
}

#[derive(Debug)]
struct PeerConnection {
    address: SocketAddr,
    key: RankKey,
    connection: Connection,
}

impl PeerConnection {
    fn is_connected(&self) -> bool {
        matches!(self.connection, Connection::InUse(_))
    }

    fn socket(self) -> Option<TcpStream> {
        match self.connection {
            Connection::InUse(socket) => Some(socket),
            Connection::Missing(_) => None,
        }
    }
}

/// Makes a link from the socket of an authenticated peer.
pub(super) fn link(rank: Rank, socket: TcpStream) -> Result<TcpLink, ConnectError> {
    let why = "its socket cannot be set up";
    TcpLink::new(socket).map_err(|_| ConnectError::Contact { rank, why })
}

#[derive(Debug)]
enum Connection {
    Missing(Missing),
    InUse(TcpStream),
}

#[derive(Debug)]
struct Missing {
    /// Time of the next attempt to dial; `None` while an attempt is running, or if this rank shall
    /// only accept.
    next: Option<Instant>,
    pause: Duration,
    /// Error of the last attempt; `None` if no attempt has failed.
    why: Option<DialError>,
    /// Whether this rank is the one that decides which connection is used, and has sent its proof
    /// on a connection that it dialled. The peer may use that connection, so this rank accepts no
    /// other from the peer meanwhile.
    offered: bool,
}

#[derive(Debug)]
pub(super) struct TcpConnector {
    listener: RankListener,
    me: Rank,
    peers: BTreeMap<Rank, PeerConnection>,
    missing: usize,
    dials: Vec<Dial>,
    inbound: VecDeque<InboundConnection>,
}

impl TcpConnector {
    /// Makes a connector. `first` returns the time at which a peer is first dialled; `None` if this
    /// rank waits until the peer dials.
    pub(super) fn new(
        listener: RankListener,
        contacts: &[Contact],
        table: &RankTable,
        me: Rank,
        peers: &[Rank],
        first: impl Fn(Rank) -> Option<Instant>,
    ) -> Result<TcpConnector, ConnectError> {
        let mut by_rank = BTreeMap::new();
        for &rank in peers {
            let row = table.ranks().get(rank.index());
            let contact = contacts.get(rank.index()).and_then(|contact| contact.tcp.as_ref());
            let (Some(row), Some(contact)) = (row, contact) else {
                return Err(ConnectError::Contact { rank, why: "it has no TCP listener" });
            };
            let next = first(rank);
            let missing = Missing { next, pause: PAUSE, why: None, offered: false };
            let peer = PeerConnection {
                address: SocketAddr::new(row.address, contact.port),
                key: contact.key.clone(),
                connection: Connection::Missing(missing),
            };
            by_rank.insert(rank, peer);
        }
        let missing = by_rank.len();
        raise_file_limit(missing + MAX_UNAUTHENTICATED);
        let (dials, inbound) = (Vec::new(), VecDeque::new());
        Ok(TcpConnector { listener, me, peers: by_rank, missing, dials, inbound })
    }

    /// Schedules an attempt to dial the peer now, if it is not connected.
    pub(super) fn want(&mut self, rank: Rank) {
        if let Some(missing) = self.missing_mut(rank) {
            missing.next = Some(Instant::now());
        }
    }

    /// Removes the peers that have connected, and returns them with their sockets.
    pub(super) fn take_connected(&mut self) -> Vec<(Rank, TcpStream)> {
        let connected = self.peers.extract_if(.., |_, peer| peer.is_connected());
        connected.filter_map(|(rank, peer)| Some((rank, peer.socket()?))).collect()
    }

    /// Returns whether this rank is dialling a peer.
    pub(super) fn is_dialling(&self, rank: Rank) -> bool {
        self.dials.iter().any(|dial| dial.ends.to == rank)
    }

    /// Stops waiting for a peer. Returns `false` if the connector does not know the peer.
    pub(super) fn forget(&mut self, rank: Rank) -> bool {
        let Some(peer) = self.peers.remove(&rank) else { return false };
        self.missing -= usize::from(!peer.is_connected());
        true
    }

    /// Stops waiting for a peer, and returns the error that explains why it has not connected after
    /// `waited`. Returns `None` if the connector does not know the peer.
    pub(super) fn give_up(
        &mut self,
        rank: Rank,
        table: &RankTable,
        waited: Duration,
    ) -> Option<ConnectError> {
        let peer = self.peers.remove(&rank)?;
        self.dials.retain(|dial| dial.ends.to != rank);
        self.missing -= usize::from(!peer.is_connected());
        Some(unconnected(table, (self.me, self.listener.address), (rank, peer), (waited, 0)))
    }

    /// Waits until a socket is ready, a descriptor of `extra_fds` is readable, or `deadline` is
    /// reached. Then takes the steps that are possible.
    pub(super) fn step(
        &mut self,
        deadline: Instant,
        extra_fds: &[BorrowedFd<'_>],
    ) -> Result<(), ConnectError> {
        self.give_up_expired();
        self.dial_due()?;
        let ready = self.wait(deadline, extra_fds)?;
        let (listener, ready) = ready.split_first().unwrap_or((&false, &[]));
        let (of_dials, of_inbound) = ready.split_at(self.dials.len().min(ready.len()));
        self.advance_dials(of_dials)?;
        self.advance_inbound(of_inbound);
        if *listener {
            let most = self.missing + MAX_UNAUTHENTICATED;
            let admitted = handshake::admit(&self.listener.listener, &mut self.inbound, most);
            admitted.map_err(ConnectError::system("accept peers"))?;
        }
        Ok(())
    }

    fn give_up_expired(&mut self) {
        let now = Instant::now();
        self.inbound.retain(|connection| connection.expires() > now);
        let (kept, expired) = std::mem::take(&mut self.dials)
            .into_iter()
            .partition(|dial: &Dial| dial.expires().is_none_or(|expires| expires > now));
        self.dials = kept;
        for dial in expired {
            self.dial_failed(dial.ends, DialError::NoAnswer);
        }
    }

    fn dial_due(&mut self) -> Result<(), ConnectError> {
        let now = Instant::now();
        let mut due = Vec::new();
        for (rank, peer) in &mut self.peers {
            if let Connection::Missing(missing) = &mut peer.connection
                && missing.next.is_some_and(|next| next <= now)
            {
                missing.next = None;
                due.push((Ends { from: self.me, to: *rank }, peer.address));
            }
        }
        for (ends, address) in due {
            match Dial::begin(ends, address) {
                Ok(dial) => self.dials.push(dial),
                Err(source) if is_file_limit(&source) => {
                    return Err(ConnectError::System { operation: "create a socket", source });
                }
                Err(error) => self.dial_failed(ends, error.into()),
            }
        }
        Ok(())
    }

    /// Waits in poll(2). Returns whether the listener, each dialled connection and each accepted
    /// connection are ready, in this order.
    fn wait(
        &self,
        deadline: Instant,
        extra_fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<bool>, ConnectError> {
        let attempts = self.peers.values().filter_map(|peer| match &peer.connection {
            Connection::Missing(missing) => missing.next,
            Connection::InUse(_) => None,
        });
        let expires = self.dials.iter().filter_map(Dial::expires);
        let expires = expires.chain(self.inbound.iter().map(InboundConnection::expires));
        let next = attempts.chain(expires).fold(deadline, Instant::min);
        // Rounded up to milliseconds, so that timers are due when poll(2) returns.
        let timeout = next.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);

        let mut fds = vec![PollFd::new(self.listener.listener.as_fd(), PollFlags::POLLIN)];
        let dials = self.dials.iter();
        fds.extend(dials.map(|dial| PollFd::new(dial.socket().as_fd(), dial.waits_for())));
        let inbound = self.inbound.iter();
        fds.extend(
            inbound.map(|connection| PollFd::new(connection.socket().as_fd(), PollFlags::POLLIN)),
        );
        fds.extend(extra_fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => {
                let (operation, source) = ("wait for peers", errno.into());
                return Err(ConnectError::System { operation, source });
            }
        }
        Ok(fds.iter().map(|fd| fd.any().unwrap_or(false)).collect())
    }

    fn advance_dials(&mut self, ready: &[bool]) -> Result<(), ConnectError> {
        for (dial, ready) in std::mem::take(&mut self.dials).into_iter().zip(ready) {
            if !ready {
                self.dials.push(dial);
                continue;
            }
            let ends = dial.ends;
            let Some(peer) = self.peers.get(&ends.to) else { continue };
            match dial.advance(&peer.key) {
                Ok(DialOutcome::Pending(dial)) => self.dials.push(dial),
                Ok(DialOutcome::Proved(dial)) => {
                    let decides = !dials(self.me, ends.to);
                    if let Some(missing) = self.missing_mut(ends.to) {
                        missing.offered = decides;
                    }
                    self.dials.push(dial);
                }
                Ok(DialOutcome::Accepted(socket)) => self.mark_connected(ends.to, socket),
                Err(DialError::System(source)) if is_file_limit(&source) => {
                    return Err(ConnectError::System { operation: "reach a peer", source });
                }
                Err(why) => self.dial_failed(ends, why),
            }
        }
        Ok(())
    }

    fn advance_inbound(&mut self, ready: &[bool]) {
        for (connection, ready) in std::mem::take(&mut self.inbound).into_iter().zip(ready) {
            if !ready {
                self.inbound.push_back(connection);
                continue;
            }
            match connection.advance(&self.listener.key, |ends| self.is_wanted(ends)) {
                AcceptOutcome::Pending(connection) => self.inbound.push_back(connection),
                AcceptOutcome::Authenticated(ends, handshake) => {
                    if let Ok(socket) = handshake::confirm(handshake) {
                        self.mark_connected(ends.from, socket);
                    }
                }
                AcceptOutcome::Rejected => {}
            }
        }
    }

    /// Returns whether this rank accepts a connection with these ends: it is a connection to this
    /// rank, the peer is not connected, and this rank has not offered the peer another connection.
    fn is_wanted(&self, ends: Ends) -> bool {
        let connection = self.peers.get(&ends.from).map(|peer| &peer.connection);
        let is_open = |missing: &Missing| !missing.offered;
        ends.to == self.me
            && matches!(connection, Some(Connection::Missing(missing)) if is_open(missing))
    }

    fn missing_mut(&mut self, rank: Rank) -> Option<&mut Missing> {
        match &mut self.peers.get_mut(&rank)?.connection {
            Connection::Missing(missing) => Some(missing),
            Connection::InUse(_) => None,
        }
    }

    /// Marks a peer as connected by this socket, and ends other attempts to dial the peer.
    fn mark_connected(&mut self, rank: Rank, socket: TcpStream) {
        let connection = self.peers.get_mut(&rank).map(|peer| &mut peer.connection);
        if let Some(connection @ Connection::Missing(_)) = connection {
            *connection = Connection::InUse(socket);
            self.missing -= 1;
            self.dials.retain(|dial| dial.ends.to != rank);
        }
    }

    fn dial_failed(&mut self, ends: Ends, why: DialError) {
        if let Some(missing) = self.missing_mut(ends.to) {
            missing.next = Some(Instant::now() + missing.pause);
            missing.pause = (missing.pause * 2).min(LONGEST_PAUSE);
            missing.why = Some(why);
            missing.offered = false;
        }
    }

    /// Returns the error that names the first peer that is not connected, and counts the others.
    fn unconnected(self, table: &RankTable, waited: Duration) -> ConnectError {
        let me = (self.me, self.listener.address);
        let mut missing = self.peers.into_iter().filter(|(_, peer)| !peer.is_connected());
        let Some(first) = missing.next() else {
            let (operation, source) = ("wait for peers", io::ErrorKind::TimedOut.into());
            return ConnectError::System { operation, source };
        };
        unconnected(table, me, first, (waited, missing.count()))
    }
}

/// Returns the error that this rank, `me`, could not connect to the peer `rank`. `more` is the
/// number of further peers to which it could not connect.
fn unconnected(
    table: &RankTable,
    (me, address): (Rank, SocketAddr),
    (rank, peer): (Rank, PeerConnection),
    (waited, more): (Duration, usize),
) -> ConnectError {
    let peer_address = |rank: Rank, address| {
        let row = table.ranks().get(rank.index());
        let node = row.and_then(|row| table.nodes().get(row.node.index()));
        let host = node.map(|node| node.host.clone()).unwrap_or_default();
        PeerAddress { rank, host, address }
    };
    let (me, other) = (peer_address(me, address), peer_address(rank, peer.address));
    let missing = match peer.connection {
        Connection::Missing(missing) => Some(missing),
        Connection::InUse(_) => None,
    };
    let reason = missing.map_or(DialError::NoAnswer, |missing| {
        let under_way = missing.next.is_none();
        let never = if under_way { DialError::NoAnswer } else { DialError::NotTried };
        missing.why.unwrap_or(never)
    });
    ConnectError::NotConnected(Box::new(UnconnectedPair { me, peer: other, reason, waited, more }))
}

fn is_file_limit(error: &io::Error) -> bool {
    let files = [Errno::EMFILE as i32, Errno::ENFILE as i32];
    error.raw_os_error().is_some_and(|errno| files.contains(&errno))
}

/// Raises the limit on open files by `more`, up to the hard limit, unless `more` is less than a
/// quarter of the limit. Without this, the sockets of a large job would leave no files to the
/// program: the usual limit of 1024 is less than the number of ranks.
fn raise_file_limit(more: usize) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let more = more as u64;
    if more > soft / 4 {
        // If this fails, opening the sockets reports it.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.saturating_add(more).min(hard), hard);
    }
}
