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
mod error;
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

pub use error::{ConnectError, DialError, NoRdma, PeerAddress, UnconnectedPair};

use crate::transport::{Link, WakeFd};
use crate::types::error::PeerName;
use bytes::Bytes;
use handshake::RankKey;
use lazy_link::LazyLink;
use nix::sys::socket::{Backlog, listen};
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use rlaunch_client::{Client, ClientError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Makes an eventfd with which one thread wakes another.
fn wake_fd() -> Result<WakeFd, ConnectError> {
    WakeFd::new().map_err(|source| ConnectError::System { operation: "create an eventfd", source })
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
        let key = RankKey::random();
        let key =
            key.map_err(|source| ConnectError::System { operation: "generate a key", source })?;
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
            connect_lazily(listener, fabric, &contacts, table, (me, &others))
        }
        listener => connect_now(listener, fabric, &contacts, table, (me, &others)),
    };
    let connected = connects();
    if contacts.iter().any(|contact| !contact.verbs.is_empty()) {
        report_ready(connected.as_ref().err(), names, |own| client.all_gather(READY, own))?;
    }
    connected
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
) -> Result<Links, ConnectError> {
    let uses_rdma = |peer: &Rank| fabric.is_some() && has_rdma(table, contacts, me, *peer);
    let tcp_peers: Vec<Rank> = others.iter().copied().filter(|peer| !uses_rdma(peer)).collect();
    let mut links = Links::new();
    if let Some(listener) = listener.filter(|_| !tcp_peers.is_empty()) {
        let connected =
            eager_connect::connect_all(listener, contacts, table, me, &tcp_peers, CONNECT_TIMEOUT)?;
        links.extend(connected.into_iter().map(|(rank, link)| (rank, Box::new(link) as _)));
    }
    if let Some(fabric) = fabric {
        let queue_pairs = fabric.connect(contacts, table, CONNECT_TIMEOUT)?;
        links
            .extend(queue_pairs.into_iter().map(|(rank, pair)| (rank, Box::new(pair.link()) as _)));
    }
    Ok(links)
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

#[cfg(test)]
mod tests;
