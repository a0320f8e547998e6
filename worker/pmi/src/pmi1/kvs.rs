//! Key-value stores of a job: values that ranks have put, and those of a rank that no fence has taken;
//! and the services that ranks publish, look up and withdraw.
//!
//! A service is a value in the store that all nodes read. A rank learns that its service is published, or
//! withdrawn, only after this node has read the key again: from then on each other rank finds the new
//! state, also on other nodes.

use crate::fence::DATA_MAX;
use crate::node::{ConnectionId, Family, Node};
use crate::sorted_map::SortedMap;
use thiserror::Error;

/// Maximum length in bytes of a key, as announced to clients. Hydra announces the same.
pub(super) const KEY_MAX: usize = 64;

/// Maximum length in bytes of a value, as announced to clients. Hydra announces the same; clients split
/// larger values.
pub(super) const VALUE_MAX: usize = 1024;

/// Maximum size in bytes of the keys and values in a store, for each rank of the job. MPICH with UCX
/// puts 9 KiB for each rank.
const STORED_MAX: usize = 256 * 1024;

/// Bytes that a stored value costs beside its own: an estimate.
const ENTRY_COST: usize = 64;

/// Number of buckets of a store. A rank puts one key or a few, so a job of 10,000 ranks has some 10 in each.
const BUCKETS: usize = 1024;

/// Number of stores that are kept: that of the ranks' present MPI program, and that of the one before,
/// which some rank may not have left yet.
const STORES_MAX: usize = 2;

/// Reason why a value is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum PutError {
    /// The key is empty or too long.
    #[error("key_must_have_1_to_{KEY_MAX}_bytes")]
    Key,
    /// The value is too long.
    #[error("value_must_have_at_most_{VALUE_MAX}_bytes")]
    Value,
    /// The rank has put too much since the last fence.
    #[error("too_much_data_before_a_barrier")]
    Fresh,
    /// The store is full.
    #[error("too_much_data")]
    Full,
}

/// Key-value stores of a job.
#[derive(Debug)]
pub(super) struct Stores {
    /// Maximum size in bytes of a store.
    size_max: usize,
    /// Stores by number of the MPI program in the ranks' lives.
    stores: SortedMap<u32, Store>,
    /// Values that each rank has put since its last fence, encoded, by local rank.
    fresh: Vec<Vec<u8>>,
}

/// Values by key.
#[derive(Debug)]
struct Store {
    /// Keys and values in any order, by the hash of the key.
    buckets: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
    /// Size in bytes of the keys and values.
    size: usize,
}

impl Stores {
    /// Creates the stores of a job with this number of ranks, on a node with this number.
    pub(super) fn new(world_size: u32, local_size: usize) -> Stores {
        let ranks = usize::try_from(world_size).unwrap_or(usize::MAX);
        Stores {
            size_max: STORED_MAX.saturating_mul(ranks),
            stores: SortedMap::default(),
            fresh: vec![Vec::new(); local_size],
        }
    }

    /// Forgets what a local rank has put before it began its present MPI program.
    pub(super) fn reset(&mut self, local: usize) {
        if let Some(fresh) = self.fresh.get_mut(local) {
            fresh.clear();
        }
    }

    /// Stores a value for the ranks of this node at once and for the others at the next fence.
    pub(super) fn put(
        &mut self,
        local: usize,
        run: u32,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), PutError> {
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(PutError::Key);
        } else if value.len() > VALUE_MAX {
            return Err(PutError::Value);
        }
        let key_length = u8::try_from(key.len()).map_err(|_| PutError::Key)?;
        let value_length = u16::try_from(value.len()).map_err(|_| PutError::Value)?;
        let fresh = self.fresh.get_mut(local).ok_or(PutError::Full)?;
        if fresh.len() + 3 + key.len() + value.len() > DATA_MAX {
            return Err(PutError::Fresh);
        }
        store(&mut self.stores, run).insert(key, value, self.size_max)?;
        fresh.push(key_length);
        fresh.extend_from_slice(key);
        fresh.extend_from_slice(&value_length.to_be_bytes());
        fresh.extend_from_slice(value);
        Ok(())
    }

    /// Returns a value.
    pub(super) fn get(&self, run: u32, key: &[u8]) -> Option<&[u8]> {
        let store = self.stores.get(&run)?;
        let (_, value) = store.buckets.get(bucket(key))?.iter().find(|(other, _)| other == key)?;
        Some(value)
    }

    /// Returns what a local rank has put since its last fence, encoded for [`Stores::merge`].
    pub(super) fn take(&mut self, local: usize) -> Vec<u8> {
        self.fresh.get_mut(local).map(std::mem::take).unwrap_or_default()
    }

    /// Stores what the ranks have brought to a fence. Returns an error if a rank's data is malformed or
    /// too much.
    pub(super) fn merge(&mut self, run: u32, data: &[Vec<u8>]) -> Result<(), PutError> {
        let size_max = self.size_max;
        let store = store(&mut self.stores, run);
        for mut encoded in data.iter().map(Vec::as_slice) {
            while !encoded.is_empty() {
                let (key, value, after) = decode(encoded).ok_or(PutError::Key)?;
                store.insert(key, value, size_max)?;
                encoded = after;
            }
        }
        Ok(())
    }
}

