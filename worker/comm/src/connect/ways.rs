//! The ways to the ranks of other nodes.

use super::later::LazyLink;
use super::{self as connect, Contact, Fabric, LazyConnector, RankListener, WireUpError};
use crate::transport::Link;
use crate::types::error::PeerName;
use rlaunch_bootstrap::client::Client;
use rlaunch_bootstrap::id::{JobId, Rank};
use rlaunch_bootstrap::rank_table::{PairTransport, RankTable};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What ranks call their gather, and the one after it.
const GATHER: &str = "rlaunch communicator";
const READY: &str = "rlaunch communicator is ready";
/// How long sockets may take to be connected once all ranks are there.
const MEETING: Duration = Duration::from_secs(30);

/// Links by rank.
pub(crate) type Links = BTreeMap<Rank, Box<dyn Link>>;

/// Meets the ranks of other nodes, by RDMA where the rank table says so and both ends have it, and
/// else by TCP. Once it is over, all ranks have taken their places.
pub(crate) fn meet(
    client: &mut Client,
    table: &Arc<RankTable>,
    (me, job): (Rank, JobId),
    names: &[PeerName],
    is_large: bool,
) -> Result<Links, WireUpError> {
    let row = &table.ranks()[me.index()];
    let others = table.ranks().iter().filter(|other| other.node != row.node);
    let others: Vec<Rank> = others.map(|other| other.rank).collect();
    let fabric = Fabric::open(table, me, job.to_string(), is_large)?;
    // Who has RDMA may still meet somebody who has none.
    let door = (!others.is_empty()).then(|| RankListener::open(row.address)).transpose()?;
    let mut contact = Contact::new(door.as_ref().map(RankListener::contact));
    contact.verbs = fabric.as_ref().map(Fabric::told).transpose()?.unwrap_or_default();
    let contacts = connect::exchange(&contact, |own| client.all_gather(GATHER, own))?;
    let meets = || match door {
        Some(door) if is_large => later(door, fabric, &contacts, table, (me, &others)),
        door => at_once(door, fabric, &contacts, table, (me, &others)),
    };
    let met = meets();
    if contacts.iter().any(|contact| !contact.verbs.is_empty()) {
        connect::ready(met.as_ref().err(), names, |own| client.all_gather(READY, own))?;
    }
    met
}

/// Whether two ranks speak RDMA: the rank table says so, and both have been built for it.
fn has_rdma(table: &RankTable, contacts: &[Contact], me: Rank, peer: Rank) -> bool {
    let has = contacts.get(peer.index()).is_some_and(|contact| !contact.verbs.is_empty());
    let by_rdma = |connect| matches!(connect, PairTransport::Rdma | PairTransport::RdmaCm);
    has && table.pair(me, peer).is_some_and(|pair| by_rdma(pair.connect))
}

/// All of them now.
fn at_once(
    door: Option<RankListener>,
    fabric: Option<Fabric>,
    contacts: &[Contact],
    table: &RankTable,
    (me, others): (Rank, &[Rank]),
) -> Result<Links, WireUpError> {
    let speaks_rdma = |peer: &Rank| fabric.is_some() && has_rdma(table, contacts, me, *peer);
    let speak_tcp: Vec<Rank> = others.iter().copied().filter(|peer| !speaks_rdma(peer)).collect();
    let mut ways = Links::new();
    if let Some(door) = door.filter(|_| !speak_tcp.is_empty()) {
        let met = connect::meet(door, contacts, table, (me, &speak_tcp), MEETING)?;
        ways.extend(met.into_iter().map(|(rank, link)| (rank, Box::new(link) as _)));
    }
    if let Some(fabric) = fabric {
        let joined = fabric.connect(contacts, table, MEETING)?;
        ways.extend(joined.into_iter().map(|(rank, joined)| (rank, Box::new(joined.link()) as _)));
    }
    Ok(ways)
}

/// Each when it is needed.
fn later(
    door: RankListener,
    fabric: Option<Fabric>,
    contacts: &[Contact],
    table: &Arc<RankTable>,
    (me, others): (Rank, &[Rank]),
) -> Result<Links, WireUpError> {
    let rdma = fabric.map(|fabric| fabric.later(contacts, table)).transpose()?;
    let reception =
        LazyConnector::open(door, rdma, contacts, table.clone(), (me, others), MEETING)?;
    let reception = Arc::new(reception);
    let later = |&rank: &Rank| (rank, Box::new(LazyLink::new(rank, &reception)) as _);
    Ok(others.iter().map(later).collect())
}
