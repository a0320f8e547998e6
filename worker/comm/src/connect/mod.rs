//! Connections between the ranks of a job that are on different nodes.
//!
//! 1. Each rank opens a [`RankListener`] and puts the listener's port and key into its [`Contact`].
//!    All contacts are exchanged in one all-gather through the agents, which is encrypted and
//!    authenticated between nodes.
//! 2. Each pair that uses TCP connects: one end dials, the other accepts, and both prove in a
//!    handshake ([`handshake`]) that they have the accepting rank's key from the all-gather. If a
//!    firewall blocks one direction, the other direction is tried.
//! 3. Pairs that use RDMA connect their queue pairs ([`rdma`]). No queue pair may be used until a
//!    second all-gather has reported that all ranks are ready.
//!
//! In small jobs all pairs connect at the start ([`eager_connect`]); in large jobs each pair
//! connects at its first message ([`lazy_connect`], [`lazy_link`]). [`connect_all`] chooses between
//! them.

mod eager_connect;
mod handshake;
mod lazy_connect;
pub(crate) mod lazy_link;
#[cfg(not(feature = "rdma"))]
#[path = "no_rdma.rs"]
mod rdma;
#[cfg(feature = "rdma")]
mod rdma;

pub(crate) use lazy_connect::{Arrival, ArrivalFd, LazyConnector};
pub(crate) use rdma::{Fabric, LazyRdma};

use crate::transport::{Link, WakeFd};
use crate::types::PeerName;
use bytes::Bytes;
use handshake::RankKey;
use lazy_link::LazyLink;
use nix::sys::socket::{Backlog, listen};
use rdma::ConnectedQp;
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use rlaunch_client::{Client, ClientError};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Makes an eventfd with which one thread wakes another.
fn wake_fd() -> Result<WakeFd, ConnectError> {
    WakeFd::new().map_err(ConnectError::system("create an eventfd"))
}

/// Returns whether `bytes`, the first bytes of a connection, are a rank's hello.
pub(crate) fn is_hello(bytes: &[u8]) -> bool {
    handshake::Hello::read(bytes).is_some()
}

/// Version of the encoding, increased whenever the number or meaning of the fields changes.
const VERSION: u16 = 3;

/// Data that other ranks need to connect to a rank. The contacts of all ranks are exchanged in one
/// all-gather.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contact {
    /// Version of the encoding. It is the first field, so that contacts of other builds are
    /// recognized.
    version: u16,
    /// TCP listener; `None` if the rank has no peers on other nodes.
    pub(crate) tcp: Option<TcpContact>,
    /// Encoded `rdma::cm::Advert`, which has the rank's queue pairs; empty if the rank does not
    /// use RDMA.
    pub(crate) verbs: Vec<u8>,
}

/// Port of a rank's TCP listener at its node's address, and the key that peers need there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TcpContact {
    port: u16,
    /// Secret key of the rank. A peer that has this key belongs to the rank's job.
    key: RankKey,
}

impl Contact {
    /// Makes a contact without RDMA.
    pub(crate) fn new(tcp: Option<TcpContact>) -> Contact {
        Contact { version: VERSION, tcp, verbs: Vec::new() }
    }

    fn decode(rank: Rank, bytes: &[u8]) -> Result<Contact, ConnectError> {
        let bad = |why| ConnectError::Contact { rank, why };
        let (version, _): (u16, _) =
            postcard::take_from_bytes(bytes).map_err(|_| bad("it is empty"))?;
        if version != VERSION {
            return Err(bad("it is from another version of rlaunch"));
        }
        postcard::from_bytes(bytes).map_err(|_| bad("it is damaged"))
    }
}

/// Passes this rank's encoded contact to `gather`, an all-gather, and returns the contacts of all
/// ranks in rank order.
pub(crate) fn exchange_contacts(
    own: &Contact,
    gather: impl FnOnce(&[u8]) -> Result<Vec<Bytes>, ClientError>,
) -> Result<Vec<Contact>, ConnectError> {
    let encoded = postcard::to_stdvec(own).map_err(|_| ConnectError::System {
        operation: "encode this rank's contact",
        source: std::io::ErrorKind::InvalidData.into(),
    })?;
    let all = gather(&encoded)?;
    (0..).map(Rank).zip(all).map(|(rank, bytes)| Contact::decode(rank, &bytes)).collect()
}

