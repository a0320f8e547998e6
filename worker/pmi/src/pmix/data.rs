//! Data that ranks have committed: all of it for the ranks of this node, and for the others the part that
//! has come here.
//!
//! A rank brings its data to the next fence, after which all nodes have it. Open MPI may leave the fence
//! out, and a rank may want the data before it enters the fence. So data that no fence has brought to the
//! other nodes for a while is also stored where they can read it.
//!
//! A rank may run several MPI programs, one after the other. Each is a run, with a number from 1; the
//! data of a run is not visible in another.

use super::bfrops::{DecodeError, Reader, Status};
use super::request::{Scope, Section};
use crate::fence::DATA_MAX;
use crate::sorted_map::SortedMap;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Maximum size in bytes of what a rank has committed for readers on its node, and for those on other
/// nodes. When the latter is brought to a fence, a byte is added.
const ENTRIES_MAX: usize = DATA_MAX - 1;

/// Time after which committed data is stored if its rank is in no fence.
const UNFENCED_MAX: Duration = Duration::from_millis(50);

/// Time after which committed data is stored if its rank is in a fence that waits for slower ranks. To
/// store the data of all ranks would cost more than the fence itself.
const FENCED_MAX: Duration = Duration::from_secs(1);

/// Number of runs whose data of other nodes is kept: the present one, and the one before, which some rank
/// may not have left yet.
const RUNS_MAX: usize = 2;

/// First byte of a value that has the data of a rank.
const COMMITTED: u8 = 1;

/// First byte of what a rank brings to a fence before it has committed, and whole value of a rank that
/// has ended before it has committed.
const NOTHING: u8 = 0;

/// Key of values that belong to a group; a rank may have several. Their own key is inside the value.
const QUALIFIED: &[u8] = b"pmix.qual.val";

/// Reason why data is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum DataError {
    /// The data is malformed.
    #[error("committed data is malformed: {0}")]
    Malformed(#[from] DecodeError),
    /// The rank has committed too much.
    #[error("a rank may commit {ENTRIES_MAX} bytes")]
    TooMuch,
}

impl DataError {
    /// Returns the status for the rank that has sent the data.
    pub(super) fn status(self) -> Status {
        match self {
            DataError::Malformed(_) => Status::UNPACK_FAILURE,
            DataError::TooMuch => Status::OUT_OF_RESOURCE,
        }
    }
}

/// Keys and values, encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entries {
    /// Items that are keys and values, by key, or by the whole item if its key is [`QUALIFIED`].
    items: SortedMap<Vec<u8>, Vec<u8>>,
    /// Size in bytes of all items.
    size: usize,
}

impl Entries {
    /// Stores items; each replaces an older one with the same key. Adds the items that are new or have
    /// changed to `changed`. If there is too much, the items before the first that does not fit are stored.
    fn merge(&mut self, items: &[u8], changed: &mut Entries) -> Result<(), DataError> {
        let mut reader = Reader::new(items);
        while !reader.is_at_end() {
            reader.count(1)?;
            let (key, encoded) = reader.key_value()?;
            let item = [&1_i32.to_be_bytes(), encoded].concat();
            let identity = if key == QUALIFIED { encoded } else { key };
            let old = self.items.get(identity);
            if old == Some(&item) {
                continue;
            }
            if self.size - old.map_or(0, Vec::len) + item.len() > ENTRIES_MAX {
                return Err(DataError::TooMuch);
            }
            changed.insert(identity, item.clone());
            self.insert(identity, item);
        }
        Ok(())
    }

    fn insert(&mut self, identity: &[u8], item: Vec<u8>) {
        self.size -= self.items.get(identity).map_or(0, Vec::len);
        self.size += item.len();
        self.items.insert(identity.to_vec(), item);
    }

    /// Returns all items.
    fn encoded(&self) -> Vec<u8> {
        self.items.values().flatten().copied().collect()
    }
}

/// State of a rank's data, as far as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RankData {
    /// Items that are keys and values; empty if the rank has committed nothing.
    Committed(Vec<u8>),
    /// The rank has not committed yet, as far as this node knows.
    Unknown,
    /// The rank has ended before it has committed.
    Never,
}

/// Data of a rank of this node.
#[derive(Debug, Default)]
struct LocalData {
    /// Number of the run to which the data belongs; 0 before the first.
    run: u32,
    has_committed: bool,
    /// Data for ranks of this node.
    near: Entries,
    /// Data for ranks of other nodes.
    far: Entries,
    /// Part of `far` that no fence has taken.
    fresh: Entries,
    /// Number of fences of the run that the rank has entered and that are not complete.
    fences: u32,
    /// Time of the first commit that no fence has taken and that has not been stored.
    fresh_since: Option<Instant>,
    /// Time of the first commit that no complete fence has taken and that has not been stored.
    unfenced_since: Option<Instant>,
    /// Time at which the data is to be stored, unless fences have brought it to all nodes before.
    store_at: Option<Instant>,
}

