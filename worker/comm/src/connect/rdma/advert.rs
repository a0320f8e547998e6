//! What a rank tells the others of its queue pairs.

use super::super::WireUpError;
use super::super::hello::RankKey;
use super::LinkConfig;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::Nic;
use rlaunch_verbs::{Context, Endpoint, Listener, Mtu, VerbsError};
use serde::{Deserialize, Serialize};
use std::net::Ipv6Addr;

/// What a rank puts into its contact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Advert {
    /// Of each queue pair.
    pub(super) slots: u32,
    /// The longest that fits into one, in bytes.
    pub(super) payload: u32,
    /// Who has it is of this job.
    pub(super) key: RankKey,
    pub(super) ports: Vec<PortAdvert>,
    /// Those that are connected out of band, in the order of peers.
    pub(super) pairs: Vec<QpAdvert>,
}

/// A port of the rank's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortAdvert {
    /// Among its node's NICs.
    pub(super) nic: u32,
    pub(super) lid: u16,
    pub(super) gid: Option<Ipv6Addr>,
    /// In bytes.
    pub(super) mtu: u32,
    /// By the connection manager, and then nothing of the above is of use.
    pub(super) listener: Option<u16>,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QpAdvert {
    pub(super) peer: u32,
    pub(super) qpn: u32,
    pub(super) psn: u32,
}

/// What is told of a port that was opened.
pub(super) fn port(
    index: u32,
    nic: &Nic,
    context: &Context,
    listener: Option<&Listener>,
) -> Result<PortAdvert, VerbsError> {
    let attributes = context.port(nic.port)?;
    let gid = match (listener, nic.gid_index) {
        (None, Some(index)) => context.gid(nic.port, index)?.map(|entry| entry.value),
        _ => None,
    };
    let (lid, mtu) = (attributes.lid, attributes.mtu.bytes());
    Ok(PortAdvert { nic: index, lid, gid, mtu, listener: listener.map(Listener::port) })
}

impl Advert {
    pub(super) fn encode(&self) -> Result<Vec<u8>, WireUpError> {
        postcard::to_stdvec(self).map_err(|_| WireUpError::System {
            operation: "encode this rank's queue pairs",
            source: std::io::ErrorKind::InvalidData.into(),
        })
    }

    pub(super) fn decode(rank: Rank, bytes: &[u8]) -> Result<Advert, WireUpError> {
        let why = "what it tells of its queue pairs is damaged";
        postcard::from_bytes(bytes).map_err(|_| WireUpError::Contact { rank, why })
    }

    /// What both ends make of what each has: this end's longest payload, and its slots.
    pub(super) fn config(
        &self,
        payload: usize,
        slots: u32,
        rank: Rank,
    ) -> Result<LinkConfig, WireUpError> {
        let payload = payload.min(self.payload as usize);
        if self.slots < 2 || payload < super::SHORTEST || !payload.is_multiple_of(64) {
            let why = "it has no room for what ranks say to each other";
            return Err(WireUpError::Contact { rank, why });
        }
        Ok(LinkConfig { payload, slots: (self.slots, slots) })
    }

    /// The queue pair of `peer`, who tells this, that is for `me`.
    pub(super) fn pair(&self, me: Rank, peer: Rank) -> Result<&QpAdvert, WireUpError> {
        let why = "it has no queue pair for this rank";
        let mut pairs = self.pairs.iter();
        pairs.find(|pair| pair.peer == me.0).ok_or(WireUpError::Contact { rank: peer, why })
    }

    /// The end that such a queue pair is, over this NIC of the node of `peer`.
    pub(super) fn endpoint(
        &self,
        pair: &QpAdvert,
        peer: Rank,
        nic: u32,
    ) -> Result<Endpoint, WireUpError> {
        let port = self.ports.iter().find(|port| port.nic == nic && port.listener.is_none());
        let why = "it has no port for this rank";
        let port = port.ok_or(WireUpError::Contact { rank: peer, why })?;
        Ok(Endpoint {
            qpn: pair.qpn,
            psn: pair.psn,
            lid: port.lid,
            gid: port.gid,
            mtu: Mtu::up_to(port.mtu).unwrap_or(Mtu::B256),
            memory: None,
        })
    }

    /// Where it listens at this NIC of its node.
    pub(super) fn listener(&self, nic: u32) -> Option<u16> {
        self.ports.iter().filter(|port| port.nic == nic).find_map(|port| port.listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Advert {
        let gid = Some("::ffff:10.0.0.1".parse().unwrap());
        let port = |nic, listener| PortAdvert { nic, lid: 3, gid, mtu: 1024, listener };
        Advert {
            slots: 32,
            payload: 4096,
            key: RankKey::random().unwrap(),
            ports: vec![port(0, None), port(1, Some(4711)), port(1, None)],
            pairs: vec![QpAdvert { peer: 5, qpn: 17, psn: 99 }],
        }
    }

    #[test]
    fn what_is_told_is_understood() {
        let told = told();
        let bytes = told.encode().unwrap();
        assert_eq!(Advert::decode(Rank(1), &bytes).unwrap(), told);
        let end = told.endpoint(told.pair(Rank(5), Rank(1)).unwrap(), Rank(1), 1).unwrap();
        assert_eq!((end.qpn, end.psn, end.lid), (17, 99, 3));
        assert_eq!((end.mtu, end.gid), (Mtu::B1024, told.ports[0].gid));
        assert_eq!((told.listener(1), told.listener(0)), (Some(4711), None));
        let error = Advert::decode(Rank(1), &bytes[..9]).unwrap_err().to_string();
        assert_eq!(
            error,
            "the contact of rank 1 is no good: what it tells of its queue pairs is damaged"
        );
    }

    #[test]
    fn a_peer_without_a_queue_pair_for_this_rank_is_named() {
        let told = told();
        let error = told.pair(Rank(6), Rank(1)).unwrap_err().to_string();
        assert!(error.ends_with("of rank 1 is no good: it has no queue pair for this rank"));
        let error = told.endpoint(&told.pairs[0], Rank(1), 2).unwrap_err().to_string();
        assert!(
            error.ends_with("of rank 1 is no good: it has no port for this rank"),
            "nor a port"
        );
    }

    #[test]
    fn two_ends_agree_on_the_smaller_of_their_slots() {
        let config = told().config(16 << 10, 8, Rank(1)).unwrap();
        assert_eq!((config.payload, config.slots), (4096, (32, 8)));
        assert_eq!(told().config(2048, 8, Rank(1)).unwrap().payload, 2048);
        let few = Advert { slots: 1, ..told() };
        assert!(few.config(2048, 8, Rank(1)).is_err());
        let short = Advert { payload: 100, ..told() };
        assert!(short.config(2048, 8, Rank(1)).is_err());
    }
}
