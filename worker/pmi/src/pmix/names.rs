//! Values that ranks publish, look up and withdraw.
//!
//! A published value is stored where all nodes read it. A rank learns that it is published, or withdrawn,
//! only after this node has read the key again: from then on each other rank finds the new state, also on
//! other nodes.

use super::bfrops::{Reader, Status, Writer};
use super::client::Caller;
use super::request::Published;
use crate::node::{ConnectionId, Family, Node};
use crate::sorted_map::{SortedMap, SortedSet};
use std::time::Instant;

/// Beginning of the keys under which values are stored.
const PREFIX: &str = "pmi:pub:";

/// Maximum length in bytes of a published key, so that the stored one has at most 255 bytes.
const KEY_MAX: usize = 255 - PREFIX.len();

/// Maximum size in bytes of a stored value.
const VALUE_MAX: usize = 64 * 1024;

/// Maximum number of keys in the requests of a connection that are not answered. Open MPI waits for each
/// answer, and its requests have one key; but a request may withdraw all keys of a rank.
const PENDING_MAX: usize = 1024;

/// Maximum number of keys that are being read and have a value or none, and maximum number of keys that are
/// awaited. The latter are read until they have a value, even if all clients have stopped waiting.
const READS_MAX: usize = 4096;

/// Maximum size in bytes of the values in an answer. Clients refuse messages of more than 16 MiB.
const LISTED_MAX: usize = 8 * 1024 * 1024;

/// Maximum number of keys that a rank has published and not withdrawn.
const PUBLISHED_MAX: usize = 1024;

/// Body of an answer, and the client that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) caller: Caller,
    pub(super) body: Vec<u8>,
}

/// Published values.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Requests that are not answered.
    requests: SortedMap<u64, PendingRequest>,
    /// Key that each read is for, with the number of its request, by number of the read.
    reads: SortedMap<u64, (u64, String)>,
    /// Key that each read waits for, by number of the read. There is one read for each key.
    awaits: SortedMap<u64, String>,
    /// Numbers of the requests that wait for each key, oldest first. Some may have been answered.
    awaited: SortedMap<String, Vec<u64>>,
    next_request: u64,
    /// Keys that each local rank has published and not withdrawn.
    published: SortedMap<usize, SortedSet<String>>,
}

/// Request that is not answered.
#[derive(Debug)]
struct PendingRequest {
    caller: Caller,
    /// Number of keys that have not been read.
    missing: usize,
    step: Step,
    deadline: Option<Instant>,
}

/// Purpose of reading keys.
#[derive(Debug)]
enum Step {
    /// Values have been published, which is certain as soon as they have been read.
    Publish {
        /// Whether a value was not there.
        has_failed: bool,
        /// Keys of values that are withdrawn once they have been looked up, so they may be gone.
        once: SortedSet<String>,
    },
    /// Values are looked up.
    Lookup(Listed),
    /// Values are looked for, to be withdrawn then: keys that were found.
    Unpublish(SortedSet<String>),
    /// Values have been withdrawn, which is certain as soon as their keys have been read again.
    Withdrawn,
}

/// Values that a lookup has found.
#[derive(Debug, Default)]
struct Listed {
    number: usize,
    /// Their entries in the answer, one after the other.
    entries: Vec<u8>,
    /// Whether there are more, which do not fit.
    is_too_long: bool,
}

