//! Requests to the root: the key-value store, whose values the root keeps, and requests of agents
//! to the root's agent. Requests are sent up the tree and replies down.
//!
//! A read sees every write that the reading rank can know of through rlaunch: its own writes, and
//! writes of other ranks before a common barrier. Edges of the tree preserve order, so a reply with
//! an old value never arrives after the confirmation of a later write.

use super::{
    Answer, CallId, ClientId, MAX_WAITING, Node, NodeOutput, NodeReport, NodeViolation, Refusal,
};
use crate::id::NodeId;
use crate::rendezvous::Time;
use crate::rendezvous::message::{Key, Message, MissingRanks};
use crate::rendezvous::payload::Payload;
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum memory of the store for keys and values, in bytes.
const CAPACITY: usize = 64 << 20;
/// Memory that an entry of the store needs beyond its key and value, in bytes.
const OVERHEAD: usize = 128;
/// Time that ranks wait for a key before the root reports it to the launcher.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// Time between two reports about the same key.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Sender of a request: a call of a rank of this node, or a child with its request number.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestOrigin {
    Call(CallId),
    Child(NodeId, u64),
}

/// Rank's call or child node that waits until a key has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyWaiter {
    /// Call of a rank of this node, with the time at which it expires.
    Call(CallId, Option<Time>),
    /// Child in the tree, on behalf of all ranks of its subtree.
    Child(NodeId),
}

#[derive(Debug)]
struct AwaitedKey {
    waiters: Vec<KeyWaiter>,
    since: Time,
    report_at: Time,
}

/// State of the key-value store on one node. Only the root has values.
#[derive(Debug, Default)]
pub(super) struct Store {
    values: BTreeMap<Key, Payload>,
    bytes: usize,
    next_request: u64,
    pending: BTreeMap<u64, RequestOrigin>,
    awaited: BTreeMap<Key, AwaitedKey>,
}

impl Store {
    pub(super) fn waiting(&self) -> usize {
        let awaited: usize = self.awaited.values().map(|awaited| awaited.waiters.len()).sum();
        self.pending.len() + awaited
    }

    pub(super) fn due(&self) -> Option<Time> {
        let ends = self.awaited.values().flat_map(|awaited| &awaited.waiters);
        let ends = ends.filter_map(|waiter| match waiter {
            KeyWaiter::Call(_, until) => *until,
            KeyWaiter::Child(_) => None,
        });
        let busy = self.awaited.values().filter(|awaited| !awaited.waiters.is_empty());
        ends.chain(busy.map(|awaited| awaited.report_at)).min()
    }

    pub(super) fn abandon(&mut self) -> Vec<CallId> {
        let pending = std::mem::take(&mut self.pending).into_values().filter_map(|o| match o {
            RequestOrigin::Call(id) => Some(id),
            RequestOrigin::Child(..) => None,
        });
        let waiters = std::mem::take(&mut self.awaited).into_values().flat_map(|a| a.waiters);
        let waiting = waiters.filter_map(|waiter| match waiter {
            KeyWaiter::Call(id, _) => Some(id),
            KeyWaiter::Child(_) => None,
        });
        pending.chain(waiting).collect()
    }

    pub(super) fn forget(&mut self, client: ClientId) {
        for awaited in self.awaited.values_mut() {
            awaited
                .waiters
                .retain(|waiter| !matches!(waiter, KeyWaiter::Call(id, _) if id.client == client));
        }
        // Pending requests of the client keep their entries until their replies arrive, which then
        // are dropped.
    }

    /// Stores a value. Returns `false` if there is no room for the value.
    fn insert(&mut self, key: &Key, value: Payload) -> bool {
        let cost = |value: &Payload| key.namespace.len() + key.name.len() + value.len() + OVERHEAD;
        let before = self.values.get(key).map_or(0, cost);
        let after = self.bytes - before + cost(&value);
        if after > CAPACITY {
            return false;
        }
        self.bytes = after;
        self.values.insert(key.clone(), value);
        true
    }
}