/// Data of a rank of another node.
#[derive(Debug)]
enum FarData {
    Committed(Entries),
    Ended,
}

/// Data of all ranks, as far as this node has it.
#[derive(Debug)]
pub(super) struct Data {
    /// Data of the ranks of this node, by local rank.
    local: Vec<LocalData>,
    /// Data of the ranks of other nodes, by run and rank.
    far: SortedMap<u32, SortedMap<u32, FarData>>,
}

/// Value for [`Output::Put`](crate::Output::Put) that has the data of a local rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) local: usize,
    pub(super) run: u32,
    pub(super) value: Vec<u8>,
}

impl Data {
    /// Creates the data of a node with this number of ranks.
    pub(super) fn new(local_size: usize) -> Data {
        let local = (0..local_size).map(|_| LocalData::default()).collect();
        Data { local, far: SortedMap::default() }
    }

    /// Begins a run of a local rank, and forgets the data of the run before. Returns what is to be stored
    /// of that.
    pub(super) fn begin(&mut self, local: usize, run: u32) -> Option<Stored> {
        let stored = self.store(local);
        if let Some(data) = self.local.get_mut(local) {
            *data = LocalData { run, ..LocalData::default() };
        }
        stored
    }

    /// Stores what a local rank commits. Nothing is stored if there is an error.
    pub(super) fn commit(
        &mut self,
        local: usize,
        sections: &[Section<'_>],
        now: Instant,
    ) -> Result<(), DataError> {
        let Some(data) = self.local.get_mut(local) else { return Ok(()) };
        let (mut near, mut far) = (data.near.clone(), data.far.clone());
        let mut fresh = data.fresh.clone();
        for section in sections {
            let (is_near, is_far) = match section.scope {
                Scope::Local => (true, false),
                Scope::Remote => (false, true),
                Scope::Global => (true, true),
                Scope::Itself => (false, false),
            };
            if is_near {
                near.merge(section.items, &mut Entries::default())?;
            }
            if is_far {
                far.merge(section.items, &mut fresh)?;
            }
        }
        if !data.has_committed || far != data.far {
            data.fresh_since.get_or_insert(now);
            data.unfenced_since.get_or_insert(now);
            data.store_at.get_or_insert(now + UNFENCED_MAX);
        }
        (data.near, data.far, data.fresh) = (near, far, fresh);
        data.has_committed = true;
        Ok(())
    }

    /// Returns what a local rank brings to a fence: all that it has committed since the last one.
    pub(super) fn take(&mut self, local: usize) -> Vec<u8> {
        let Some(data) = self.local.get_mut(local) else { return vec![NOTHING] };
        data.fences += 1;
        data.fresh_since = None;
        if !data.has_committed {
            return vec![NOTHING];
        }
        let latest = data.unfenced_since.map(|since| since + FENCED_MAX);
        data.store_at = latest.max(data.store_at);
        let mut taken = vec![COMMITTED];
        taken.append(&mut std::mem::take(&mut data.fresh).encoded());
        taken
    }

    /// Takes notice that a fence of a run to which a local rank has brought data is complete.
    pub(super) fn fenced(&mut self, local: usize, run: u32) {
        let Some(data) = self.local.get_mut(local).filter(|data| data.run == run) else { return };
        data.fences = data.fences.saturating_sub(1);
        if data.fences == 0 {
            data.unfenced_since = data.fresh_since;
            data.store_at = data.fresh_since.map(|since| since + UNFENCED_MAX);
        }
    }

    /// Returns what is to be stored at this time. `is_in_fence` tells whether a local rank is in a fence.
    pub(super) fn due(
        &mut self,
        now: Instant,
        is_in_fence: impl Fn(usize) -> bool,
    ) -> Option<Stored> {
        for local in 0..self.local.len() {
            let data = self.local.get_mut(local)?;
            if data.store_at.is_none_or(|at| at > now) {
                continue;
            }
            let latest = data.unfenced_since.map(|since| since + FENCED_MAX);
            if is_in_fence(local) && latest.is_some_and(|latest| latest > now) {
                data.store_at = latest;
                continue;
            }
            return self.store(local);
        }
        None
    }

    /// Returns the time at which something is to be stored.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.local.iter().filter_map(|data| data.store_at).min()
    }