/// Longest error text that a rank reports to the others, in bytes.
const MAX_REASON: usize = 1 << 10;

/// Reports to all ranks that this rank is ready, or that it failed with the error `own`, and waits
/// for the reports of all ranks. Fails if `own` is `None` and another rank reports an error.
pub(crate) fn report_ready(
    own: Option<&ConnectError>,
    names: &[PeerName],
    gather: impl FnOnce(&[u8]) -> Result<Vec<Bytes>, ClientError>,
) -> Result<(), ConnectError> {
    let mut report = own.map(ToString::to_string).unwrap_or_default();
    report.truncate(report.floor_char_boundary(MAX_REASON));
    let all = gather(report.as_bytes())?;
    let mut others = names.iter().zip(all).filter(|_| own.is_none());
    match others.find(|(_, report)| !report.is_empty()) {
        Some((peer, report)) => {
            let why = String::from_utf8_lossy(&report).into_owned();
            Err(ConnectError::NotReady { peer: peer.clone(), why })
        }
        None => Ok(()),
    }
}

/// TCP listener of a rank, and the key that dialling ranks must have.
#[derive(Debug)]
pub(crate) struct RankListener {
    listener: TcpListener,
    address: SocketAddr,
    key: RankKey,
}

impl RankListener {
    /// Listens on `address`, the node's address, at a port that the kernel chooses.
    pub(crate) fn open(address: IpAddr) -> Result<RankListener, ConnectError> {
        let opened = || -> io::Result<(TcpListener, SocketAddr)> {
            let listener = TcpListener::bind((address, 0))?;
            listener.set_nonblocking(true)?;
            // All ranks of other nodes may connect at the same time.
            listen(&listener, Backlog::MAXALLOWABLE)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) =
            opened().map_err(|source| ConnectError::Listen { address, source })?;
        let key = RankKey::random().map_err(ConnectError::system("generate a key"))?;
        Ok(RankListener { listener, address, key })
    }

    /// Returns the listener's port and key. The key must be sent to ranks of this job only.
    pub(crate) fn contact(&self) -> TcpContact {
        TcpContact { port: self.address.port(), key: self.key.clone() }
    }
}

/// Names of the two all-gathers: the first exchanges the contacts, the second the reports that
/// ranks are ready.
const GATHER: &str = "rlaunch communicator";
const READY: &str = "rlaunch communicator is ready";
/// Time limit for all ranks to connect, after all of them have started.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Links of this rank, by peer.
pub(crate) type Links = BTreeMap<Rank, Box<dyn Link>>;

/// Links that can be used, and queue pairs that must not be used before all ranks are ready: the first message of one
/// that the connection manager has connected would find no receive at the peer, and iWARP closes the connection then.
type Connected = (Links, BTreeMap<Rank, ConnectedQp>);

/// Connects this rank with the ranks of other nodes: by RDMA if the rank table says so and both
/// ends support it, otherwise by TCP. If the job `is_large`, pairs connect at their first message.
/// When the function returns, all ranks have sent their contacts.
pub(crate) fn connect_all(
    client: &mut Client,
    table: &Arc<RankTable>,
    me: Rank,
    job: JobId,
    names: &[PeerName],
    is_large: bool,
) -> Result<Links, ConnectError> {
    let row = &table.ranks()[me.index()];
    let others = table.ranks().iter().filter(|other| other.node != row.node);
    let others: Vec<Rank> = others.map(|other| other.rank).collect();
    let fabric = Fabric::open(table, me, job.to_string(), is_large)?;
    // A rank that uses RDMA also listens on TCP, for peers built without RDMA.
    let listener = (!others.is_empty()).then(|| RankListener::open(row.address)).transpose()?;
    let mut contact = Contact::new(listener.as_ref().map(RankListener::contact));
    contact.verbs = fabric.as_ref().map(Fabric::advert).transpose()?.unwrap_or_default();
    let contacts = exchange_contacts(&contact, |own| client.all_gather(GATHER, own))?;
    let connects = || match listener {
        Some(listener) if is_large => {
            let links = connect_lazily(listener, fabric, &contacts, table, (me, &others))?;
            Ok((links, BTreeMap::new()))
        }
        listener => connect_now(listener, fabric, &contacts, table, (me, &others)),
    };
    let connected: Result<Connected, ConnectError> = connects();
    if contacts.iter().any(|contact| !contact.verbs.is_empty()) {
        report_ready(connected.as_ref().err(), names, |own| client.all_gather(READY, own))?;
    }
    let (mut links, pairs) = connected?;
    links.extend(pairs.into_iter().map(|(rank, pair)| (rank, Box::new(pair.link()) as _)));
    Ok(links)
}

