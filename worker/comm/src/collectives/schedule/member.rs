//! Arithmetic on rank numbers in a group of ranks.

/// Rank in a group, with the size of the group: all ranks of a collective, the ranks of one node,
/// or the leaders of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of the rank in the group, less than `size`.
    pub rank: usize,
    /// Number of ranks in the group.
    pub size: usize,
}

impl Member {
    /// Returns the rank `steps` after this one, modulo `size`; `steps` is at most `size`.
    pub(super) fn ahead(self, steps: usize) -> usize {
        (self.rank + steps) % self.size
    }

    /// Returns the rank `steps` before this one, modulo `size`; `steps` is at most `size`.
    pub(super) fn behind(self, steps: usize) -> usize {
        (self.rank + self.size - steps) % self.size
    }

    /// Returns this rank renumbered relative to `root`, so that the root becomes rank 0.
    pub(super) fn relative_to(self, root: usize) -> Member {
        Member { rank: self.behind(root), size: self.size }
    }

    /// Returns ⌈log₂ size⌉, the number of rounds of an algorithm that doubles or halves the number
    /// of blocks in each round.
    pub(super) fn rounds(self) -> u32 {
        self.size.next_power_of_two().trailing_zeros()
    }
}