    /// Returns what is to be stored because a local rank has ended: what no complete fence has taken, or
    /// that there will never be anything.
    pub(super) fn end(&mut self, local: usize) -> Option<Stored> {
        let data = self.local.get(local)?;
        if data.run > 0 && !data.has_committed {
            return Some(Stored { local, run: data.run, value: vec![NOTHING] });
        }
        self.store(local)
    }

    /// Returns all that a local rank has committed for other nodes, or `None` if complete fences have taken
    /// all of it or it has been stored before.
    fn store(&mut self, local: usize) -> Option<Stored> {
        let data = self.local.get_mut(local)?;
        data.unfenced_since.take()?;
        (data.fresh_since, data.store_at) = (None, None);
        let mut value = vec![COMMITTED];
        value.append(&mut data.far.encoded());
        Some(Stored { local, run: data.run, value })
    }

    /// Stores what the ranks have brought to a fence of this run, by rank. Returns an error if something
    /// is malformed or too much.
    pub(super) fn merge(
        &mut self,
        run: u32,
        data: &[Vec<u8>],
        is_here: impl Fn(u32) -> bool,
    ) -> Result<(), DataError> {
        for (rank, brought) in (0..).zip(data).filter(|&(rank, _)| !is_here(rank)) {
            if let Some((&COMMITTED, items)) = brought.split_first() {
                self.merge_rank(run, rank, items)?;
            }
        }
        Ok(())
    }

    /// Stores a value that was read: the data of a rank of another node.
    pub(super) fn insert(&mut self, run: u32, rank: u32, value: &[u8]) -> Result<(), DataError> {
        match value.split_first() {
            Some((&COMMITTED, items)) => self.merge_rank(run, rank, items),
            _ => {
                self.far(run).get_or_insert_with(rank, || FarData::Ended);
                Ok(())
            }
        }
    }

    fn merge_rank(&mut self, run: u32, rank: u32, items: &[u8]) -> Result<(), DataError> {
        let data = self.far(run).get_or_insert_with(rank, || FarData::Ended);
        if matches!(data, FarData::Ended) {
            *data = FarData::Committed(Entries::default());
        }
        match data {
            FarData::Committed(entries) => entries.merge(items, &mut Entries::default()),
            FarData::Ended => Ok(()),
        }
    }

    /// Returns the data of a run, and forgets the oldest if there are too many.
    fn far(&mut self, run: u32) -> &mut SortedMap<u32, FarData> {
        if !self.far.contains_key(&run) && self.far.len() >= RUNS_MAX {
            self.far.remove_first();
        }
        self.far.get_or_insert_with(run, SortedMap::default)
    }

    /// Returns what a local rank has committed in a run for the others of this node.
    pub(super) fn near(&self, local: usize, run: u32) -> RankData {
        match self.local.get(local) {
            Some(data) if data.run == run && data.has_committed => {
                RankData::Committed(data.near.encoded())
            }
            // The rank has gone on to its next program.
            Some(data) if data.run > run => RankData::Never,
            _ => RankData::Unknown,
        }
    }

    /// Tells whether a local rank has committed a value with this key for the others of this node.
    pub(super) fn has_near(&self, local: usize, key: &[u8]) -> bool {
        self.local.get(local).is_some_and(|data| data.near.items.contains_key(key))
    }

    /// Returns what a rank of another node has committed in a run.
    pub(super) fn remote(&self, rank: u32, run: u32) -> RankData {
        match self.far.get(&run).and_then(|ranks| ranks.get(&rank)) {
            Some(FarData::Committed(entries)) => RankData::Committed(entries.encoded()),
            Some(FarData::Ended) => RankData::Never,
            None => RankData::Unknown,
        }
    }
}

