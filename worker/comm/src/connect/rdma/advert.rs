//! Data about a rank's queue pairs that its peers need to connect their own queue pairs.

use super::super::ConnectError;
use super::super::hello::RankKey;
use super::LinkConfig;
use rlaunch_bootstrap::id::Rank;
use rlaunch_bootstrap::rank_table::Nic;
use rlaunch_verbs::{Context, Endpoint, Listener, Mtu, VerbsError};
use serde::{Deserialize, Serialize};
use std::net::Ipv6Addr;

/// Queue pairs and ports of a rank, as advertised to its peers. The encoded advert is a field of
/// the rank's [`Contact`](super::super::Contact).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Advert {
    /// Number of receive slots of each queue pair.
    pub(super) slots: u32,
    /// Longest payload of a slot, in bytes.
    pub(super) payload: u32,
    /// Secret key of the rank. A peer that has this key belongs to the rank's job.
    pub(super) key: RankKey,
    pub(super) ports: Vec<PortAdvert>,
    /// Queue pairs that are connected without the connection manager, ordered by peer.
    pub(super) pairs: Vec<QpAdvert>,
}

/// RDMA port that a rank uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortAdvert {
    /// Index of the port in the NIC list of its node in the rank table.
    pub(super) nic: u32,
    pub(super) lid: u16,
    pub(super) gid: Option<Ipv6Addr>,
    /// Path MTU in bytes.
    pub(super) mtu: u32,
    /// Port number, like a TCP port, on which the rank's connection manager listens. If present,
    /// `lid`, `gid` and `mtu` are unused.
    pub(super) listener: Option<u16>,
}

/// Queue pair for one peer: its number, and the sequence number of its first packet (PSN).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QpAdvert {
    pub(super) peer: u32,
    pub(super) qpn: u32,
    pub(super) psn: u32,
}

/// Makes the advert of an opened port. `index` is the port's index in the NIC list of this node.
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
    pub(super) fn encode(&self) -> Result<Vec<u8>, ConnectError> {
        postcard::to_stdvec(self).map_err(|_| ConnectError::System {
            operation: "encode this rank's queue pairs",
            source: std::io::ErrorKind::InvalidData.into(),
        })
    }

    pub(super) fn decode(rank: Rank, bytes: &[u8]) -> Result<Advert, ConnectError> {
        let why = "the data about its queue pairs is damaged";
        postcard::from_bytes(bytes).map_err(|_| ConnectError::Contact { rank, why })
    }

    /// Combines the limits that `rank` has advertised with this rank's `payload` and `slots`. The
    /// link gets the shorter of both payloads; each end keeps its number of slots.
    pub(super) fn config(
        &self,
        payload: usize,
        slots: u32,
        rank: Rank,
    ) -> Result<LinkConfig, ConnectError> {
        let payload = payload.min(self.payload as usize);
        if self.slots < 2 || payload < super::SHORTEST_PAYLOAD || !payload.is_multiple_of(64) {
            let why = "its slots are too few or too small";
            return Err(ConnectError::Contact { rank, why });
        }
        Ok(LinkConfig { payload, slots: (self.slots, slots) })
    }

    /// Returns the queue pair that `peer`, the sender of this advert, has made for rank `me`.
    pub(super) fn pair(&self, me: Rank, peer: Rank) -> Result<&QpAdvert, ConnectError> {
        let why = "it has no queue pair for this rank";
        let mut pairs = self.pairs.iter();
        pairs.find(|pair| pair.peer == me.0).ok_or(ConnectError::Contact { rank: peer, why })
    }

    /// Returns the endpoint of the queue pair `pair` of `peer`, the sender of this advert. `nic` is
    /// the index of the queue pair's port in the NIC list of the peer's node.
    pub(super) fn endpoint(
        &self,
        pair: &QpAdvert,
        peer: Rank,
        nic: u32,
    ) -> Result<Endpoint, ConnectError> {
        let port = self.ports.iter().find(|port| port.nic == nic && port.listener.is_none());
        let why = "it has no port for this rank";
        let port = port.ok_or(ConnectError::Contact { rank: peer, why })?;
        Ok(Endpoint {
            qpn: pair.qpn,
            psn: pair.psn,
            lid: port.lid,
            gid: port.gid,
            mtu: Mtu::up_to(port.mtu).unwrap_or(Mtu::B256),
            memory: None,
        })
    }

    /// Returns the port number on which the connection manager of the advert's sender listens on
    /// the NIC with index `nic` in its node's NIC list; `None` if it does not listen there.
    pub(super) fn listener(&self, nic: u32) -> Option<u16> {
        self.ports.iter().filter(|port| port.nic == nic).find_map(|port| port.listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advert() -> Advert {
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
        let advert = advert();
        let bytes = advert.encode().unwrap();
        assert_eq!(Advert::decode(Rank(1), &bytes).unwrap(), advert);
        let end = advert.endpoint(advert.pair(Rank(5), Rank(1)).unwrap(), Rank(1), 1).unwrap();
        assert_eq!((end.qpn, end.psn, end.lid), (17, 99, 3));
        assert_eq!((end.mtu, end.gid), (Mtu::B1024, advert.ports[0].gid));
        assert_eq!((advert.listener(1), advert.listener(0)), (Some(4711), None));
        let error = Advert::decode(Rank(1), &bytes[..9]).unwrap_err().to_string();
        assert_eq!(
            error,
            "the contact of rank 1 is invalid: the data about its queue pairs is damaged"
        );
    }

    #[test]
    fn a_peer_without_a_queue_pair_for_this_rank_is_named() {
        let advert = advert();
        let error = advert.pair(Rank(6), Rank(1)).unwrap_err().to_string();
        assert!(error.ends_with("of rank 1 is invalid: it has no queue pair for this rank"));
        let error = advert.endpoint(&advert.pairs[0], Rank(1), 2).unwrap_err().to_string();
        assert!(
            error.ends_with("of rank 1 is invalid: it has no port for this rank"),
            "nor a port"
        );
    }

    #[test]
    fn two_ends_agree_on_the_smaller_of_their_slots() {
        let config = advert().config(16 << 10, 8, Rank(1)).unwrap();
        assert_eq!((config.payload, config.slots), (4096, (32, 8)));
        assert_eq!(advert().config(2048, 8, Rank(1)).unwrap().payload, 2048);
        let few = Advert { slots: 1, ..advert() };
        assert!(few.config(2048, 8, Rank(1)).is_err());
        let short = Advert { payload: 100, ..advert() };
        assert!(short.config(2048, 8, Rank(1)).is_err());
    }
}