/// Returns the store of an MPI program. Drops the oldest if there are too many.
fn store(stores: &mut SortedMap<u32, Store>, run: u32) -> &mut Store {
    if !stores.contains_key(&run) && stores.len() >= STORES_MAX {
        stores.remove_first();
    }
    stores.get_or_insert_with(run, Store::default)
}

impl Store {
    fn insert(&mut self, key: &[u8], value: &[u8], size_max: usize) -> Result<(), PutError> {
        let Some(bucket) = self.buckets.get_mut(bucket(key)) else { return Ok(()) };
        let old = bucket.iter_mut().find(|(other, _)| other == key);
        let freed = old.as_ref().map_or(0, |(_, old)| cost(key, old));
        let size = self.size - freed + cost(key, value);
        if size > size_max {
            return Err(PutError::Full);
        }
        self.size = size;
        match old {
            Some((_, old)) => *old = value.to_vec(),
            None => bucket.push((key.to_vec(), value.to_vec())),
        }
        Ok(())
    }
}

impl Default for Store {
    fn default() -> Store {
        Store { buckets: vec![Vec::new(); BUCKETS], size: 0 }
    }
}

/// Returns the number of the bucket of a key.
fn bucket(key: &[u8]) -> usize {
    let hash = |hash: usize, &byte: &u8| hash.wrapping_mul(31).wrapping_add(byte.into());
    key.iter().fold(0, hash) % BUCKETS
}

/// Returns the size in bytes of a stored value.
fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_COST
}

/// Returns the first key and value of encoded data, and what follows them.
fn decode(encoded: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&key_length, after) = encoded.split_first()?;
    let (key, after) = after.split_at_checked(usize::from(key_length))?;
    let (value_length, after) = after.split_first_chunk()?;
    let (value, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*value_length)))?;
    Some((key, value, after))
}

/// Beginning of the keys of services.
const PREFIX: &str = "pmi:pub:";

/// Maximum length in bytes of a service's name, so that its key has at most 255 bytes.
const SERVICE_MAX: usize = 255 - PREFIX.len();

/// Requests about services that wait for a value.
#[derive(Debug, Default)]
pub(super) struct ServiceReads {
    waiting: SortedMap<u64, Pending>,
}

/// Request about a service that waits for a value.
#[derive(Debug)]
struct Pending {
    connection: ConnectionId,
    step: ReadPurpose,
}

/// Use of a value that is read.
#[derive(Debug)]
enum ReadPurpose {
    /// The service is published as soon as it can be read.
    Publish,
    /// The value is the answer.
    Lookup,
    /// The service with this key can be withdrawn if it has a value.
    Unpublish(String),
    /// The service is withdrawn as soon as this is read.
    Withdrawn,
}

impl ServiceReads {
    /// Publishes a port. Returns the answer if the request is refused, otherwise the answer comes from
    /// [`ServiceReads::value`].
    pub(super) fn publish(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        service: &[u8],
        port: &[u8],
    ) -> Option<String> {
        let Some(key) = service_key(service) else { return Some(refused("publish", BAD_NAME)) };
        if port.is_empty() || !is_printable(port) {
            return Some(refused("publish", "bad_port"));
        }
        node.put(key.clone(), port.to_vec());
        self.read(node, connection, key, ReadPurpose::Publish);
        None
    }

    /// Looks up a service; returns the same as [`ServiceReads::publish`].
    pub(super) fn look_up(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        service: &[u8],
    ) -> Option<String> {
        let Some(key) = service_key(service) else { return Some(refused("lookup", BAD_NAME)) };
        self.read(node, connection, key, ReadPurpose::Lookup);
        None
    }

    /// Withdraws a service; returns the same as [`ServiceReads::publish`].
    pub(super) fn unpublish(
        &mut self,
        node: &mut Node,
        connection: ConnectionId,
        service: &[u8],
    ) -> Option<String> {
        let Some(key) = service_key(service) else { return Some(refused("unpublish", BAD_NAME)) };
        self.read(node, connection, key.clone(), ReadPurpose::Unpublish(key));
        None
    }