/// Returns whether `me` and `peer` use RDMA: the rank table says so, and the peer's contact has
/// queue pairs.
fn has_rdma(table: &RankTable, contacts: &[Contact], me: Rank, peer: Rank) -> bool {
    let has = contacts.get(peer.index()).is_some_and(|contact| !contact.verbs.is_empty());
    let by_rdma = |connect| matches!(connect, PairTransport::Rdma | PairTransport::RdmaCm);
    has && table.pair(me, peer).is_some_and(|pair| by_rdma(pair.connect))
}

/// Connects this rank with all `others` now.
fn connect_now(
    listener: Option<RankListener>,
    fabric: Option<Fabric>,
    contacts: &[Contact],
    table: &RankTable,
    (me, others): (Rank, &[Rank]),
) -> Result<Connected, ConnectError> {
    let uses_rdma = |peer: &Rank| fabric.is_some() && has_rdma(table, contacts, me, *peer);
    let tcp_peers: Vec<Rank> = others.iter().copied().filter(|peer| !uses_rdma(peer)).collect();
    let mut links = Links::new();
    if let Some(listener) = listener.filter(|_| !tcp_peers.is_empty()) {
        let connected =
            eager_connect::connect_all(listener, contacts, table, me, &tcp_peers, CONNECT_TIMEOUT)?;
        links.extend(connected.into_iter().map(|(rank, link)| (rank, Box::new(link) as _)));
    }
    let pairs =
        fabric.map(|fabric| fabric.connect(contacts, table, CONNECT_TIMEOUT)).transpose()?;
    Ok((links, pairs.unwrap_or_default()))
}

/// Makes a link to each of `others`. A link connects to its peer when the link is first used.
fn connect_lazily(
    listener: RankListener,
    fabric: Option<Fabric>,
    contacts: &[Contact],
    table: &Arc<RankTable>,
    (me, others): (Rank, &[Rank]),
) -> Result<Links, ConnectError> {
    let rdma = fabric.map(|fabric| fabric.lazy(contacts, table)).transpose()?;
    let connector =
        LazyConnector::open(listener, rdma, contacts, table.clone(), me, others, CONNECT_TIMEOUT)?;
    let connector = Arc::new(connector);
    let lazy = |&rank: &Rank| (rank, Box::new(LazyLink::new(rank, &connector)) as _);
    Ok(others.iter().map(lazy).collect())
}

