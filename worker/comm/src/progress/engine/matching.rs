//! What is waited for: receives that wait for their message, requests and collectives that wait for
//! both.

use super::collective::RunningCollective;
use super::out_of_step::OutOfStep;
use super::slab::{Slab, SlabKey};
use super::target::Target;
use crate::types::error::{Cause, Operation, PeerName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who is told of the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A request of the program.
    Request(SlabKey),
    /// A step of a collective.
    Collective(SlabKey),
    /// A call that was given up, and is told nothing.
    Cancelled,
}

/// A receive that waits for its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedReceive {
    /// A rank of the job; any when `None`.
    pub(crate) from: Option<usize>,
    pub(crate) context: u32,
    pub(crate) tag: u32,
    pub(crate) target: Target,
    pub(crate) owner: Owner,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The rank of the job at the other end.
    pub(crate) from: usize,
    /// In bytes.
    pub(crate) length: usize,
}

/// A request of the program.
#[derive(Debug)]
pub(crate) struct RequestState {
    pub(crate) operation: Operation,
    pub(crate) ended: Option<Result<Status, Cause>>,
    /// What it does, where it is a collective.
    pub(crate) collective: Option<SlabKey>,
}

#[derive(Debug)]
pub(crate) struct Matching {
    /// By rank of the job.
    pub(crate) names: Arc<[PeerName]>,
    /// In the order in which they were posted.
    pub(crate) posted: Vec<PostedReceive>,
    pub(crate) requests: Slab<RequestState>,
    pub(crate) collectives: Slab<RunningCollective>,
    /// Collectives whose step is over.
    pub(crate) ready: Vec<SlabKey>,
    /// Sticky error for every pending and future call.
    pub(crate) fault: Option<Cause>,
    /// How many messages have come before a receive was posted for them.
    arrivals: u64,
    /// Communicators of which a collective was given up, by context, and what peers have told of others.
    pub(crate) out_of_step: BTreeMap<u32, OutOfStep>,
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

    /// The place of a message among those that have come before their receives.
    pub(crate) fn arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// A request is about this collective.
    pub(crate) fn set_collective(&mut self, request: SlabKey, collective: SlabKey) {
        if let Some(request) = self.requests.get_mut(request) {
            request.collective = Some(collective);
        }
    }

    /// The first receive that a message fits.
    #[inline]
    pub(crate) fn find_posted(&self, from: usize, context: u32, tag: u32) -> Option<usize> {
        let fits = |posted: &PostedReceive| {
            posted.tag == tag
                && posted.context == context
                && posted.from.is_none_or(|wanted| wanted == from)
        };
        self.posted.iter().position(fits)
    }

    /// Takes it.
    #[inline]
    pub(crate) fn take_posted(
        &mut self,
        from: usize,
        context: u32,
        tag: u32,
    ) -> Option<PostedReceive> {
        self.find_posted(from, context, tag).map(|at| self.posted.remove(at))
    }

    /// Says how a message has ended.
    #[inline]
    pub(crate) fn complete(&mut self, owner: Owner, how: Result<Status, Cause>) {
        match owner {
            Owner::Request(key) => {
                if let Some(request) = self.requests.get_mut(key) {
                    request.ended.get_or_insert(how);
                }
            }
            Owner::Collective(key) => {
                let Some(collective) = self.collectives.get_mut(key) else { return };
                collective.pending = collective.pending.saturating_sub(1);
                let has_failed = how.is_err();
                if let Err(cause) = how {
                    collective.failed.get_or_insert(cause);
                }
                // What else it waits for may never come.
                if collective.pending == 0 || has_failed {
                    self.ready.push(key);
                }
            }
            Owner::Cancelled => {}
        }
    }

    /// Why a message of `length` bytes does not suit its receive, if it does not: a receive of the
    /// program has room for it, a collective knows what comes.
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

    /// Everything that waits ends so, and everything to come.
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
