//! Contact of a rank: the data that other ranks need to connect to the rank. Ranks exchange their
//! contacts through the agents.

use super::ConnectError;
use super::hello::RankKey;
use crate::types::error::PeerName;
use bytes::Bytes;
use rlaunch_bootstrap::id::Rank;
use rlaunch_client::ClientError;
use serde::{Deserialize, Serialize};

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
    /// Encoded `rdma::advert::Advert`, which has the rank's queue pairs; empty if the rank does not
    /// use RDMA.
    pub(crate) verbs: Vec<u8>,
}

/// Port of a rank's TCP listener at its node's address, and the key that peers need there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TcpContact {
    pub(super) port: u16,
    /// Secret key of the rank. A peer that has this key belongs to the rank's job.
    pub(super) key: RankKey,
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
pub(crate) fn exchange(
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
