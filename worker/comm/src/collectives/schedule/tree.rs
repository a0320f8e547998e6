//! Binomial tree of ranks. Ranks are numbered relative to the root, so that the root is rank 0.
//! Each subtree consists of consecutive ranks.

/// Returns the parent of `rank`, or `None` for the root.
pub(super) fn parent(rank: usize) -> Option<usize> {
    (rank != 0).then(|| rank & (rank - 1))
}

/// Returns the number of ranks in the subtree whose top is `rank`, `rank` included, in a tree of
/// `size` ranks.
pub(super) fn subtree_size(rank: usize, size: usize) -> usize {
    limit(rank, size).min(size - rank)
}

/// Returns the children of `rank` in a tree of `size` ranks, the child with the largest subtree
/// first.
pub(super) fn children(rank: usize, size: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..limit(rank, size).trailing_zeros())
        .rev()
        .map(move |bit| rank + (1 << bit))
        .filter(move |child| *child < size)
}

fn limit(rank: usize, size: usize) -> usize {
    if rank == 0 { size.next_power_of_two() } else { 1 << rank.trailing_zeros() }
}
