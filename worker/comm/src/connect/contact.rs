//! What a rank tells the others so that they find it.

use super::WireUpError;
use super::hello::RankKey;
use crate::types::error::PeerName;
use bytes::Bytes;
use rlaunch_bootstrap::client::ClientError;
use rlaunch_bootstrap::id::Rank;
use serde::{Deserialize, Serialize};

/// Changes whenever a field changes its meaning or goes.
const VERSION: u16 = 3;

/// What a rank puts into the gather.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contact {
    /// First of all, so that other builds are recognized.
    version: u16,
    /// Where it accepts TCP, if any of its pairs speaks that.
    pub(crate) tcp: Option<TcpContact>,
    /// Its queue pairs, in the words of that link; nothing where it has no RDMA.
    pub(crate) verbs: Vec<u8>,
}

/// Where a rank accepts TCP connections: at its node's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TcpContact {
    pub(super) port: u16,
    /// Who has it is of this job.
    pub(super) key: RankKey,
}

impl Contact {
    /// Says nothing but `tcp` so far.
    pub(crate) fn new(tcp: Option<TcpContact>) -> Contact {
        Contact { version: VERSION, tcp, verbs: Vec::new() }
    }

    fn decode(rank: Rank, bytes: &[u8]) -> Result<Contact, WireUpError> {
        let bad = |why| WireUpError::Contact { rank, why };
        let (version, _): (u16, _) =
            postcard::take_from_bytes(bytes).map_err(|_| bad("it is empty"))?;
        if version != VERSION {
            return Err(bad("it is of another version of rlaunch"));
        }
        postcard::from_bytes(bytes).map_err(|_| bad("it is damaged"))
    }
}

/// Gives this rank's contact to `gather`, and gets those of all ranks, by rank.
pub(crate) fn exchange(
    own: &Contact,
    gather: impl FnOnce(&[u8]) -> Result<Vec<Bytes>, ClientError>,
) -> Result<Vec<Contact>, WireUpError> {
    let encoded = postcard::to_stdvec(own).map_err(|_| WireUpError::System {
        operation: "encode this rank's contact",
        source: std::io::ErrorKind::InvalidData.into(),
    })?;
    let all = gather(&encoded)?;
    (0..).map(Rank).zip(all).map(|(rank, bytes)| Contact::decode(rank, &bytes)).collect()
}

/// The longest reason that is told, in bytes.
const REASON: usize = 1 << 10;

/// Tells all ranks that this one is ready, or why not, and waits for all to have told. Fails where
/// another is not.
pub(crate) fn ready(
    own: Option<&WireUpError>,
    names: &[PeerName],
    gather: impl FnOnce(&[u8]) -> Result<Vec<Bytes>, ClientError>,
) -> Result<(), WireUpError> {
    let mut said = own.map(ToString::to_string).unwrap_or_default();
    said.truncate(said.floor_char_boundary(REASON));
    let all = gather(said.as_bytes())?;
    let mut others = names.iter().zip(all).filter(|_| own.is_none());
    match others.find(|(_, said)| !said.is_empty()) {
        Some((peer, said)) => {
            let why = String::from_utf8_lossy(&said).into_owned();
            Err(WireUpError::NotReady { peer: peer.clone(), why })
        }
        None => Ok(()),
    }
}
