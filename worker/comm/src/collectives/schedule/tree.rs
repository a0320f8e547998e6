//! The binomial tree. Ranks count from the root; the ranks below one are those that follow it.

/// The rank above this one; none above the root.
pub(super) fn parent(rank: usize) -> Option<usize> {
    (rank != 0).then(|| rank & (rank - 1))
}

/// How many ranks this one stands for: itself, and those below it.
pub(super) fn subtree_size(rank: usize, size: usize) -> usize {
    limit(rank, size).min(size - rank)
}

/// The ranks next below this one, that with the most below it first.
pub(super) fn children(rank: usize, size: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..limit(rank, size).trailing_zeros())
        .rev()
        .map(move |bit| rank + (1 << bit))
        .filter(move |child| *child < size)
}

fn limit(rank: usize, size: usize) -> usize {
    if rank == 0 { size.next_power_of_two() } else { 1 << rank.trailing_zeros() }
}
