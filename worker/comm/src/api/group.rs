//! Members of a communicator, and the nodes on which they run.

use crate::collectives::choice::Topology;
use std::sync::Arc;

/// Members of a communicator, in the order of their ranks in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Rank in the job of each member, indexed by the member's rank in the communicator.
    pub(crate) ranks: Arc<[usize]>,
    /// Number of each member's node, indexed by the member's rank in the communicator.
    pub(crate) nodes: Arc<[u32]>,
    /// This process's rank in the communicator.
    pub(crate) me: usize,
}

impl Group {
    /// Creates the group of all ranks of a job; `nodes[rank]` is the node of a rank.
    pub(crate) fn world(me: usize, nodes: Arc<[u32]>) -> Group {
        Group { ranks: (0..nodes.len()).collect(), nodes, me }
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Returns this process's position among the members on its node, from 0, and the number of
    /// members on this node.
    pub(crate) fn local(&self) -> (usize, usize) {
        let own = self.nodes[self.me];
        let before = self.nodes[..self.me].iter().filter(|node| **node == own).count();
        (before, self.nodes.iter().filter(|node| **node == own).count())
    }

    pub(crate) fn topology(&self) -> Topology {
        let nodes: Vec<usize> = self.nodes.iter().map(|node| *node as usize).collect();
        Topology::new(self.me, &nodes)
    }

    /// Converts a rank of the job to a rank of the communicator; `None` if the rank is not a
    /// member.
    pub(crate) fn rank_of(&self, rank: usize) -> Option<usize> {
        // Most communicators have all ranks of the job as members, and then both numbers are equal.
        if self.ranks.get(rank) == Some(&rank) {
            return Some(rank);
        }
        self.ranks.iter().position(|of_job| *of_job == rank)
    }

    /// Returns the group of the members with this process's colour, ordered by key and then by
    /// rank. `colours[rank]` is the colour and the key of a member.
    pub(crate) fn split(&self, colours: &[(u32, i64)]) -> Group {
        let own = colours[self.me].0;
        let mut members: Vec<usize> =
            (0..self.size()).filter(|&member| colours[member].0 == own).collect();
        members.sort_by_key(|&member| (colours[member].1, member));
        Group {
            ranks: members.iter().map(|&member| self.ranks[member]).collect(),
            nodes: members.iter().map(|&member| self.nodes[member]).collect(),
            me: members.iter().position(|&member| member == self.me).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_splits_by_colour_and_orders_by_key() {
        let world = Group::world(2, [0, 0, 1, 1].into());
        assert_eq!(world.local(), (0, 2));
        let odd = Group { me: 3, ..world.clone() }.split(&[(0, 0), (1, 5), (0, 0), (1, 4)]);
        assert_eq!((&*odd.ranks, odd.me, odd.local()), (&[3, 1][..], 0, (0, 1)));
        assert_eq!((odd.rank_of(1), odd.rank_of(0)), (Some(1), None));
        let even = world.split(&[(0, 7), (1, 0), (0, 7), (1, 0)]);
        assert_eq!((&*even.ranks, even.me), (&[0, 2][..], 1));
    }
}
