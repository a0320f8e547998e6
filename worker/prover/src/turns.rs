//! Whose turn it is to read a block: there are few places to read into.
//!
//! Of each peer one path reads first. Where nothing comes over that, the others would wait as long
//! for nothing, and keep paths to other peers waiting: they end as it did, without being tried.

use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::PathFault;
use std::collections::HashMap;

/// The places of one end.
#[derive(Debug)]
pub(crate) struct Turns {
    free: Vec<usize>,
    peers: HashMap<NodeId, Peer>,
}

#[derive(Debug)]
enum Peer {
    /// One path reads, to find out.
    Tried,
    Answers,
    Silent(PathFault),
}

impl Turns {
    pub(crate) fn new(places: usize) -> Turns {
        Turns { free: (0..places).rev().collect(), peers: HashMap::new() }
    }

    /// Why a path to this peer need not try: another one has found out.
    pub(crate) fn hopeless(&self, peer: NodeId) -> Option<&PathFault> {
        match self.peers.get(&peer) {
            Some(Peer::Silent(fault)) => Some(fault),
            _ => None,
        }
    }

    /// The place that a path to this peer may read into now.
    pub(crate) fn take(&mut self, peer: NodeId) -> Option<usize> {
        if matches!(self.peers.get(&peer), Some(Peer::Tried | Peer::Silent(_))) {
            return None;
        }
        let place = self.free.pop()?;
        self.peers.entry(peer).or_insert(Peer::Tried);
        Some(place)
    }

    /// A path to this peer has read into this place, or has failed to.
    pub(crate) fn done(&mut self, peer: NodeId, place: usize, failed: Option<&PathFault>) {
        self.free.push(place);
        match (self.peers.get(&peer), failed) {
            (Some(Peer::Tried), Some(fault)) => {
                self.peers.insert(peer, Peer::Silent(fault.clone()));
            }
            (_, None) => {
                self.peers.insert(peer, Peer::Answers);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlaunch_bootstrap::protocol::mesh::ProofStep;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn fault() -> PathFault {
        PathFault {
            step: ProofStep::Block,
            cause: "status 12".to_owned(),
            hint: None,
            awaited_peer: false,
        }
    }

    #[test]
    fn one_path_of_each_peer_reads_first() {
        let mut turns = Turns::new(2);
        assert_eq!(turns.take(A), Some(0));
        assert_eq!(turns.take(A), None);
        assert_eq!(turns.take(B), Some(1));
        turns.done(A, 0, None);
        assert_eq!(turns.take(A), Some(0));
        assert_eq!(turns.take(A), None, "no place is left");
        turns.done(B, 1, Some(&fault()));
        assert_eq!(turns.take(B), None);
        assert_eq!(turns.hopeless(B), Some(&fault()));
        assert_eq!(turns.take(A), Some(1), "of a peer that answers several read at once");
    }

    #[test]
    fn a_peer_that_has_answered_is_not_given_up() {
        let mut turns = Turns::new(1);
        assert_eq!(turns.take(A), Some(0));
        turns.done(A, 0, None);
        assert_eq!(turns.take(A), Some(0));
        turns.done(A, 0, Some(&fault()));
        assert_eq!(turns.hopeless(A), None);
        assert_eq!(turns.take(A), Some(0));
    }
}
