//! Links to the ranks of other nodes.

use super::lazy_link::LazyLink;
use super::{self as connect, ConnectError, Contact, Fabric, LazyConnector, RankListener};
use crate::transport::Link;
use crate::types::error::PeerName;
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use rlaunch_client::Client;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
pub(crate) fn connect(
    client: &mut Client,
    table: &Arc<RankTable>,
    (me, job): (Rank, JobId),
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
    let contacts = connect::exchange(&contact, |own| client.all_gather(GATHER, own))?;
    let connects = || match listener {
        Some(listener) if is_large => {
            connect_lazily(listener, fabric, &contacts, table, (me, &others))
        }
        listener => connect_now(listener, fabric, &contacts, table, (me, &others)),
    };
    let connected = connects();
    if contacts.iter().any(|contact| !contact.verbs.is_empty()) {
        connect::report_ready(connected.as_ref().err(), names, |own| {
            client.all_gather(READY, own)
        })?;
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
            connect::connect_all(listener, contacts, table, (me, &tcp_peers), CONNECT_TIMEOUT)?;
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
    let connector = LazyConnector::open(
        listener,
        rdma,
        contacts,
        table.clone(),
        (me, others),
        CONNECT_TIMEOUT,
    )?;
    let connector = Arc::new(connector);
    let lazy = |&rank: &Rank| (rank, Box::new(LazyLink::new(rank, &connector)) as _);
    Ok(others.iter().map(lazy).collect())
}
