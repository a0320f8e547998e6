//! Sets of ranks that need little memory if the ranks are contiguous.

use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Set of ranks, stored as ranges in ascending order. Adjacent ranges are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u32, u32)>", into = "Vec<(u32, u32)>")]
pub struct RankSet {
    /// Ranges in ascending order, each from its first rank to the rank after its last.
    ranges: Vec<(u32, u32)>,
}

/// Error for ranges that are empty, not in ascending order, or adjacent.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("ranges of ranks are out of order")]
pub struct InvalidRanges;

impl TryFrom<Vec<(u32, u32)>> for RankSet {
    type Error = InvalidRanges;

    fn try_from(ranges: Vec<(u32, u32)>) -> Result<RankSet, InvalidRanges> {
        let ordered = ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
        let filled = ranges.iter().all(|(first, end)| first < end);
        if ordered && filled { Ok(RankSet { ranges }) } else { Err(InvalidRanges) }
    }
}

impl From<RankSet> for Vec<(u32, u32)> {
    fn from(set: RankSet) -> Self {
        set.ranges
    }
}

impl RankSet {
    /// Makes an empty set.
    pub fn new() -> RankSet {
        RankSet::default()
    }

    /// Tells whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of ranks.
    pub fn len(&self) -> u32 {
        self.ranges.iter().map(|(first, end)| end - first).sum()
    }

    /// Tells whether `rank` is in the set.
    pub fn contains(&self, rank: Rank) -> bool {
        let at = self.ranges.partition_point(|&(_, end)| end <= rank.0);
        self.ranges.get(at).is_some_and(|&(first, _)| first <= rank.0)
    }

    /// Adds a rank. Returns whether the rank was not in the set before. The number `u32::MAX` is
    /// never added, because no job has this many ranks.
    pub fn insert(&mut self, rank: Rank) -> bool {
        let Some(end) = rank.0.checked_add(1).filter(|_| !self.contains(rank)) else {
            return false;
        };
        self.insert_range(rank.0, end);
        true
    }

    /// Removes a rank if it is in the set.
    pub fn remove(&mut self, rank: Rank) {
        if !self.contains(rank) {
            return;
        }
        let at = self.ranges.partition_point(|&(_, end)| end <= rank.0);
        let (first, end) = self.ranges[at];
        let parts = [(first, rank.0), (rank.0 + 1, end)];
        self.ranges.splice(at..=at, parts.into_iter().filter(|(first, end)| first < end));
    }

    /// Adds every rank of `other`.
    pub fn extend(&mut self, other: &RankSet) {
        for &(first, end) in &other.ranges {
            self.insert_range(first, end);
        }
    }

    fn insert_range(&mut self, mut first: u32, mut end: u32) {
        let from = self.ranges.partition_point(|&(_, e)| e < first);
        let to = self.ranges.partition_point(|&(f, _)| f <= end);
        if let Some(touched) = self.ranges.get(from..to).filter(|touched| !touched.is_empty()) {
            first = first.min(touched[0].0);
            end = end.max(touched[touched.len() - 1].1);
        }
        self.ranges.splice(from..to, [(first, end)]);
    }

    /// Returns the ranks in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Rank> {
        self.ranges.iter().flat_map(|&(first, end)| first..end).map(Rank)
    }
}

impl FromIterator<Rank> for RankSet {
    fn from_iter<I: IntoIterator<Item = Rank>>(ranks: I) -> RankSet {
        let mut set = RankSet::new();
        for rank in ranks {
            set.insert(rank);
        }
        set
    }
}

/// Formats the set as ranges, such as `0-3, 7`.
impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, end)) in self.ranges.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match end - first {
                1 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{}", end - 1)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranks: &[u32]) -> RankSet {
        ranks.iter().copied().map(Rank).collect()
    }

    #[test]
    fn ranges_grow_and_meet() {
        assert_eq!(set(&[5, 1, 3]).to_string(), "1, 3, 5");
        assert_eq!(set(&[5, 1, 3, 2, 4]).to_string(), "1-5");
        assert_eq!(set(&[0, 1, 2, 7]).to_string(), "0-2, 7");
        assert_eq!(set(&[]).to_string(), "");
    }

    #[test]
    fn it_behaves_as_a_set_of_numbers() {
        let mut reference = std::collections::BTreeSet::new();
        let mut set = RankSet::new();
        let mut state = 7_u32;
        for _ in 0..500 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let rank = state >> 25;
            if state & 3 == 0 {
                set.remove(Rank(rank));
                reference.remove(&rank);
            } else {
                assert_eq!(set.insert(Rank(rank)), reference.insert(rank));
            }
            assert_eq!(set.contains(Rank(rank)), reference.contains(&rank));
        }
        assert_eq!(set.iter().map(|rank| rank.0).collect::<Vec<_>>(), Vec::from_iter(reference));
        assert!(RankSet::try_from(set.ranges.clone()).is_ok());
    }

    #[test]
    fn sets_are_joined() {
        let mut both = set(&[0, 1, 8]);
        both.extend(&set(&[2, 3, 5]));
        assert_eq!((both.to_string().as_str(), both.len()), ("0-3, 5, 8", 6));
    }

    #[test]
    fn the_largest_number_is_no_rank() {
        let mut all = RankSet::try_from(vec![(0, u32::MAX)]).unwrap();
        assert!(!all.insert(Rank(u32::MAX)) && !all.contains(Rank(u32::MAX)));
        assert_eq!(all.len(), u32::MAX);
    }

    #[test]
    fn disorder_from_outside_is_refused() {
        for ranges in [vec![(3, 3)], vec![(4, 2)], vec![(0, 2), (2, 3)], vec![(5, 6), (0, 1)]] {
            assert_eq!(RankSet::try_from(ranges), Err(InvalidRanges));
        }
    }
}