impl Node {
    pub(super) fn put(&mut self, origin: RequestOrigin, key: Key, value: Payload) {
        if let Some(parent) = self.parent {
            let Some(request) = self.register_request(origin) else { return };
            return self.send_with(parent, Message::Put { request, key }, value);
        }
        let stored = self.store.insert(&key, value.clone());
        self.confirm_put(origin, stored);
        if stored {
            self.deliver_to_all(&key, &value);
        }
    }

    pub(super) fn get(&mut self, origin: RequestOrigin, key: Key) {
        if let Some(parent) = self.parent {
            let Some(request) = self.register_request(origin) else { return };
            return self.send(parent, Message::Get { request, key });
        }
        let value = self.store.values.get(&key).cloned();
        self.answer_get(origin, value);
    }

    /// Records the sender of a request. Returns a new request number, or `None` after refusing the
    /// request because too many are pending.
    fn register_request(&mut self, origin: RequestOrigin) -> Option<u64> {
        if self.waiting() >= MAX_WAITING {
            match origin {
                RequestOrigin::Call(id) => self.answer(id, Answer::Refused(Refusal::TooMany)),
                RequestOrigin::Child(child, request) => {
                    // Refuses requests of every kind: the child looks up who asked by the number
                    // alone, and passes the refusal on.
                    self.send(child, Message::Stored { request, stored: false });
                }
            }
            return None;
        }
        let request = self.store.next_request;
        self.store.next_request += 1;
        self.store.pending.insert(request, origin);
        Some(request)
    }

    pub(super) fn await_key(&mut self, now: Time, waiter: KeyWaiter, key: Key) {
        if self.aborted.is_some() {
            return;
        }
        if let Some(value) = self.store.values.get(&key).cloned() {
            return self.deliver(waiter, &key, &value);
        }
        if self.waiting() >= MAX_WAITING {
            if let KeyWaiter::Call(id, _) = waiter {
                self.answer(id, Answer::Refused(Refusal::TooMany));
            }
            return;
        }
        let is_new = !self.store.awaited.contains_key(&key);
        let fresh = AwaitedKey { waiters: Vec::new(), since: now, report_at: now + REPORT_AFTER };
        let awaited = self.store.awaited.entry(key.clone()).or_insert(fresh);
        if !awaited.waiters.contains(&waiter) {
            awaited.waiters.push(waiter);
        }
        if let Some(parent) = self.parent.filter(|_| is_new) {
            self.send(parent, Message::Await(key));
        }
    }

    pub(super) fn on_stored(
        &mut self,
        from: NodeId,
        request: u64,
        stored: bool,
    ) -> Result<(), NodeViolation> {
        if self.aborted.is_none() {
            let origin = self.store.pending.remove(&request);
            let origin = origin.ok_or(NodeViolation::Unknown { from, message: "stored" })?;
            self.confirm_put(origin, stored);
        }
        Ok(())
    }

    pub(super) fn on_got(
        &mut self,
        from: NodeId,
        request: u64,
        found: bool,
        value: &Payload,
    ) -> Result<(), NodeViolation> {
        if self.aborted.is_none() {
            let origin = self.store.pending.remove(&request);
            let origin = origin.ok_or(NodeViolation::Unknown { from, message: "got" })?;
            self.answer_get(origin, found.then(|| value.clone()));
        }
        Ok(())
    }

    pub(super) fn on_appeared(
        &mut self,
        from: NodeId,
        key: &Key,
        value: &Payload,
    ) -> Result<(), NodeViolation> {
        if self.aborted.is_none() {
            if !self.store.awaited.contains_key(key) {
                return Err(NodeViolation::Unknown { from, message: "appeared" });
            }
            self.deliver_to_all(key, value);
        }
        Ok(())
    }

    fn confirm_put(&mut self, origin: RequestOrigin, stored: bool) {
        let answer = if stored { Answer::Done } else { Answer::Refused(Refusal::Full) };
        match origin {
            RequestOrigin::Call(id) => self.answer(id, answer),
            RequestOrigin::Child(child, request) => {
                self.send(child, Message::Stored { request, stored });
            }
        }
    }

