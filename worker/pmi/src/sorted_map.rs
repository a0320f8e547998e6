//! Map in a sorted vector, for maps that are small or filled in the order of their keys. There are thirty
//! kinds of maps here; with those of the standard library the agent would be 200 KiB larger.

use std::borrow::Borrow;

/// Map whose entries are in the order of their keys. Adding and removing an entry takes time in proportion
/// to the number of the entries that follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SortedMap<K, V> {
    keys: Vec<K>,
    /// Values in the order of their keys.
    values: Vec<V>,
}

/// Set whose elements are in order.
pub(crate) type SortedSet<K> = SortedMap<K, ()>;

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> SortedMap<K, V> {
        SortedMap { keys: Vec::new(), values: Vec::new() }
    }
}

/// Returns the position of a key, or the position where it would be.
#[inline(never)]
fn place<K: Borrow<Q>, Q: Ord + ?Sized>(keys: &[K], key: &Q) -> Result<usize, usize> {
    keys.binary_search_by(|other| other.borrow().cmp(key))
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Returns the value of a key.
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.values.get(place(&self.keys, key).ok()?)
    }

    /// Returns the value of a key, to be changed.
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.values.get_mut(place(&self.keys, key).ok()?)
    }

    /// Tells whether a key has a value.
    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        place(&self.keys, key).is_ok()
    }

    /// Gives a key a value.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match place(&self.keys, &key) {
            Ok(place) => self.values[place] = value,
            Err(place) => {
                self.keys.insert(place, key);
                self.values.insert(place, value);
            }
        }
    }

    /// Returns the value of a key; one without gets the value that `make` returns.
    pub(crate) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let place = match place(&self.keys, &key) {
            Ok(place) => place,
            Err(place) => {
                self.keys.insert(place, key);
                self.values.insert(place, make());
                place
            }
        };
        &mut self.values[place]
    }

    /// Removes a key and returns its value.
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = place(&self.keys, key).ok()?;
        self.keys.remove(place);
        Some(self.values.remove(place))
    }

    /// Removes the lowest key.
    pub(crate) fn remove_first(&mut self) {
        if !self.keys.is_empty() {
            self.keys.remove(0);
            self.values.remove(0);
        }
    }

    /// Removes the entries for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        let mut kept = 0;
        for at in 0..self.keys.len() {
            if keep(&self.keys[at], &mut self.values[at]) {
                self.keys.swap(kept, at);
                self.values.swap(kept, at);
                kept += 1;
            }
        }
        self.keys.truncate(kept);
        self.values.truncate(kept);
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Tells whether there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the entries in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> + Clone {
        self.keys.iter().zip(&self.values)
    }

    /// Returns the keys in their order.
    pub(crate) fn keys(&self) -> &[K] {
        &self.keys
    }

    /// Returns the values in the order of their keys.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.values.iter()
    }

    /// Returns the values in the order of their keys, to be changed.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.values.iter_mut()
    }
}

impl<K, V> SortedMap<K, V> {
    /// Returns the entries in the order of their keys.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (K, V)> {
        self.keys.into_iter().zip(self.values)
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> SortedMap<K, V> {
        let mut map = SortedMap::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Does the same to a map of the standard library and compares.
        #[test]
        fn it_is_like_other_maps(acts in prop::collection::vec((0..5_u8, 0..20_u32), 0..100)) {
            let (mut map, mut other) = (SortedMap::default(), BTreeMap::new());
            for (value, (act, key)) in (0..).zip(acts) {
                match act {
                    0 | 1 => {
                        map.insert(key, value);
                        other.insert(key, value);
                    }
                    2 => prop_assert_eq!(map.remove(&key), other.remove(&key)),
                    3 => {
                        let made = *other.entry(key).or_insert(value);
                        prop_assert_eq!(*map.get_or_insert_with(key, || value), made);
                    }
                    _ => {
                        map.remove_first();
                        other.pop_first();
                    }
                }
                prop_assert_eq!(map.get(&key), other.get(&key));
                prop_assert_eq!(map.get_mut(&key), other.get_mut(&key));
                prop_assert_eq!(map.contains_key(&key), other.contains_key(&key));
                prop_assert_eq!((map.len(), map.is_empty()), (other.len(), other.is_empty()));
                prop_assert!(map.iter().eq(&other) && map.keys().iter().eq(other.keys()));
                prop_assert!(map.values().eq(other.values()));
                prop_assert!(map.values_mut().eq(other.values_mut()));
            }
            map.retain(|key, value| key % 2 == 0 && *value > 10);
            other.retain(|key, value| key % 2 == 0 && *value > 10);
            prop_assert!(map.into_entries().eq(other));
        }
    }
}
