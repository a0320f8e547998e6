//! Cancellation of requests, and notices of cancelled collectives.
//!
//! A cancelled message concerns only its two ranks. If a send is cancelled, a message that was only
//! announced is withdrawn; if a receive is cancelled, a message that is arriving for it is kept for
//! the next receive.
//!
//! A cancelled collective concerns all ranks of its communicator, which would otherwise wait for
//! each other forever. Every rank of the communicator receives a notice, and fails this collective
//! and all later ones: the communicator is *out of step*.

use super::matching::{CollectiveArgs, Matching, Owner, SlabKey};
use super::{Engine, Peer};
use crate::collectives::CollectiveKind;
use crate::transport::{Header, PacketKind, decode_words, encode_words};
use crate::types::{Cause, LinkError, Operation};
use rlaunch_lock::BufferTable;

/// Number of low bits of a notice's second word that hold the collective's index. The other bits
/// hold `left` plus 1, or 0 for `None`.
const COLLECTIVE_BITS: u32 = 8;

/// Notice that a collective was cancelled, as sent to all ranks of its communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfStep {
    /// Context of the communicator's collectives.
    pub(crate) context: u32,
    /// Sequence number of the first collective that cannot complete.
    pub(crate) number: u32,
    /// Rank in the job of the process that cancelled the collective.
    pub(crate) by: usize,
    /// Index of the collective's name in [`CollectiveKind::NAMES`].
    pub(crate) collective: u8,
    /// Rank in the job that caused the cancellation by leaving; `None` if there was another cause.
    pub(crate) left: Option<usize>,
}

impl OutOfStep {
    /// Decodes a notice from a packet's header and payload.
    pub(crate) fn decode(header: Header, payload: &[u8]) -> Result<OutOfStep, LinkError> {
        let [by, why] = decode_words(payload, "malformed notice of a cancelled collective")?;
        let Header { context, tag: number, .. } = header;
        let left = ((why >> COLLECTIVE_BITS) as usize).checked_sub(1);
        Ok(OutOfStep { context, number, by: by as usize, collective: why as u8, left })
    }

    /// Encodes the notice as header and payload of a packet.
    pub(crate) fn encode(self) -> (Header, [u8; 16]) {
        let left = self.left.map_or(0, |rank| rank as u64 + 1);
        let why = left << COLLECTIVE_BITS | u64::from(self.collective);
        let payload = encode_words(self.by as u64, why);
        let (kind, context, tag) = (PacketKind::OutOfStep, self.context, self.number);
        (Header { kind, context, tag, transfer: 0, length: payload.len() as u32 }, payload)
    }
}

/// Tells whether the collective with sequence number `number` is the collective with sequence
/// number `first` or a later one. Sequence numbers wrap around.
fn is_from(first: u32, number: u32) -> bool {
    number.wrapping_sub(first).cast_signed() >= 0
}

impl Matching {
    /// Returns the notice that makes the collective with this context and sequence number fail, if
    /// there is one.
    pub(super) fn notice_for(&self, context: u32, number: u32) -> Option<OutOfStep> {
        let known = self.out_of_step.get(&context)?;
        is_from(known.number, number).then_some(*known)
    }

    /// Tells whether the collective with this context and sequence number can no longer complete.
    #[inline]
    pub(crate) fn is_out_of_step(&self, context: u32, number: u32) -> bool {
        !self.out_of_step.is_empty() && self.notice_for(context, number).is_some()
    }

    /// Returns the reason why the collective with this context and sequence number can no longer
    /// complete; `None` if it still can.
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