    fn answer_get(&mut self, origin: RequestOrigin, value: Option<Payload>) {
        match origin {
            RequestOrigin::Call(id) => {
                self.answer(id, value.map_or(Answer::NoValue, Answer::Value));
            }
            RequestOrigin::Child(child, request) => {
                let found = value.is_some();
                let value = value.unwrap_or_default();
                self.send_with(child, Message::Got { request, found }, value);
            }
        }
    }

    fn deliver_to_all(&mut self, key: &Key, value: &Payload) {
        let awaited = self.store.awaited.remove(key);
        for waiter in awaited.into_iter().flat_map(|awaited| awaited.waiters) {
            self.deliver(waiter, key, value);
        }
    }

    fn deliver(&mut self, waiter: KeyWaiter, key: &Key, value: &Payload) {
        match waiter {
            KeyWaiter::Call(id, _) => self.answer(id, Answer::Value(value.clone())),
            KeyWaiter::Child(child) => {
                self.send_with(child, Message::Appeared(key.clone()), value.clone());
            }
        }
    }

    /// Ends waits whose timeout has expired. At the root, also reports keys for which ranks wait
    /// long.
    pub(super) fn expire_awaits(&mut self, now: Time) {
        let mut expired = Vec::new();
        for (key, awaited) in &mut self.store.awaited {
            awaited.waiters.retain(|waiter| match waiter {
                KeyWaiter::Call(id, Some(until)) if *until <= now => {
                    expired.push(*id);
                    false
                }
                _ => true,
            });
            if awaited.report_at <= now {
                awaited.report_at = now + REPORT_INTERVAL;
                if self.parent.is_none() && !awaited.waiters.is_empty() {
                    let waited = now.since(awaited.since);
                    let report = NodeReport::WaitingForKey { key: key.clone(), waited };
                    self.outputs.push_back(NodeOutput::Report(report));
                }
            }
        }
        for id in expired {
            self.answer(id, Answer::TimedOut(MissingRanks::default()));
        }
    }
}

/// Requests of agents to the root's agent. Their content is not interpreted.
impl Node {
    pub(super) fn on_agent_request(&mut self, id: CallId, question: Payload) {
        match self.aborted.clone() {
            Some((by, text)) => self.answer(id, Answer::Aborted { by, text }),
            None => self.request_root(RequestOrigin::Call(id), question),
        }
    }

    pub(super) fn request_root(&mut self, origin: RequestOrigin, question: Payload) {
        if self.aborted.is_some() {
            return;
        }
        let Some(request) = self.register_request(origin) else { return };
        match self.parent {
            Some(parent) => self.send_with(parent, Message::RootRequest { request }, question),
            None => self.outputs.push_back(NodeOutput::RootRequest(request, question)),
        }
    }

    /// Handles this agent's own reply to a request, at the root. Ignores the reply if an abort has
    /// dropped the request.
    pub(super) fn on_agent_reply(&mut self, request: u64, answer: Payload) {
        if let Some(origin) = self.store.pending.remove(&request) {
            self.deliver_root_reply(origin, answer);
        }
    }

    pub(super) fn on_root_reply(
        &mut self,
        from: NodeId,
        request: u64,
        answer: Payload,
    ) -> Result<(), NodeViolation> {
        if self.aborted.is_none() {
            let origin = self.store.pending.remove(&request);
            self.deliver_root_reply(
                origin.ok_or(NodeViolation::Unknown { from, message: "root reply" })?,
                answer,
            );
        }
        Ok(())
    }

    fn deliver_root_reply(&mut self, origin: RequestOrigin, answer: Payload) {
        match origin {
            RequestOrigin::Call(id) => self.answer(id, Answer::Value(answer)),
            RequestOrigin::Child(child, request) => {
                self.send_with(child, Message::RootReply { request }, answer);
            }
        }
    }
}