    /// Takes a value that was read. Returns the connection that waits for it and the answer.
    pub(super) fn value(
        &mut self,
        node: &mut Node,
        request: u64,
        value: Option<Vec<u8>>,
    ) -> Option<(ConnectionId, String)> {
        let Pending { connection, step } = self.waiting.remove(&request)?;
        let answer = match (step, value) {
            (ReadPurpose::Publish, Some(_)) => done("publish", ""),
            (ReadPurpose::Publish, None) => refused("publish", "not_stored"),
            (ReadPurpose::Lookup, Some(port)) if is_printable(&port) => {
                done("lookup", &format!(" port={}", String::from_utf8_lossy(&port)))
            }
            (ReadPurpose::Lookup, _) => refused("lookup", NOT_FOUND),
            (ReadPurpose::Unpublish(key), Some(_)) => {
                node.put(key.clone(), Vec::new());
                self.read(node, connection, key, ReadPurpose::Withdrawn);
                return None;
            }
            (ReadPurpose::Unpublish(_), None) => refused("unpublish", NOT_FOUND),
            (ReadPurpose::Withdrawn, _) => done("unpublish", ""),
        };
        Some((connection, answer))
    }

    fn read(&mut self, node: &mut Node, connection: ConnectionId, key: String, step: ReadPurpose) {
        let wait = matches!(step, ReadPurpose::Publish);
        let request = node.get(Family::Pmi1, key, wait);
        self.waiting.insert(request, Pending { connection, step });
    }
}

/// Reasons in answers; clients end a reason at the first space.
const BAD_NAME: &str = "service_names_have_1_to_247_bytes_of_UTF-8";
const NOT_FOUND: &str = "service_not_found";

fn done(command: &str, port: &str) -> String {
    format!("cmd={command}_result{port} info=ok rc=0 msg=success\n")
}

fn refused(command: &str, reason: &str) -> String {
    format!("cmd={command}_result rc=1 msg={reason}\n")
}

/// Returns the key of a service.
fn service_key(service: &[u8]) -> Option<String> {
    let service = std::str::from_utf8(service).ok()?;
    let fits = (1..=SERVICE_MAX).contains(&service.len());
    fits.then(|| format!("{PREFIX}{service}"))
}

/// Tells whether a port can be part of an answer: it must not end the line.
fn is_printable(port: &[u8]) -> bool {
    !port.iter().any(u8::is_ascii_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_brings_what_it_has_put_since_the_fence_before() {
        let (mut here, mut there) = (Stores::new(2, 1), Stores::new(2, 1));
        here.put(0, 1, b"k", b"v").unwrap();
        here.put(0, 1, b"long", &[b'x'; VALUE_MAX]).unwrap();
        assert_eq!(here.get(1, b"k"), Some(&b"v"[..]));
        let brought = here.take(0);
        assert_eq!(here.take(0), b"");
        there.merge(1, &[brought, Vec::new()]).unwrap();
        assert_eq!(there.get(1, b"k"), Some(&b"v"[..]));
        assert_eq!(there.get(1, b"long").map(<[u8]>::len), Some(VALUE_MAX));
        assert_eq!(there.get(2, b"k"), None);
    }

    #[test]
    fn keys_and_values_have_limits() {
        let mut stores = Stores::new(1, 1);
        assert_eq!(stores.put(0, 1, b"", b"v"), Err(PutError::Key));
        assert_eq!(stores.put(0, 1, &[b'k'; KEY_MAX + 1], b"v"), Err(PutError::Key));
        assert_eq!(stores.put(0, 1, b"k", &[0; VALUE_MAX + 1]), Err(PutError::Value));
        assert_eq!(stores.put(0, 1, &[b'k'; KEY_MAX], &[0; VALUE_MAX]), Ok(()));
    }

    #[test]
    fn a_rank_can_put_so_much_before_a_fence_and_so_much_in_all() {
        let mut stores = Stores::new(1, 1);
        let mut put = |number: u32| stores.put(0, 1, &number.to_be_bytes(), &[0; VALUE_MAX]);
        let refused = (0..1000).map(&mut put).position(|put| put == Err(PutError::Fresh)).unwrap();
        assert_eq!(refused, DATA_MAX / (3 + 4 + VALUE_MAX));
        let mut stores = Stores::new(1, 1);
        let mut put = |number: u32| {
            stores.take(0);
            stores.put(0, 1, &number.to_be_bytes(), &[0; VALUE_MAX])
        };
        let refused = (0..1000).map(&mut put).position(|put| put == Err(PutError::Full)).unwrap();
        assert_eq!(refused, STORED_MAX / (4 + VALUE_MAX + ENTRY_COST));
        // A key that is put again costs nothing more.
        assert_eq!(put(0), Ok(()));
    }

    #[test]
    fn the_stores_of_two_programs_are_kept() {
        let mut stores = Stores::new(1, 1);
        for run in 1..=3 {
            stores.put(0, run, b"k", b"v").unwrap();
        }
        let kept = [1, 2, 3].map(|run| stores.get(run, b"k").is_some());
        assert_eq!(kept, [false, true, true]);
    }

    #[test]
    fn malformed_data_is_refused() {
        let mut stores = Stores::new(1, 1);
        for data in [&b"\x01"[..], b"\x01k", b"\x01k\0", b"\x01k\0\x02v", b"\x05abc"] {
            assert_eq!(stores.merge(1, &[data.to_vec()]), Err(PutError::Key), "{data:?}");
        }
    }
}