/// Returns the key under which the data of a rank is stored.
pub(super) fn storage_key(run: u32, rank: u32) -> String {
    format!("pmix:{run}:{rank}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmix::bfrops::{Item, Writer};

    fn items(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut writer = Writer::new();
        for (key, value) in pairs {
            writer.key_value(key, Item::Text(value));
        }
        writer.into_bytes()
    }

    fn commit(data: &mut Data, scope: Scope, pairs: &[(&str, &str)], now: Instant) {
        let items = items(pairs);
        data.commit(0, &[Section { scope, items: &items }], now).unwrap();
    }

    #[test]
    fn readers_see_what_is_meant_for_them() {
        let now = Instant::now();
        let mut data = Data::new(1);
        data.begin(0, 1);
        assert_eq!(data.near(0, 1), RankData::Unknown);
        commit(&mut data, Scope::Local, &[("l", "1")], now);
        commit(&mut data, Scope::Remote, &[("r", "2")], now);
        commit(&mut data, Scope::Global, &[("g", "3")], now);
        commit(&mut data, Scope::Itself, &[("i", "4")], now);
        assert_eq!(data.near(0, 1), RankData::Committed(items(&[("g", "3"), ("l", "1")])));
        assert!(data.has_near(0, b"l") && !data.has_near(0, b"r"));
        let brought = data.take(0);
        assert_eq!(brought, [&[1][..], &items(&[("g", "3"), ("r", "2")])].concat());
        assert_eq!(data.near(0, 2), RankData::Unknown);
        data.begin(0, 2);
        assert_eq!(data.near(0, 1), RankData::Never);
        assert_eq!(data.near(0, 2), RankData::Unknown);
    }

    #[test]
    fn a_fence_takes_only_what_has_changed() {
        let now = Instant::now();
        let mut data = Data::new(1);
        data.begin(0, 1);
        assert_eq!(data.take(0), [0]);
        commit(&mut data, Scope::Remote, &[("a", "1"), ("b", "1")], now);
        assert_eq!(data.take(0).len(), 1 + items(&[("a", "1"), ("b", "1")]).len());
        commit(&mut data, Scope::Remote, &[("a", "1"), ("b", "2")], now);
        let brought = data.take(0);
        assert_eq!(brought, [&[1][..], &items(&[("b", "2")])].concat());
        commit(&mut data, Scope::Remote, &[("a", "1"), ("b", "2")], now);
        assert_eq!(data.take(0), [1]);
    }

    #[test]
    fn data_that_a_fence_does_not_bring_to_the_others_in_time_is_stored() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let mut data = Data::new(1);
        data.begin(0, 1);
        commit(&mut data, Scope::Global, &[("a", "1")], now);
        data.take(0);
        assert_eq!(data.next_due(), Some(after(1000)));
        data.fenced(0, 2);
        assert_eq!(data.next_due(), Some(after(1000)));
        data.fenced(0, 1);
        assert_eq!(data.next_due(), None);
        // What is committed after the fence was entered is due as if there had been none.
        commit(&mut data, Scope::Global, &[("a", "2")], after(1));
        data.take(0);
        commit(&mut data, Scope::Global, &[("a", "3")], after(2));
        assert_eq!(data.next_due(), Some(after(1001)));
        data.fenced(0, 1);
        assert_eq!(data.next_due(), Some(after(52)));
        data.take(0);
        data.take(0);
        data.fenced(0, 1);
        assert_eq!(data.due(after(1001), |_| true), None);
        let value = [&[1][..], &items(&[("a", "3")])].concat();
        let stored = data.due(after(1002), |_| true);
        assert_eq!(stored, Some(Stored { local: 0, run: 1, value }));
        data.fenced(0, 1);
        assert_eq!(data.next_due(), None);
    }

    #[test]
    fn data_of_other_nodes_comes_by_fences_and_reads() {
        let mut data = Data::new(1);
        let brought = [vec![9], [&[1][..], &items(&[("k", "v")])].concat(), vec![0]];
        data.merge(1, &brought, |rank| rank == 0).unwrap();
        assert_eq!(data.remote(0, 1), RankData::Unknown);
        assert_eq!(data.remote(1, 1), RankData::Committed(items(&[("k", "v")])));
        assert_eq!(data.remote(2, 1), RankData::Unknown);
        assert_eq!(data.remote(1, 2), RankData::Unknown);
        data.insert(1, 1, &[&[1][..], &items(&[("k", "w"), ("l", "x")])].concat()).unwrap();
        assert_eq!(data.remote(1, 1), RankData::Committed(items(&[("k", "w"), ("l", "x")])));
        data.insert(1, 2, &[0]).unwrap();
        assert_eq!(data.remote(2, 1), RankData::Never);
        assert!(data.insert(1, 1, &[1, 7]).is_err());
        assert!(data.merge(1, &[Vec::new(), vec![1, 7]], |rank| rank == 0).is_err());
        for run in 2..=3 {
            data.insert(run, 1, &[1]).unwrap();
        }
        assert_eq!(data.remote(1, 1), RankData::Unknown);
        assert_eq!(data.remote(1, 2), RankData::Committed(Vec::new()));
    }

    #[test]
    fn data_that_no_fence_takes_is_stored() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let mut data = Data::new(2);
        data.begin(0, 1);
        commit(&mut data, Scope::Global, &[("a", "1")], now);
        assert_eq!(data.next_due(), Some(after(50)));
        assert_eq!(data.due(after(49), |_| false), None);
        assert_eq!(data.due(after(50), |_| true), None);
        assert_eq!(data.next_due(), Some(after(1000)));
        assert_eq!(data.due(after(999), |_| true), None);
        let value = [&[1][..], &items(&[("a", "1")])].concat();
        let stored = Some(Stored { local: 0, run: 1, value: value.clone() });
        assert_eq!(data.due(after(1000), |_| true), stored);
        assert_eq!(data.next_due(), None);
        commit(&mut data, Scope::Global, &[("a", "1")], after(1001));
        assert_eq!(data.next_due(), None);
        commit(&mut data, Scope::Global, &[("b", "1")], after(1001));
        assert_eq!(data.next_due(), Some(after(1051)));
        let both = [&value[..], &items(&[("b", "1")])].concat();
        assert_eq!(data.due(after(1051), |_| false).map(|stored| stored.value), Some(both));
    }

    #[test]
    fn an_empty_commit_is_stored_too() {
        let now = Instant::now();
        let mut data = Data::new(1);
        data.begin(0, 1);
        data.commit(0, &[], now).unwrap();
        assert_eq!(data.near(0, 1), RankData::Committed(Vec::new()));
        let stored = data.due(now + UNFENCED_MAX, |_| false);
        assert_eq!(stored, Some(Stored { local: 0, run: 1, value: vec![1] }));
    }

    #[test]
    fn the_end_of_a_rank_is_stored_if_others_may_wait() {
        let now = Instant::now();
        let mut data = Data::new(1);
        assert_eq!(data.end(0), None);
        data.begin(0, 3);
        assert_eq!(data.end(0), Some(Stored { local: 0, run: 3, value: vec![0] }));
        commit(&mut data, Scope::Global, &[("a", "1")], now);
        assert!(data.end(0).is_some_and(|stored| stored.value.len() > 1));
        assert_eq!(data.end(0), None);
        commit(&mut data, Scope::Global, &[("a", "2")], now);
        data.take(0);
        data.fenced(0, 3);
        assert_eq!(data.end(0), None);
        commit(&mut data, Scope::Global, &[("a", "3")], now);
        assert!(data.begin(0, 4).is_some_and(|stored| stored.run == 3));
    }

    #[test]
    fn values_of_groups_do_not_replace_one_another() {
        let now = Instant::now();
        let mut data = Data::new(1);
        data.begin(0, 1);
        let both = [("pmix.qual.val", "1"), ("pmix.qual.val", "2")];
        commit(&mut data, Scope::Local, &both, now);
        assert_eq!(data.near(0, 1), RankData::Committed(items(&both)));
    }

    #[test]
    fn what_is_malformed_or_too_much_changes_nothing() {
        let now = Instant::now();
        let mut data = Data::new(1);
        data.begin(0, 1);
        commit(&mut data, Scope::Global, &[("a", "1")], now);
        let long = "x".repeat(40_000);
        let good = items(&[("a", "2")]);
        let malformed = [0, 0, 0, 1, 0, 0, 0, 2, b'k', 0, 0, 99];
        let big = items(&[("b", &long), ("c", &long)]);
        for (bad, error) in [
            (&malformed[..], DataError::Malformed(DecodeError::Type)),
            (&big[..], DataError::TooMuch),
        ] {
            for scope in [Scope::Local, Scope::Remote] {
                let sections =
                    [Section { scope: Scope::Global, items: &good }, Section { scope, items: bad }];
                assert_eq!(data.commit(0, &sections, now), Err(error));
                assert_eq!(data.near(0, 1), RankData::Committed(items(&[("a", "1")])));
            }
        }
        let first = items(&[("b", &long)]);
        let sections = [Section { scope: Scope::Remote, items: &first }];
        data.commit(0, &sections, now).unwrap();
        let second = items(&[("b", &long[1..])]);
        let sections = [Section { scope: Scope::Remote, items: &second }];
        data.commit(0, &sections, now).unwrap();
        assert!(data.take(0).len() <= DATA_MAX);
    }
    #[test]
    fn what_another_node_sends_is_limited_too() {
        let mut data = Data::new(0);
        let long = "x".repeat(40_000);
        data.insert(1, 0, &[&[1][..], &items(&[("a", &long)])].concat()).unwrap();
        let before = data.remote(0, 1);
        for key in ["b", "c"] {
            let more = [&[1][..], &items(&[(key, &long)])].concat();
            assert_eq!(data.insert(1, 0, &more), Err(DataError::TooMuch));
            assert!(data.remote(0, 1) == before, "{key}");
        }
        data.insert(1, 0, &[&[1][..], &items(&[("a", "short")])].concat()).unwrap();
        assert_eq!(data.remote(0, 1), RankData::Committed(items(&[("a", "short")])));
    }
}
