//! Values that ranks publish, look up and withdraw.
//!
//! A published value is stored where all nodes read it. A rank learns that it is published, or withdrawn,
//! only after this node has read the key again: from then on each other rank finds the new state, also on
//! other nodes.

use super::bfrops::{Reader, Writer};
use super::client::Caller;
use super::request::Published;
use super::status::Status;
use crate::node::Node;
use crate::output::{ConnectionId, Family};
use std::collections::{BTreeMap, BTreeSet};
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

/// Maximum number of keys that are being read. Reads go on after their clients have stopped waiting.
const READS_MAX: usize = 4096;

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
    requests: BTreeMap<u64, PendingRequest>,
    /// Key that each read is for, with the number of its request, by number of the read.
    reads: BTreeMap<u64, (u64, String)>,
    next_request: u64,
    /// Keys that each local rank has published and not withdrawn.
    published: BTreeMap<usize, BTreeSet<String>>,
}

/// PendingRequest that is not answered.
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
        once: BTreeSet<String>,
    },
    /// Values are looked up: entries in the answer.
    Lookup(Vec<Vec<u8>>),
    /// Values are looked for, to be withdrawn then: keys that were found.
    Unpublish(Vec<String>),
    /// Values have been withdrawn, which is certain as soon as their keys have been read again.
    Withdrawn,
}

impl Names {
    /// Publishes values. Returns the status if the answer is known at once; otherwise it comes from
    /// [`Names::value`].
    pub(super) fn publish(
        &mut self,
        node: &mut Node,
        caller: Caller,
        values: &[Published<'_>],
    ) -> Result<(), Status> {
        let mut stored = BTreeMap::new();
        let mut once = BTreeSet::new();
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
                once.insert(key.clone());
            }
            stored.insert(key, value);
        }
        let keys: Vec<String> = stored.keys().cloned().collect();
        self.check(caller.connection, keys.len())?;
        let published = self.published.entry(caller.local).or_default();
        if published.len() + keys.len() > PUBLISHED_MAX {
            return Err(Status::OUT_OF_RESOURCE);
        }
        published.extend(keys.iter().cloned());
        for (key, value) in stored {
            node.put(key, value);
        }
        let step = Step::Publish { has_failed: false, once };
        self.start(node, caller, keys, step, None, false);
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
        let keys: Vec<String> =
            keys.iter().map(|key| storage_key(key)).collect::<Result<_, _>>()?;
        self.check(caller.connection, keys.len())?;
        self.start(node, caller, keys, Step::Lookup(Vec::new()), deadline, wait);
        Ok(())
    }

    /// Withdraws values, or without keys all that the rank has published; returns the same as
    /// [`Names::publish`].
    pub(super) fn unpublish(
        &mut self,
        node: &mut Node,
        caller: Caller,
        keys: &[&[u8]],
    ) -> Result<(), Status> {
        let mut keys: Vec<String> =
            keys.iter().map(|key| storage_key(key)).collect::<Result<_, _>>()?;
        let published = self.published.entry(caller.local).or_default();
        if keys.is_empty() {
            keys = published.iter().cloned().collect();
            if keys.is_empty() {
                return Err(Status::SUCCESS);
            }
        }
        self.check(caller.connection, keys.len())?;
        self.start(node, caller, keys, Step::Unpublish(Vec::new()), None, false);
        Ok(())
    }

    /// Checks that a connection may send a request with this number of keys.
    fn check(&self, connection: ConnectionId, keys: usize) -> Result<(), Status> {
        let of_connection =
            self.requests.values().filter(|request| request.caller.connection == connection);
        let pending: usize = of_connection.map(|request| request.missing).sum();
        match keys {
            0 => Err(Status::BAD_PARAM),
            _ if pending + keys > PENDING_MAX || self.reads.len() + keys > READS_MAX => {
                Err(Status::OUT_OF_RESOURCE)
            }
            _ => Ok(()),
        }
    }

    fn start(
        &mut self,
        node: &mut Node,
        caller: Caller,
        keys: Vec<String>,
        step: Step,
        deadline: Option<Instant>,
        wait: bool,
    ) {
        let number = self.next_request;
        self.next_request += 1;
        self.requests
            .insert(number, PendingRequest { caller, missing: keys.len(), step, deadline });
        for key in keys {
            let read = node.get(Family::Pmix, key.clone(), wait);
            self.reads.insert(read, (number, key));
        }
    }

    /// Takes the value of a key that was read. Returns the answer if all keys of its request are read.
    pub(super) fn value(
        &mut self,
        node: &mut Node,
        read: u64,
        value: Option<&[u8]>,
    ) -> Option<Answer> {
        let (number, key) = self.reads.remove(&read)?;
        let request = self.requests.get_mut(&number)?;
        request.missing -= 1;
        match &mut request.step {
            Step::Publish { has_failed, once } => {
                *has_failed |= value.is_none() && !once.contains(&key);
            }
            Step::Lookup(entries) => {
                if let Some((once, entry)) = value.and_then(|value| listed(node, &key, value)) {
                    entries.push(entry);
                    if once {
                        node.put(key, Vec::new());
                    }
                }
            }
            Step::Unpublish(found) if value.is_some() => found.push(key),
            Step::Unpublish(_) | Step::Withdrawn => {}
        }
        if request.missing > 0 {
            return None;
        }
        let PendingRequest { caller, step, .. } = self.requests.remove(&number)?;
        match step {
            Step::Unpublish(found) if !found.is_empty() => {
                self.withdraw(node, caller, found);
                None
            }
            step => Some(Answer { caller, body: body(step) }),
        }
    }

    fn withdraw(&mut self, node: &mut Node, caller: Caller, keys: Vec<String>) {
        for key in &keys {
            node.put(key.clone(), Vec::new());
            if let Some(published) = self.published.get_mut(&caller.local) {
                published.remove(key);
            }
        }
        self.start(node, caller, keys, Step::Withdrawn, None, false);
    }

    /// Removes and returns the clients that no longer wait.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Caller> {
        let is_over =
            |request: &PendingRequest| request.deadline.is_some_and(|deadline| deadline <= now);
        let over = self.requests.extract_if(.., |_, request| is_over(request));
        over.map(|(_, request)| request.caller).collect()
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
    let mut writer = Writer::new();
    writer.count(1);
    match step {
        Step::Publish { has_failed: true, .. } => writer.i32(Status::OUT_OF_RESOURCE.0),
        Step::Lookup(entries) if entries.is_empty() => writer.i32(Status::NOT_FOUND.0),
        Step::Lookup(entries) => {
            writer.i32(Status::SUCCESS.0).count(1).size(entries.len() as u64);
            writer.count(entries.len()).raw(&entries.concat())
        }
        Step::Unpublish(_) => writer.i32(Status::NOT_FOUND.0),
        Step::Publish { .. } | Step::Withdrawn => writer.i32(Status::SUCCESS.0),
    };
    writer.into_bytes()
}
