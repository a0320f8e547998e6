//! Other ends of the sockets that ranks wait for, named by the addresses of the job's nodes.

use rlaunch_bootstrap::id::{NodeId, Rank};
use rlaunch_bootstrap::protocol::inspection::{RankStacks, Wait};
use std::net::{IpAddr, SocketAddr};

/// Addresses of a node.
#[derive(Clone, Copy, Debug)]
pub struct PeerNode<'a> {
    /// Host as the user named it.
    pub host: &'a str,
    pub ranks: &'a [Rank],
    pub addresses: &'a [IpAddr],
}

/// Names the other ends of sockets in stacks of the node `from`. Replaces what the node's agent says about that.
pub fn name(stacks: &mut [RankStacks], from: NodeId, nodes: &[PeerNode<'_>]) {
    let processes = stacks.iter_mut().flat_map(|rank| &mut rank.processes);
    for thread in processes.flat_map(|process| &mut process.threads) {
        if let Some(Wait::Socket { peer, owner }) = &mut thread.waits_for {
            let address = peer.as_ref().and_then(|peer| peer.parse::<SocketAddr>().ok());
            *owner = address.and_then(|address| owner_of(address.ip(), from, nodes));
        }
    }
}

/// Returns the rank of the node that has an address, or the node's host if it has several ranks. An address that several
/// nodes have, such as that of a bridge for containers, says nothing.
fn owner_of(address: IpAddr, from: NodeId, nodes: &[PeerNode<'_>]) -> Option<String> {
    let has = |node: &&PeerNode<'_>| node.addresses.contains(&address);
    let own = nodes.get(from.index());
    let own = own.filter(|own| address.is_loopback() || own.addresses.contains(&address));
    let mut others = nodes.iter().filter(has);
    let node = own.or_else(|| others.next().filter(|_| others.next().is_none()))?;
    Some(match node.ranks[..] {
        [rank] => format!("rank {rank} on {}", node.host),
        _ => node.host.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_that_of_a_rank_or_of_a_host() {
        let bridge = [172, 17, 0, 1];
        let ranks = [0, 1, 2, 3, 4].map(Rank);
        let ends = [1, 2, 3].map(|end| [[10, 0, 0, end], bridge].map(IpAddr::from));
        let nodes = [
            PeerNode { host: "a", ranks: &ranks[..2], addresses: &ends[0] },
            PeerNode { host: "b", ranks: &ranks[2..3], addresses: &ends[1] },
            PeerNode { host: "c", ranks: &ranks[3..], addresses: &ends[2] },
        ];
        let owner = |address: [u8; 4], from| owner_of(address.into(), NodeId(from), &nodes);
        assert_eq!(owner([10, 0, 0, 2], 0).as_deref(), Some("rank 2 on b"));
        assert_eq!(owner([10, 0, 0, 3], 0).as_deref(), Some("c"));
        assert_eq!(owner([127, 0, 0, 1], 0).as_deref(), Some("a"));
        assert_eq!(owner(bridge, 1).as_deref(), Some("rank 2 on b"));
        assert_eq!(owner(bridge, 7), None);
        assert_eq!(owner([10, 0, 0, 9], 0), None);
    }
}
