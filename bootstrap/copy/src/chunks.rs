//! Chunks, their hashes, and sets of them.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Length of a chunk, in bytes. The last chunk of a file may be shorter.
pub const CHUNK: u64 = 1 << 20;

/// BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hash(#[serde(with = "serde_bytes")] pub [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hashes the bytes of a chunk.
pub fn hash(bytes: &[u8]) -> Hash {
    Hash(*blake3::hash(bytes).as_bytes())
}

/// Index among all chunks of a manifest, in the order of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId(pub u32);

/// Set of chunks of one manifest, as a bitmap.
#[derive(Clone, PartialEq, Eq)]
pub struct ChunkSet {
    words: Vec<u64>,
    len: u32,
    count: u32,
}

impl ChunkSet {
    /// Makes an empty set for a manifest of `len` chunks.
    pub fn new(len: u32) -> ChunkSet {
        ChunkSet { words: vec![0; len.div_ceil(64) as usize], len, count: 0 }
    }

    /// Makes the set of all `len` chunks of a manifest.
    pub fn full(len: u32) -> ChunkSet {
        let mut set = ChunkSet::new(len);
        set.insert_range(0..len);
        set
    }

    /// Returns the number of chunks of the manifest.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of chunks in the set.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Tells whether no chunk is in the set.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Tells whether all chunks of the manifest are in the set.
    pub fn is_full(&self) -> bool {
        self.count == self.len
    }

    /// Adds a chunk. Returns whether it is new; one that the manifest does not have never is.
    pub fn insert(&mut self, id: ChunkId) -> bool {
        let is_new = id.0 < self.len && !self.contains(id);
        if is_new {
            self.words[(id.0 / 64) as usize] |= bit(id.0);
            self.count += 1;
        }
        is_new
    }

    /// Adds the chunks of a range that the manifest has.
    pub fn insert_range(&mut self, range: Range<u32>) {
        self.change(range, |word, mask| word | mask);
    }

    /// Removes a chunk. Returns whether it was in the set.
    pub fn remove(&mut self, id: ChunkId) -> bool {
        let was_in = self.contains(id);
        if was_in {
            self.words[(id.0 / 64) as usize] &= !bit(id.0);
            self.count -= 1;
        }
        was_in
    }

    /// Removes the chunks of a range.
    pub fn remove_range(&mut self, range: Range<u32>) {
        self.change(range, |word, mask| word & !mask);
    }

    /// Tells whether a chunk is in the set.
    pub fn contains(&self, id: ChunkId) -> bool {
        self.words.get((id.0 / 64) as usize).is_some_and(|word| word & bit(id.0) != 0)
    }

    /// Adds the chunks of another set of the same manifest.
    pub fn union_with(&mut self, other: &ChunkSet) {
        self.combine(other, |word, other| word | other);
    }

    /// Removes the chunks of another set of the same manifest.
    pub fn subtract(&mut self, other: &ChunkSet) {
        self.combine(other, |word, other| word & !other);
    }

    /// Removes the chunks that another set of the same manifest does not have.
    pub fn intersect_with(&mut self, other: &ChunkSet) {
        self.combine(other, |word, other| word & other);
    }

    /// Returns the first chunk of the set that is `from` or comes after it.
    pub fn first_from(&self, from: u32) -> Option<ChunkId> {
        self.next_bit(from, 0).map(ChunkId)
    }

    /// Iterates over the chunks of the set in order.
    pub fn iter(&self) -> impl Iterator<Item = ChunkId> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let id = self.first_from(from)?;
            from = id.0 + 1;
            Some(id)
        })
    }

    /// Iterates over the longest ranges of chunks in the set, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.next_bit(from, 0)?;
            // Bits beyond the last chunk are clear, so that a range ends there at the latest.
            from = self.next_bit(start, u64::MAX).unwrap_or(self.len);
            Some(start..from)
        })
    }

    /// Returns the place, `from` or after it, of the first bit that is set once all were XORed with
    /// `flip`.
    fn next_bit(&self, from: u32, flip: u64) -> Option<u32> {
        let first = (from / 64) as usize;
        let words = self.words.get(first..)?.iter().enumerate();
        let mut found = words.map(|(index, word)| {
            let before = if index == 0 { bit(from) - 1 } else { 0 };
            (first + index, (word ^ flip) & !before)
        });
        let (index, word) = found.find(|(_, word)| *word != 0)?;
        // Words are at most 2^26, and a set of 2^32 - 1 chunks has its last bit clear.
        Some(index as u32 * 64 + word.trailing_zeros()).filter(|id| *id < self.len)
    }

    fn change(&mut self, range: Range<u32>, change: impl Fn(u64, u64) -> u64) {
        let mut at = range.start;
        let end = range.end.min(self.len);
        while at < end {
            let until = (at / 64).saturating_add(1).saturating_mul(64).min(end);
            let ones = u64::MAX >> (64 - (until - at));
            let index = (at / 64) as usize;
            let word = change(self.words[index], ones << (at % 64));
            self.count = self.count - self.words[index].count_ones() + word.count_ones();
            self.words[index] = word;
            at = until;
        }
    }

    fn combine(&mut self, other: &ChunkSet, combine: impl Fn(u64, u64) -> u64) {
        debug_assert_eq!(self.len, other.len, "sets of different manifests");
        self.count = 0;
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word = combine(*word, *other);
            self.count += word.count_ones();
        }
    }
}

