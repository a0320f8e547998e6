//! A rank among ranks.

/// One of the ranks that take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which; less than `size`.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
}

impl Member {
    /// Who comes `steps` after this one, in a circle; `steps` is not more than the size.
    pub(super) fn ahead(self, steps: usize) -> usize {
        (self.rank + steps) % self.size
    }

    /// Who comes `steps` before this one.
    pub(super) fn behind(self, steps: usize) -> usize {
        (self.rank + self.size - steps) % self.size
    }

    /// The same when the root is the first.
    pub(super) fn relative_to(self, root: usize) -> Member {
        Member { rank: self.behind(root), size: self.size }
    }

    /// How many rounds it takes until everyone has heard of everyone, when those who know double.
    pub(super) fn rounds(self) -> u32 {
        self.size.next_power_of_two().trailing_zeros()
    }
}