    /// Records a notice. Returns `false`, without any effect, if an earlier notice makes the same
    /// collective fail already.
    fn record(&mut self, notice: OutOfStep) -> bool {
        let OutOfStep { context, number, .. } = notice;
        if self.is_out_of_step(context, number) {
            return false;
        }
        self.out_of_step.insert(context, notice);
        true
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CancelledCollective<'a> {
    pub(crate) context: u32,
    pub(crate) number: u32,
    pub(crate) operation: Operation,
    /// Rank in the job of each member of the communicator.
    pub(crate) ranks: &'a [usize],
    pub(crate) cause: &'a Cause,
}

impl Engine {
    /// Cancels a request, because the program is about to take back the request's memory. If a
    /// device still uses the memory, returns the owner to pass to [`Engine::is_with_device`] until
    /// the device has finished.
    pub(crate) fn cancel(
        &mut self,
        key: SlabKey,
        cause: &Cause,
        buffers: &BufferTable,
    ) -> Option<Owner> {
        let request = self.matching.requests.remove(key)?;
        let owner = match request.collective {
            Some(collective) => {
                // Has no effect if the collective has completed.
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

    /// Tells whether a device still copies from or to the memory of `owner`, which is a cancelled
    /// operation.
    pub(crate) fn is_with_device(&self, owner: Owner) -> bool {
        let uses =
            |peer: &Peer| peer.outbox.is_with_device(owner) || peer.inbox.is_with_device(owner);
        self.matching.fault.is_none() && self.peers.iter().any(uses)
    }

    /// Marks each peer as lost for which a device still copies from or to the memory of `owner`,
    /// which is a cancelled operation.
    pub(crate) fn lose_devices(&mut self, owner: Owner) {
        for at in 0..self.peers.len() {
            let Peer { outbox, inbox, .. } = &self.peers[at];
            if outbox.is_with_device(owner) || inbox.is_with_device(owner) {
                self.lose(at, LinkError::PartlySent);
            }
        }
    }

    /// Notifies all ranks of a communicator that this rank cancels a collective. Fails this
    /// collective and all later ones on this rank.
    #[cold]
    pub(crate) fn cancel_collective(
        &mut self,
        cancelled: CancelledCollective<'_>,
        buffers: &BufferTable,
    ) {
        let CancelledCollective { context, number, operation, ranks, cause } = cancelled;
        // After the engine has failed, peers receive only a goodbye.
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

    /// Applies the notices of cancelled collectives that peers have sent.
    #[cold]
    pub(super) fn take_out_of_step(&mut self, buffers: &BufferTable) {
        while let Some(notice) = self.matching.notices.pop() {
            if self.matching.record(notice) {
                self.fail_from(notice.context, notice.number, buffers);
            }
        }
    }

    /// Fails the collective with this context and sequence number, and all later collectives of its
    /// communicator.
    fn fail_from(&mut self, context: u32, number: u32, buffers: &BufferTable) {
        let Some(cause) = self.matching.out_of_step(context, number) else { return };
        for key in self.matching.collectives.keys() {
            let matches =
                |args: &CollectiveArgs| args.context == context && is_from(number, args.tag);
            self.fail_collective(key, &cause, matches, buffers);
        }
        let matching = &self.matching;
        for peer in &mut self.peers {
            peer.inbox.forget(|header| matching.is_out_of_step(header.context, header.tag));
        }
        self.threads.note_change();
    }

    /// Cancels the messages of an owner, and returns the number of messages that devices still
    /// copy. If a device still reads a message that goes to a peer, `notice` is queued for that
    /// peer.
    pub(super) fn cancel_messages(
        &mut self,
        owner: Owner,
        notice: Option<OutOfStep>,
        buffers: &BufferTable,
    ) -> usize {
        self.matching.posted.retain(|posted| posted.owner != owner);
        let mut with_device = 0;
        for at in 0..self.peers.len() {
            let (has_requeued, exposed) = self.incoming(at, buffers).0.cancel(owner);
            let Peer { link, outbox, .. } = &mut self.peers[at];
            if outbox.is_with_device(owner)
                && let Some(notice) = notice
            {
                outbox.push_out_of_step(notice);
            }
            match outbox.cancel(owner, &mut **link, buffers) {
                Ok(read) => with_device += read + exposed,
                Err(error) => self.lose(at, error),
            }
            if has_requeued {
                self.match_again(at, buffers);
            }
            if !self.peers[at].outbox.is_empty() {
                self.pump(at, buffers);
            }
        }
        with_device
    }

    /// Matches messages from peer `at` that became unexpected again with receives that were posted
    /// meanwhile.
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
