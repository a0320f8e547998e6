//! Cancellation of requests, and notices of cancelled collectives.
//!
//! A cancelled message concerns only its two ranks: an announced one is withdrawn, and one on its
//! way to a cancelled receive stays for the next receive. A cancelled collective concerns all ranks
//! of its communicator, which would otherwise wait for each other forever. They are notified, and
//! fail this collective and all later ones: the communicator is *out of step*.

use super::collective::CollectiveArgs;
use super::matching::{Matching, Owner};
use super::outbox::{pair, words};
use super::slab::SlabKey;
use super::{Engine, Peer};
use crate::collectives::kind::CollectiveKind;
use crate::transport::packet::{Header, PacketKind};
use crate::types::error::{Cause, LinkError, Operation};
use rlaunch_lock::BufferTable;

/// Notice of a cancelled collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfStep {
    /// Context of the communicator's collectives.
    pub(crate) context: u32,
    /// Sequence number of the first collective that cannot complete.
    pub(crate) number: u32,
    /// Rank in the job that cancelled it.
    pub(crate) by: usize,
    /// Index of its name in [`CollectiveKind::NAMES`].
    pub(crate) collective: u8,
    /// Rank whose goodbye caused the cancellation, if one did.
    pub(crate) left: Option<usize>,
}

/// Bits of the second payload word that hold the collective's index; the others hold `left` plus 1.
const COLLECTIVE: u32 = 8;

impl OutOfStep {
    /// Decodes a packet of [`OutOfStep::encode`].
    pub(super) fn decode(header: Header, payload: &[u8]) -> Result<OutOfStep, LinkError> {
        let [by, why] = words(payload, "malformed notice of a cancelled collective")?;
        let Header { context, tag: number, .. } = header;
        let left = ((why >> COLLECTIVE) as usize).checked_sub(1);
        Ok(OutOfStep { context, number, by: by as usize, collective: why as u8, left })
    }

    /// Encodes the notice as a packet.
    pub(super) fn encode(self) -> (Header, [u8; 16]) {
        let left = self.left.map_or(0, |rank| rank as u64 + 1);
        let payload = pair(self.by as u64, left << COLLECTIVE | u64::from(self.collective));
        let (kind, context, tag) = (PacketKind::OutOfStep, self.context, self.number);
        (Header { kind, context, tag, transfer: 0, length: payload.len() as u32 }, payload)
    }
}

/// Tells whether collective `number` is `first` or a later one, with wrap-around.
fn is_from(first: u32, number: u32) -> bool {
    number.wrapping_sub(first).cast_signed() >= 0
}

impl Matching {
    /// Returns the notice that affects this collective, if there is one.
    pub(super) fn notice_for(&self, context: u32, number: u32) -> Option<OutOfStep> {
        let known = self.out_of_step.get(&context)?;
        is_from(known.number, number).then_some(*known)
    }

    /// Tells whether this collective can no longer complete.
    #[inline]
    pub(crate) fn is_out_of_step(&self, context: u32, number: u32) -> bool {
        !self.out_of_step.is_empty() && self.notice_for(context, number).is_some()
    }

    /// Returns why this collective can no longer complete, if it cannot.
    #[inline]
    pub(crate) fn out_of_step(&self, context: u32, number: u32) -> Option<Cause> {
        if self.out_of_step.is_empty() {
            return None;
        }
        self.notice_for(context, number).map(|known| self.reason(known))
    }

    #[cold]
    fn reason(&self, known: OutOfStep) -> Cause {
        let name = |rank: usize| self.names.get(rank).cloned();
        if let Some(left) = known.left.and_then(name) {
            return Cause::Left(left);
        }
        let collective = CollectiveKind::NAMES.get(usize::from(known.collective));
        let collective = collective.copied().unwrap_or("a collective");
        match name(known.by) {
            Some(by) => Cause::OutOfStep { by, collective },
            None => Cause::Cancelled,
        }
    }

    /// Records a notice; `false` if an equal or stronger one is known.
    fn record(&mut self, notice: OutOfStep) -> bool {
        let OutOfStep { context, number, .. } = notice;
        if self.is_out_of_step(context, number) {
            return false;
        }
        self.out_of_step.insert(context, notice);
        true
    }
}

/// Collective that is being cancelled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CancelledCollective<'a> {
    pub(crate) context: u32,
    pub(crate) number: u32,
    pub(crate) operation: Operation,
    /// Rank in the job of each rank of the communicator.
    pub(crate) ranks: &'a [usize],
    pub(crate) cause: &'a Cause,
}

impl Engine {
    /// Cancels a request, whose memory is about to become invalid. Returns its owner if a device
    /// still uses the memory, see [`Engine::is_with_device`].
    pub(crate) fn cancel(
        &mut self,
        key: SlabKey,
        cause: &Cause,
        buffers: &BufferTable,
    ) -> Option<Owner> {
        let request = self.matching.requests.remove(key)?;
        let owner = match request.collective {
            Some(collective) => {
                // Has no effect if it has completed.
                self.fail_collective(collective, cause, |_| true, buffers);
                Owner::Collective(collective)
            }
            None => {
                self.cancel_messages(Owner::Request(key), None, buffers);
                Owner::Request(key)
            }
        };
        self.is_with_device(owner).then_some(owner)
    }

