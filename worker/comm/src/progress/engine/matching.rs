//! Posted receives, requests and collectives, and their completion.

use super::collective::RunningCollective;
use super::out_of_step::OutOfStep;
use super::slab::{Slab, SlabKey};
use super::target::Target;
use crate::types::error::{Cause, Operation, PeerName};
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
