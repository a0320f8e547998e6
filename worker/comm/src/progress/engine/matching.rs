//! Posted receives, requests and collectives: their state, their completion, and the destinations to
//! which received bytes are copied or reduced. All are stored in slabs, whose keys are never reused,
//! because the program may still hold the key of a request that was cancelled.

use super::out_of_step::OutOfStep;
use crate::collectives::reduce;
use crate::collectives::schedule::Schedule;
use crate::transport::LocalSlice;
use crate::types::{Cause, ElementType, Op, Operation, PeerName};
use rlaunch_lock::{BufferId, BufferTable};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Operation that a message belongs to, and that is notified when the message has been sent or
/// received, or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Request of the program, for one message.
    Request(SlabKey),
    /// Collective whose current step sends or receives the message.
    Collective(SlabKey),
    /// No operation, because it was cancelled.
    Cancelled,
}

/// Receive that waits for its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedReceive {
    /// Rank of the sender in the job; any rank if `None`.
    pub(crate) from: Option<usize>,
    pub(crate) context: u32,
    pub(crate) tag: u32,
    pub(crate) target: Target,
    pub(crate) owner: Owner,
}

/// Result of a successful request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Rank of the peer in the job.
    pub(crate) from: usize,
    /// Length of the message in bytes.
    pub(crate) length: usize,
}

#[derive(Debug)]
pub(crate) struct RequestState {
    pub(crate) operation: Operation,
    pub(crate) ended: Option<Result<Status, Cause>>,
    /// Collective that the request runs; `None` if the request is for a message.
    pub(crate) collective: Option<SlabKey>,
}

/// Collective as it is begun: one rank's schedule, and what the schedule is applied to.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveArgs {
    pub(crate) schedule: Arc<Schedule>,
    /// Rank in the job of each member of the communicator, indexed by its rank in the communicator.
    pub(crate) ranks: Arc<[usize]>,
    pub(crate) context: u32,
    pub(crate) tag: u32,
    pub(crate) element: ElementType,
    /// Reduction operation; ignored by schedules without reductions.
    pub(crate) op: Op,
    pub(crate) input: LocalSlice,
    pub(crate) output: LocalSlice,
}

#[derive(Debug)]
pub(crate) struct RunningCollective {
    pub(super) args: CollectiveArgs,
    pub(super) scratch: Option<BufferId>,
    pub(super) step: usize,
    /// Number of unfinished messages of the current step; after cancellation, number of messages
    /// that an RDMA device still copies.
    pub(crate) pending: usize,
    pub(crate) failed: Option<Cause>,
    pub(super) operation: Operation,
    pub(super) request: SlabKey,
    /// Whether the collective has failed and its messages were cancelled. The collective then only
    /// waits until no RDMA device uses its buffers any more.
    pub(super) is_cancelled: bool,
}

/// Operations that wait for messages, and the errors that make them fail.
#[derive(Debug)]
pub(crate) struct Matching {
    /// Name of each rank of the job.
    pub(crate) names: Arc<[PeerName]>,
    /// Posted receives, in the order in which they were posted.
    pub(crate) posted: Vec<PostedReceive>,
    pub(crate) requests: Slab<RequestState>,
    pub(crate) collectives: Slab<RunningCollective>,
    /// Collectives whose current step has completed or failed.
    pub(crate) ready: Vec<SlabKey>,
    /// Error of every pending and future call, after the engine has failed.
    pub(crate) fault: Option<Cause>,
    /// Arrival number that was allocated last.
    arrivals: u64,
    /// Notices of cancelled collectives, by the context of the communicator's collectives. A
    /// communicator with such a notice cannot run collectives any more.
    pub(crate) out_of_step: BTreeMap<u32, OutOfStep>,
    /// Notices of cancelled collectives that have arrived from peers and still have to be applied.
    pub(crate) notices: Vec<OutOfStep>,
}

impl Matching {
    pub(crate) fn new(names: Arc<[PeerName]>) -> Matching {
        Matching {
            names,
            posted: Vec::new(),
            requests: Slab::default(),
            collectives: Slab::default(),
            ready: Vec::new(),
            fault: None,
            arrivals: 0,
            out_of_step: BTreeMap::new(),
            notices: Vec::new(),
        }
    }

    /// Allocates an arrival number, which orders the messages of all peers by their arrival.
    pub(crate) fn arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    pub(crate) fn set_collective(&mut self, request: SlabKey, collective: SlabKey) {
        if let Some(request) = self.requests.get_mut(request) {
            request.collective = Some(collective);
        }
    }

    /// Finds the oldest posted receive that matches a message, and returns its index in
    /// [`Matching::posted`].
    #[inline]
    pub(crate) fn find_posted(&self, from: usize, context: u32, tag: u32) -> Option<usize> {
        let fits = |posted: &PostedReceive| {
            posted.tag == tag
                && posted.context == context
                && posted.from.is_none_or(|wanted| wanted == from)
        };
        self.posted.iter().position(fits)
    }