impl fmt::Debug for ChunkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ranges()).finish()
    }
}

fn bit(id: u32) -> u64 {
    1 << (id % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn hashes_are_those_of_blake3() {
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(hash(b"").to_string(), empty);
        assert_ne!(hash(b"a"), hash(b"b"));
    }

    #[test]
    fn a_set_ends_with_the_manifest() {
        for len in [0, 1, 63, 64, 65, 200] {
            let mut set = ChunkSet::new(len);
            assert_eq!((set.count(), set.is_empty(), set.is_full()), (0, true, len == 0));
            assert_eq!(set.ranges().next(), None);
            assert!(!set.insert(ChunkId(len)) && !set.insert(ChunkId(u32::MAX)));
            set.insert_range(0..u32::MAX);
            assert_eq!((set.len(), set.count(), set.is_full()), (len, len, true));
            assert_eq!(set, ChunkSet::full(len));
            assert_eq!(set.iter().count(), len as usize);
            assert_eq!(
                set.ranges().collect::<Vec<_>>(),
                Vec::from_iter((len > 0).then_some(0..len))
            );
            assert_eq!(set.first_from(len), None);
            set.remove_range(0..u32::MAX);
            assert!(set.is_empty() && !set.contains(ChunkId(0)));
        }
    }

    #[test]
    fn ranges_that_are_empty_or_reversed_add_nothing() {
        let mut set = ChunkSet::new(100);
        for (start, end) in [(5, 5), (7, 3), (100, 200), (u32::MAX, u32::MAX)] {
            set.insert_range(start..end);
        }
        assert!(set.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u32),
        Remove(u32),
        InsertRange(u32, u32),
        RemoveRange(u32, u32),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let at = 0..300_u32;
        let change = prop_oneof![
            at.clone().prop_map(Change::Insert),
            at.clone().prop_map(Change::Remove),
            (at.clone(), at.clone()).prop_map(|(from, to)| Change::InsertRange(from, to)),
            (at.clone(), at).prop_map(|(from, to)| Change::RemoveRange(from, to)),
        ];
        prop::collection::vec(change, 0..40)
    }

    /// Applies changes to a bitmap and to a set of numbers.
    fn apply(len: u32, changes: &[Change]) -> (ChunkSet, BTreeSet<u32>) {
        let mut set = ChunkSet::new(len);
        let mut model = BTreeSet::new();
        for change in changes {
            match *change {
                Change::Insert(id) => {
                    let is_new = id < len && model.insert(id);
                    assert_eq!(set.insert(ChunkId(id)), is_new);
                }
                Change::Remove(id) => assert_eq!(set.remove(ChunkId(id)), model.remove(&id)),
                Change::InsertRange(from, to) => {
                    set.insert_range(from..to);
                    model.extend((from..to).filter(|id| *id < len));
                }
                Change::RemoveRange(from, to) => {
                    set.remove_range(from..to);
                    model.retain(|id| !(from..to).contains(id));
                }
            }
        }
        (set, model)
    }

    fn ids(set: &ChunkSet) -> BTreeSet<u32> {
        set.iter().map(|id| id.0).collect()
    }

    proptest! {
        #[test]
        fn a_set_is_one_of_numbers(len in 0..260_u32, changes in changes(), from in 0..300_u32) {
            let (set, model) = apply(len, &changes);
            prop_assert_eq!(ids(&set), model.clone());
            prop_assert_eq!(set.count() as usize, model.len());
            prop_assert_eq!(set.first_from(from).map(|id| id.0), model.range(from..).next().copied());
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{:?}", ranges);
            prop_assert_eq!(ranges.into_iter().flatten().collect::<BTreeSet<_>>(), model);
        }

        #[test]
        fn two_sets_are_combined(len in 0..260_u32, one in changes(), other in changes()) {
            let ((set, model), (other, others)) = (apply(len, &one), apply(len, &other));
            let combined = |combine: fn(&mut ChunkSet, &ChunkSet)| {
                let mut set = set.clone();
                combine(&mut set, &other);
                assert_eq!(set.count() as usize, ids(&set).len());
                ids(&set)
            };
            prop_assert_eq!(combined(ChunkSet::union_with), &model | &others);
            prop_assert_eq!(combined(ChunkSet::subtract), &model - &others);
            prop_assert_eq!(combined(ChunkSet::intersect_with), &model & &others);
        }
    }
}