/// Failure to connect the ranks of a job.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This rank cannot listen on its node's address.
    #[error("cannot listen on {address}")]
    Listen {
        /// Address of this rank's node.
        address: IpAddr,
        /// Error that the system returned.
        source: io::Error,
    },
    /// A system call failed that does not concern a particular peer.
    #[error("cannot {operation}")]
    System {
        /// Operation that failed, for the error text.
        operation: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The all-gather of contacts failed.
    #[error("the contacts of the ranks could not be gathered")]
    Gather(#[from] ClientError),
    /// The contact of a rank is damaged, or is from another build of rlaunch.
    #[error("the contact of rank {rank} is invalid: {why}")]
    Contact {
        /// Rank that sent the contact.
        rank: Rank,
        /// Problem with the contact.
        why: &'static str,
    },
    /// Two ranks could not connect in either direction.
    #[error("{0}")]
    NotConnected(Box<UnconnectedPair>),
    /// RDMA could not be set up, although the rank table assigns it to this rank and a peer.
    #[error("{0}")]
    NoRdma(Box<NoRdma>),
    /// Another rank failed to connect.
    #[error("{peer} is not ready: {why}")]
    NotReady {
        /// Rank that failed.
        peer: PeerName,
        /// Error that the failed rank reported.
        why: String,
    },
}

/// Failure to set up RDMA.
#[derive(Debug, thiserror::Error)]
#[error("no RDMA by {port}{}: {source}{}", to_peer(.peer.as_ref()), memory_text(*.memory))]
pub struct NoRdma {
    /// RDMA port of this rank, for example `mlx5_0/1`.
    pub port: String,
    /// Peer that the failure concerns; `None` if it concerns all peers of the port.
    pub peer: Option<PeerName>,
    /// Bytes of locked memory that each peer needs at least, and the limit on locked memory in
    /// bytes; `None` if locking memory has not failed.
    pub memory: Option<(u64, u64)>,
    /// Advice to the user, if there is any.
    pub hint: Option<Cow<'static, str>>,
    /// Error of the device or of rdma-core.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

fn to_peer(peer: Option<&PeerName>) -> String {
    peer.map(|peer| format!(" to {peer}")).unwrap_or_default()
}

fn memory_text(memory: Option<(u64, u64)>) -> String {
    let kib = |bytes: u64| bytes.div_ceil(1024);
    let text = |(needed, limit)| {
        format!(", {} KiB are needed for each peer, the limit is {} KiB", kib(needed), kib(limit))
    };
    memory.map(text).unwrap_or_default()
}

/// Address at which a rank listens.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    /// Rank that listens.
    pub rank: Rank,
    /// Host as the user typed it.
    pub host: String,
    /// Socket address of the rank's listener.
    pub address: SocketAddr,
}

/// Pair of ranks that could not connect.
#[derive(Debug, thiserror::Error)]
#[error(
    "rank {} on {} and rank {} on {} could not connect over TCP within {} s: {} could not be reached at {} \
     ({reason}), and could not reach {} at {}{}",
    .me.rank, .me.host, .peer.rank, .peer.host, .waited.as_secs_f64(),
    .peer.host, .peer.address, .me.host, .me.address, and_more(*.more)
)]
pub struct UnconnectedPair {
    /// This rank, which reports the error.
    pub me: PeerAddress,
    /// Other rank of the pair.
    pub peer: PeerAddress,
    /// Reason why this rank could not reach the peer.
    pub reason: DialError,
    /// Time for which the connection was tried.
    pub waited: Duration,
    /// Number of further ranks that this rank could not connect to.
    pub more: usize,
}

/// Reason why an attempt to dial a rank failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// This rank did not dial, because the peer should have dialled.
    #[error("not tried")]
    NotTried,
    /// No answer arrived in time.
    #[error("no answer")]
    NoAnswer,
    /// Error that the system returned.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The process that listens at the peer's address does not have the peer's key, so it belongs
    /// to another job or program.
    #[error("the process that answers there is not of this job")]
    Unauthenticated,
}

fn and_more(more: usize) -> String {
    match more {
        0 => String::new(),
        1 => "; nor could this rank and 1 other".to_owned(),
        more => format!("; nor could this rank and {more} others"),
    }
}

impl ConnectError {
    fn system(operation: &'static str) -> impl FnOnce(io::Error) -> ConnectError {
        move |source| ConnectError::System { operation, source }
    }

    /// Returns advice to the user about the error, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            ConnectError::NotConnected(pair) => Some(format!(
                "allow TCP connections from {1} on {0}, or from {3} on {2}; ranks listen on \
                 ports of /proc/sys/net/ipv4/ip_local_port_range",
                pair.peer.host,
                pair.me.address.ip(),
                pair.me.host,
                pair.peer.address.ip(),
            )),
            ConnectError::NoRdma(no) => Some(match &no.hint {
                Some(hint) => format!("{hint}; --transport tcp does without RDMA"),
                None => "--transport tcp does without RDMA".to_owned(),
            }),
            ConnectError::Gather(ClientError::TimedOut { .. }) => {
                Some("--init-timeout SECONDS waits longer for all ranks".to_owned())
            }
            ConnectError::System { source, .. } => {
                let files = source.raw_os_error() == Some(nix::errno::Errno::EMFILE as i32);
                files.then(|| "allow the ranks more open files (ulimit -n)".to_owned())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