    /// Tells whether a device copies from or to memory of a cancelled operation.
    pub(crate) fn is_with_device(&self, owner: Owner) -> bool {
        let uses =
            |peer: &Peer| peer.outbox.is_with_device(owner) || peer.inbox.is_with_device(owner);
        self.matching.fault.is_none() && self.peers.iter().any(uses)
    }

    /// Marks peers as lost whose devices still use memory of a cancelled operation.
    pub(crate) fn lose_devices(&mut self, owner: Owner) {
        for at in 0..self.peers.len() {
            let Peer { outbox, inbox, .. } = &self.peers[at];
            if outbox.is_with_device(owner) || inbox.is_with_device(owner) {
                self.lose(at, LinkError::PartlySent);
            }
        }
    }

    /// Notifies all ranks of a communicator that this one cancels a collective, and fails it and
    /// later ones here.
    #[cold]
    pub(crate) fn cancel_collective(
        &mut self,
        cancelled: CancelledCollective<'_>,
        buffers: &BufferTable,
    ) {
        let CancelledCollective { context, number, operation, ranks, cause } = cancelled;
        // After a fault peers receive only a goodbye.
        if self.matching.fault.is_some() {
            return;
        }
        let matches = |name: &&str| matches!(operation, Operation::Collective(of) if of == *name);
        let collective =
            CollectiveKind::NAMES.iter().position(matches).unwrap_or(CollectiveKind::NAMES.len());
        let left = match cause {
            Cause::Left(peer) => Some(peer.rank as usize),
            _ => None,
        };
        let (by, collective) = (self.me, collective as u8);
        let notice = OutOfStep { context, number, by, collective, left };
        if !self.matching.record(notice) {
            return;
        }
        // Before the messages of the collective are withdrawn, so that peers learn the reason
        // first.
        for &at in ranks.iter().filter(|at| **at != by) {
            if !self.peers[at].is_gone {
                self.peers[at].outbox.push_out_of_step(notice);
                self.pump(at, buffers);
            }
        }
        self.fail_from(context, number, buffers);
    }

    /// Applies the notices received from peers.
    #[cold]
    pub(super) fn take_out_of_step(&mut self, buffers: &BufferTable) {
        while let Some(notice) = self.matching.notices.pop() {
            if self.matching.record(notice) {
                self.fail_from(notice.context, notice.number, buffers);
            }
        }
    }

    /// Fails all collectives of a communicator from this sequence number on.
    fn fail_from(&mut self, context: u32, number: u32, buffers: &BufferTable) {
        let Some(cause) = self.matching.out_of_step(context, number) else { return };
        for key in self.matching.collectives.keys() {
            let matches =
                |plan: &CollectiveArgs| plan.context == context && is_from(number, plan.tag);
            self.fail_collective(key, &cause, matches, buffers);
        }
        let matching = &self.matching;
        for peer in &mut self.peers {
            peer.inbox.forget(|header| matching.is_out_of_step(header.context, header.tag));
        }
        self.threads.note_change();
    }

    /// Cancels the messages of an owner, and returns how many of them devices still copy. If a
    /// device reads one of them for a peer, that peer receives `notice` first.
    pub(super) fn cancel_messages(
        &mut self,
        owner: Owner,
        notice: Option<OutOfStep>,
        buffers: &BufferTable,
    ) -> usize {
        self.matching.posted.retain(|posted| posted.owner != owner);
        let mut with_device = 0;
        for at in 0..self.peers.len() {
            let (end_sleep, exposed) = self.incoming(at, buffers).0.cancel(owner);
            let Peer { link, outbox, .. } = &mut self.peers[at];
            if outbox.is_with_device(owner) {
                notice.into_iter().for_each(|notice| outbox.push_out_of_step(notice));
            }
            match outbox.cancel(owner, &mut **link, buffers) {
                Ok(read) => with_device += read + exposed,
                Err(error) => self.lose(at, error),
            }
            if end_sleep {
                self.match_again(at, buffers);
            }
            if !self.peers[at].outbox.is_empty() {
                self.pump(at, buffers);
            }
        }
        with_device
    }

    /// Matches messages that became unexpected again with receives posted in the meantime.
    fn match_again(&mut self, at: usize, buffers: &BufferTable) {
        loop {
            let inbox = &self.peers[at].inbox;
            let fits = self.matching.posted.iter().position(|posted| {
                posted.from.is_none_or(|from| from == at)
                    && inbox.arrival_of(posted.context, posted.tag).is_some()
            });
            let Some(fits) = fits else { return };
            let posted = self.matching.posted.remove(fits);
            self.find(at, posted, buffers);
        }
    }
}