impl Names {
    /// Publishes values. Returns the status if the answer is known at once; otherwise it comes from
    /// [`Names::value`].
    pub(super) fn publish(
        &mut self,
        node: &mut Node,
        caller: Caller,
        values: &[Published<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        let mut stored = SortedMap::default();
        let mut once = SortedSet::default();
        for published in values {
            let key = storage_key(published.key)?;
            let mut writer = Writer::new();
            writer.u8(u8::from(published.once)).u32(node.rank(caller.local));
            writer.u16(published.value.kind).raw(published.value.encoded);
            let value = writer.into_bytes();
            if value.len() > VALUE_MAX {
                return Err(Status::OUT_OF_RESOURCE);
            }
            if published.once {
                once.insert(key.clone(), ());
            }
            stored.insert(key, value);
        }
        let keys: SortedSet<String> = stored.keys().iter().map(|key| (key.clone(), ())).collect();
        self.check(caller.connection, &keys, false)?;
        let published = self.published.get_or_insert_with(caller.local, SortedSet::default);
        if published.len() + keys.len() > PUBLISHED_MAX {
            return Err(Status::OUT_OF_RESOURCE);
        }
        for key in keys.keys() {
            published.insert(key.clone(), ());
        }
        for (key, value) in stored.into_entries() {
            node.put(key, value);
        }
        let step = Step::Publish { has_failed: false, once };
        self.start(node, caller, keys, step, deadline, false);
        Ok(())
    }

    /// Looks up values; returns the same as [`Names::publish`].
    pub(super) fn look_up(
        &mut self,
        node: &mut Node,
        caller: Caller,
        keys: &[&[u8]],
        wait: bool,
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        let keys = storage_keys(keys)?;
        self.check(caller.connection, &keys, wait)?;
        self.start(node, caller, keys, Step::Lookup(Listed::default()), deadline, wait);
        Ok(())
    }

    /// Withdraws values, or without keys all that the rank has published; returns the same as
    /// [`Names::publish`].
    pub(super) fn unpublish(
        &mut self,
        node: &mut Node,
        caller: Caller,
        keys: &[&[u8]],
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        let mut keys = storage_keys(keys)?;
        if keys.is_empty() {
            keys = self.published.get(&caller.local).cloned().unwrap_or_default();
            if keys.is_empty() {
                return Err(Status::SUCCESS);
            }
        }
        self.check(caller.connection, &keys, false)?;
        self.start(node, caller, keys, Step::Unpublish(SortedSet::default()), deadline, false);
        Ok(())
    }

    /// Checks that a connection may send a request with these keys.
    fn check(
        &self,
        connection: ConnectionId,
        keys: &SortedSet<String>,
        wait: bool,
    ) -> Result<(), Status> {
        let of_connection =
            self.requests.values().filter(|request| request.caller.connection == connection);
        let pending: usize = of_connection.map(|request| request.missing).sum();
        let reads = if wait {
            let new = keys.keys().iter().filter(|&key| !self.awaited.contains_key(key));
            self.awaited.len() + new.count()
        } else {
            self.reads.len() + keys.len()
        };
        if keys.is_empty() {
            Err(Status::BAD_PARAM)
        } else if pending + keys.len() > PENDING_MAX || reads > READS_MAX {
            Err(Status::OUT_OF_RESOURCE)
        } else {
            Ok(())
        }
    }

    fn start(
        &mut self,
        node: &mut Node,
        caller: Caller,
        keys: SortedSet<String>,
        step: Step,
        deadline: Option<Instant>,
        wait: bool,
    ) {
        let number = self.next_request;
        self.next_request += 1;
        let request = PendingRequest { caller, missing: keys.len(), step, deadline };
        self.requests.insert(number, request);
        for (key, ()) in keys.into_entries() {
            if wait {
                self.wait_for(node, key, &[number]);
            } else {
                let read = node.get(Family::Pmix, key.clone(), false);
                self.reads.insert(read, (number, key));
            }
        }
    }

    /// Lets requests wait for a key, which is read unless it is being read already.
    fn wait_for(&mut self, node: &mut Node, key: String, numbers: &[u64]) {
        if let Some(waiting) = self.awaited.get_mut(&key) {
            waiting.retain(|number| self.requests.contains_key(number));
            waiting.extend(numbers);
        } else {
            self.awaits.insert(node.get(Family::Pmix, key.clone(), true), key.clone());
            self.awaited.insert(key, numbers.to_vec());
        }
    }

    /// Takes the value of a key that was read. Returns the answers to requests whose keys are all read.
    pub(super) fn value(
        &mut self,
        node: &mut Node,
        read: u64,
        value: Option<&[u8]>,
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        if let Some((number, key)) = self.reads.remove(&read) {
            answers.extend(self.found(node, number, &key, value));
            return answers;
        }
        let Some(key) = self.awaits.remove(&read) else { return answers };
        let mut waiting = self.awaited.remove(&key).unwrap_or_default();
        waiting.retain(|number| self.requests.contains_key(number));
        let mut others = Vec::new();
        if value.is_some_and(|value| listed(node, &key, value).is_some_and(|(once, _)| once)) {
            // The value is for the first, and the others wait for the next.
            others = waiting.split_off(waiting.len().min(1));
        }
        for number in waiting {
            answers.extend(self.found(node, number, &key, value));
        }
        if !others.is_empty() {
            self.wait_for(node, key, &others);
        }
        answers
    }

    /// Adds the value of a key to what a request has found. Returns the answer if all keys are read.
    fn found(
        &mut self,
        node: &mut Node,
        number: u64,
        key: &str,
        value: Option<&[u8]>,
    ) -> Option<Answer> {
        let request = self.requests.get_mut(&number)?;
        request.missing -= 1;
        match &mut request.step {
            Step::Publish { has_failed, once } => {
                *has_failed |= value.is_none() && !once.contains_key(key);
            }
            Step::Lookup(found) => {
                if let Some((once, entry)) = value.and_then(|value| listed(node, key, value))
                    && found.add(&entry)
                    && once
                {
                    node.put(key.to_owned(), Vec::new());
                }
            }
            Step::Unpublish(found) if value.is_some() => found.insert(key.to_owned(), ()),
            Step::Unpublish(_) | Step::Withdrawn => {}
        }
        if request.missing > 0 {
            return None;
        }
        let PendingRequest { caller, step, deadline, .. } = self.requests.remove(&number)?;
        match step {
            Step::Unpublish(found) if !found.is_empty() => {
                self.withdraw(node, caller, found, deadline);
                None
            }
            step => Some(Answer { caller, body: body(step) }),
        }
    }

    fn withdraw(
        &mut self,
        node: &mut Node,
        caller: Caller,
        keys: SortedSet<String>,
        deadline: Option<Instant>,
    ) {
        for key in keys.keys() {
            node.put(key.clone(), Vec::new());
            if let Some(published) = self.published.get_mut(&caller.local) {
                published.remove(key);
            }
        }
        self.start(node, caller, keys, Step::Withdrawn, deadline, false);
    }

    /// Removes and returns the clients that no longer wait.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Caller> {
        let is_over =
            |request: &PendingRequest| request.deadline.is_some_and(|deadline| deadline <= now);
        let over = self.requests.values().filter(|request| is_over(request));
        let callers = over.map(|request| request.caller).collect();
        self.requests.retain(|_, request| !is_over(request));
        callers
    }

