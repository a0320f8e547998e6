//! Order in which the paths of an end read the blocks of their peers into the end's few read
//! buffers.
//!
//! At first, a single path to each peer reads. If its read fails, all other paths to the same peer
//! end with the same fault without being tried. Otherwise each of them would occupy a read buffer
//! until its timeout, and delay paths to other peers.

use rlaunch_bootstrap::id::NodeId;
use rlaunch_bootstrap::protocol::mesh::PathFault;
use std::collections::HashMap;

/// Free read buffers of one end, and the reachability of its peers.
#[derive(Debug)]
pub(crate) struct ReadSchedule {
    free: Vec<usize>,
    peers: HashMap<NodeId, Peer>,
}

#[derive(Debug)]
enum Peer {
    /// One path reads, to find out whether the peer can be reached.
    Probing,
    Reachable,
    Unreachable(PathFault),
}

impl ReadSchedule {
    pub(crate) fn new(buffers: usize) -> ReadSchedule {
        ReadSchedule { free: (0..buffers).rev().collect(), peers: HashMap::new() }
    }

    /// Returns the fault of another path to this peer, if that makes further reads pointless.
    pub(crate) fn fault_of(&self, peer: NodeId) -> Option<&PathFault> {
        match self.peers.get(&peer) {
            Some(Peer::Unreachable(fault)) => Some(fault),
            _ => None,
        }
    }

    /// Takes the read buffer that a path to this peer may read into now, if there is one.
    pub(crate) fn take(&mut self, peer: NodeId) -> Option<usize> {
        if matches!(self.peers.get(&peer), Some(Peer::Probing | Peer::Unreachable(_))) {
            return None;
        }
        let buffer = self.free.pop()?;
        self.peers.entry(peer).or_insert(Peer::Probing);
        Some(buffer)
    }

    /// Frees a read buffer after a path to this peer has read into it; `failed` is the fault if the
    /// read failed.
    pub(crate) fn release(&mut self, peer: NodeId, buffer: usize, failed: Option<&PathFault>) {
        self.free.push(buffer);
        match (self.peers.get(&peer), failed) {
            (Some(Peer::Probing), Some(fault)) => {
                self.peers.insert(peer, Peer::Unreachable(fault.clone()));
            }
            (_, None) => {
                self.peers.insert(peer, Peer::Reachable);
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
        let mut schedule = ReadSchedule::new(2);
        assert_eq!(schedule.take(A), Some(0));
        assert_eq!(schedule.take(A), None);
        assert_eq!(schedule.take(B), Some(1));
        schedule.release(A, 0, None);
        assert_eq!(schedule.take(A), Some(0));
        assert_eq!(schedule.take(A), None, "no read buffer is free");
        schedule.release(B, 1, Some(&fault()));
        assert_eq!(schedule.take(B), None);
        assert_eq!(schedule.fault_of(B), Some(&fault()));
        assert_eq!(schedule.take(A), Some(1), "of a peer that answers several read at once");
    }

    #[test]
    fn a_peer_that_has_answered_is_not_given_up() {
        let mut schedule = ReadSchedule::new(1);
        assert_eq!(schedule.take(A), Some(0));
        schedule.release(A, 0, None);
        assert_eq!(schedule.take(A), Some(0));
        schedule.release(A, 0, Some(&fault()));
        assert_eq!(schedule.fault_of(A), None);
        assert_eq!(schedule.take(A), Some(0));
    }
}