    /// Removes and returns the oldest posted receive that matches a message.
    #[inline]
    pub(crate) fn take_posted(
        &mut self,
        from: usize,
        context: u32,
        tag: u32,
    ) -> Option<PostedReceive> {
        self.find_posted(from, context, tag).map(|at| self.posted.remove(at))
    }

    /// Reports the result of a message to its owner.
    #[inline]
    pub(crate) fn complete(&mut self, owner: Owner, result: Result<Status, Cause>) {
        match owner {
            Owner::Request(key) => {
                if let Some(request) = self.requests.get_mut(key) {
                    request.ended.get_or_insert(result);
                }
            }
            Owner::Collective(key) => {
                let Some(collective) = self.collectives.get_mut(key) else { return };
                collective.pending = collective.pending.saturating_sub(1);
                let has_failed = result.is_err();
                if let Err(cause) = result {
                    collective.failed.get_or_insert(cause);
                }
                // After a failure, the other messages of the step may never arrive.
                if collective.pending == 0 || has_failed {
                    self.ready.push(key);
                }
            }
            Owner::Cancelled => {}
        }
    }

    /// Returns an error if a message of `length` bytes does not suit its receive. A receive of the
    /// program accepts any message that fits into its buffer; a receive of a collective accepts
    /// only a message that is exactly as long as its buffer.
    #[inline]
    pub(crate) fn mismatch(
        &self,
        from: usize,
        length: u64,
        posted: &PostedReceive,
    ) -> Option<Cause> {
        let room = posted.target.into.length;
        match posted.owner {
            Owner::Request(_) if length > room as u64 => Some(self.truncated(from, length, room)),
            Owner::Collective(_) if length != room as u64 => {
                Some(self.count_mismatch(from, length, room))
            }
            _ => None,
        }
    }

    pub(crate) fn truncated(&self, from: usize, length: u64, room: usize) -> Cause {
        Cause::Truncated { peer: self.names[from].clone(), length, room }
    }

    pub(crate) fn count_mismatch(&self, from: usize, length: u64, expected: usize) -> Cause {
        Cause::CountMismatch { peer: self.names[from].clone(), length, expected }
    }

    /// Fails all requests, pending and future.
    pub(crate) fn fail_all(&mut self, cause: &Cause) {
        self.fault.get_or_insert_with(|| cause.clone());
        self.posted.clear();
        for key in self.requests.keys() {
            if let Some(request) = self.requests.get_mut(key) {
                request.ended.get_or_insert_with(|| Err(cause.clone()));
            }
        }
    }
}

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

/// Reduction of received bytes with local bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetReduction {
    pub(crate) op: Op,
    pub(crate) element: ElementType,
    /// Local bytes with which the received bytes are reduced, as long as the target. If `None`, the
    /// received bytes are reduced with the target's present contents.
    pub(crate) with: Option<LocalSlice>,
}

/// Destination of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) into: LocalSlice,
    /// Reduction to apply. If `None`, the bytes are copied.
    pub(crate) reduction: Option<TargetReduction>,
}

impl Target {
    /// Works like [`Target::put`], but skips the bytes of the message before offset `wanted`, which
    /// were already reduced.
    #[inline]
    pub(crate) fn put_from(
        &self,
        wanted: usize,
        buffers: &BufferTable,
        offset: usize,
        bytes: &[u8],
    ) -> Option<()> {
        match bytes.get(wanted.saturating_sub(offset)..) {
            Some(rest) => self.put(buffers, offset.max(wanted), rest),
            None => Some(()),
        }
    }

    /// Copies or reduces `bytes` into the target, beginning at byte `offset`. Bytes to reduce must
    /// be whole elements. Returns `None` if the program has taken the target's buffer back.
    #[inline]
    pub(crate) fn put(&self, buffers: &BufferTable, offset: usize, bytes: &[u8]) -> Option<()> {
        let into = self.into.part(offset, bytes.len());
        let Some(reduction) = self.reduction else {
            return into.write(buffers, |memory| memory.copy_from_slice(bytes));
        };
        let (op, element) = (reduction.op, reduction.element);
        let Some(with) = reduction.with.map(|with| with.part(offset, bytes.len())) else {
            return into
                .write(buffers, |memory| reduce::reduce_in_place(op, element, memory, bytes))?
                .ok();
        };
        let three = |memory: &mut [u8], own: &[u8]| {
            reduce::reduce_into(op, element, memory, own, bytes).ok()
        };
        if with.buffer == into.buffer {
            return buffers.read_write(into.buffer, (into.range(), with.range()), three)?;
        }
        into.write(buffers, |memory| with.read(buffers, |own| three(memory, own)))??
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