    /// Returns the time at which a client no longer waits.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.requests.values().filter_map(|request| request.deadline).min()
    }

    /// Forgets the requests of a connection.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.requests.retain(|_, request| request.caller.connection != connection);
    }
}

impl Listed {
    /// Adds an entry. Returns false if it does not fit.
    fn add(&mut self, entry: &[u8]) -> bool {
        self.is_too_long |= self.entries.len() + entry.len() > LISTED_MAX;
        if !self.is_too_long {
            self.number += 1;
            self.entries.extend_from_slice(entry);
        }
        !self.is_too_long
    }
}

/// Returns the keys under which values are stored, each once.
fn storage_keys(keys: &[&[u8]]) -> Result<SortedSet<String>, Status> {
    let mut stored = SortedSet::default();
    for key in keys {
        stored.insert(storage_key(key)?, ());
    }
    Ok(stored)
}

/// Returns the key under which a value is stored.
fn storage_key(key: &[u8]) -> Result<String, Status> {
    let key = std::str::from_utf8(key).map_err(|_| Status::BAD_PARAM)?;
    let fits = (1..=KEY_MAX).contains(&key.len());
    if fits { Ok(format!("{PREFIX}{key}")) } else { Err(Status::BAD_PARAM) }
}

/// Returns whether a stored value is withdrawn once it has been looked up, and its entry in the answer.
/// Returns `None` if the value is malformed, for example because a PMI-1 client has stored it.
fn listed(node: &Node, key: &str, value: &[u8]) -> Option<(bool, Vec<u8>)> {
    let mut reader = Reader::new(value);
    let once = reader.u8().ok()? != 0;
    let publisher = reader.u32().ok()?;
    let typed = reader.rest();
    reader.value().ok()?;
    let key = key.strip_prefix(PREFIX)?;
    let mut writer = Writer::new();
    writer.proc(&node.layout().namespace, publisher).string(key.as_bytes()).raw(typed);
    reader.is_at_end().then(|| (once, writer.into_bytes()))
}

/// Returns the body of the answer to a request whose keys have all been read.
fn body(step: Step) -> Vec<u8> {
    let status = match &step {
        Step::Publish { has_failed: true, .. } | Step::Lookup(Listed { is_too_long: true, .. }) => {
            Status::OUT_OF_RESOURCE
        }
        Step::Lookup(Listed { number: 0, .. }) | Step::Unpublish(_) => Status::NOT_FOUND,
        Step::Publish { .. } | Step::Lookup(_) | Step::Withdrawn => Status::SUCCESS,
    };
    let mut writer = Writer::new();
    writer.count(1).i32(status.0);
    if let (Step::Lookup(Listed { number, entries, .. }), Status::SUCCESS) = (step, status) {
        writer.count(1).size(number as u64).count(number).raw(&entries);
    }
    writer.into_bytes()
}
