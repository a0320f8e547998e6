//! Slab: storage of entries under keys that are never reused.

/// Key of an entry in a [`Slab`]. No other entry of this slab ever has the same key, even after the
/// entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlabKey {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> SlabKey {
        if let Some(slot) = self.free.pop() {
            let (generation, entry) = &mut self.entries[slot as usize];
            *entry = Some(value);
            return SlabKey { slot, generation: *generation };
        }
        self.entries.push((0, Some(value)));
        // 2^32 entries do not fit into memory.
        SlabKey { slot: self.entries.len() as u32 - 1, generation: 0 }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: SlabKey) -> Option<&mut T> {
        match self.entries.get_mut(key.slot as usize) {
            Some((generation, entry)) if *generation == key.generation => entry.as_mut(),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<T> {
        let (generation, entry) = self.entries.get_mut(key.slot as usize)?;
        if *generation != key.generation {
            return None;
        }
        let value = entry.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(key.slot);
        Some(value)
    }

    pub(crate) fn keys(&self) -> Vec<SlabKey> {
        let slots = (0..).zip(&self.entries);
        slots
            .filter(|(_, (_, entry))| entry.is_some())
            .map(|(slot, (generation, _))| SlabKey { slot, generation: *generation })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_one_entry_for_ever() {
        let mut slab = Slab::default();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get_mut(second), Some(&mut "second"));
        assert_eq!(slab.keys(), [second]);
    }
}
