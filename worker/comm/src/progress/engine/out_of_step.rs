//! Calls that are given up before they are done, and what other ranks have to know of that.
//!
//! A message that is given up concerns its two ranks: one that was offered is withdrawn, one that was
//! on its way to a receive waits for the next. A collective that is given up concerns all ranks of its
//! communicator, since they would wait for each other in vain from there on: they are told, and fail
//! all its collectives from that one on.

use super::collective::CollectiveArgs;
use super::matching::{Matching, Owner};
use super::outbox::{pair, words};
use super::slab::SlabKey;
use super::{Engine, Peer};
use crate::collectives::kind::CollectiveKind;
use crate::transport::packet::{Header, PacketKind};
use crate::types::error::{Cause, LinkError, Operation};
use rlaunch_lock::BufferTable;

/// A communicator of which a collective was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfStep {
    /// The context of its collectives, and the number of the first that cannot be done.
    pub(crate) context: u32,
    pub(crate) number: u32,
    /// The rank of the job that has given it up.
    pub(crate) by: usize,
    /// The collective's number of [`CollectiveKind::NAMES`].
    pub(crate) collective: u8,
    /// The rank that had left, where that was the reason.
    pub(crate) left: Option<usize>,
}

/// Bits of a word that say which collective it was; the others say which rank had left.
const COLLECTIVE: u32 = 8;

impl OutOfStep {
    /// In the words of [`OutOfStep::encode`].
    pub(super) fn decode(header: Header, payload: &[u8]) -> Result<OutOfStep, LinkError> {
        let [by, why] = words(payload, "news of a collective that are none")?;
        let Header { context, tag: number, .. } = header;
        let left = ((why >> COLLECTIVE) as usize).checked_sub(1);
        Ok(OutOfStep { context, number, by: by as usize, collective: why as u8, left })
    }

    /// A packet.
    pub(super) fn encode(self) -> (Header, [u8; 16]) {
        let left = self.left.map_or(0, |rank| rank as u64 + 1);
        let payload = pair(self.by as u64, left << COLLECTIVE | u64::from(self.collective));
        let (kind, context, tag) = (PacketKind::OutOfStep, self.context, self.number);
        (Header { kind, context, tag, transfer: 0, length: payload.len() as u32 }, payload)
    }
}

/// Whether a collective is the first of these or a later one. Numbers begin again after the last.
fn is_from(first: u32, number: u32) -> bool {
    number.wrapping_sub(first).cast_signed() >= 0
}

impl Matching {
    /// Returns what is known of this collective of a communicator.
    pub(super) fn news_of(&self, context: u32, number: u32) -> Option<OutOfStep> {
        let known = self.out_of_step.get(&context)?;
        is_from(known.number, number).then_some(*known)
    }

    /// Whether this collective of a communicator cannot be done any more.
    #[inline]
    pub(crate) fn is_out_of_step(&self, context: u32, number: u32) -> bool {
        !self.out_of_step.is_empty() && self.news_of(context, number).is_some()
    }

    /// Returns the reason, if so.
    #[inline]
    pub(crate) fn out_of_step(&self, context: u32, number: u32) -> Option<Cause> {
        if self.out_of_step.is_empty() {
            return None;
        }
        self.news_of(context, number).map(|known| self.reason(known))
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

    /// Remembers a collective that was given up; `false` where that is no news.
    fn record(&mut self, news: OutOfStep) -> bool {
        let OutOfStep { context, number, .. } = news;
        if self.is_out_of_step(context, number) {
            return false;
        }
        self.out_of_step.insert(context, news);
        true
    }
}

/// A collective that is given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CancelledCollective<'a> {
    pub(crate) context: u32,
    pub(crate) number: u32,
    pub(crate) operation: Operation,
    /// The ranks of its communicator as ranks of the job.
    pub(crate) ranks: &'a [usize],
    pub(crate) cause: &'a Cause,
}

impl Engine {
    /// Gives up a request: its memory is about to go. The owner of what a device still uses of it, if
    /// there is any: see [`Engine::is_with_device`].
    pub(crate) fn cancel(
        &mut self,
        key: SlabKey,
        cause: &Cause,
        buffers: &BufferTable,
    ) -> Option<Owner> {
        let request = self.matching.requests.remove(key)?;
        let owner = match request.collective {
            Some(collective) => {
                // One that has ended is not given up.
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

    /// Whether a device copies from or to memory of an owner that has given it up.
    pub(crate) fn is_with_device(&self, owner: Owner) -> bool {
        let uses =
            |peer: &Peer| peer.outbox.is_with_device(owner) || peer.inbox.is_with_device(owner);
        self.matching.fault.is_none() && self.peers.iter().any(uses)
    }

    /// The devices have not finished: their peers are lost.
    pub(crate) fn lose_devices(&mut self, owner: Owner) {
        for at in 0..self.peers.len() {
            let Peer { outbox, inbox, .. } = &self.peers[at];
            if outbox.is_with_device(owner) || inbox.is_with_device(owner) {
                self.lose(at, LinkError::PartlySent);
            }
        }
    }

    /// Tells all ranks of a communicator that this one has given up a collective.
    #[cold]
    pub(crate) fn cancel_collective(
        &mut self,
        cancelled: CancelledCollective<'_>,
        buffers: &BufferTable,
    ) {
        let CancelledCollective { context, number, operation, ranks, cause } = cancelled;
        // After a fault peers are told nothing but goodbye.
        if self.matching.fault.is_some() {
            return;
        }
        let is_it = |name: &&str| matches!(operation, Operation::Collective(of) if of == *name);
        let collective =
            CollectiveKind::NAMES.iter().position(is_it).unwrap_or(CollectiveKind::NAMES.len());
        let left = match cause {
            Cause::Left(peer) => Some(peer.rank as usize),
            _ => None,
        };
        let (by, collective) = (self.me, collective as u8);
        let news = OutOfStep { context, number, by, collective, left };
        if !self.matching.record(news) {
            return;
        }
        // Before its messages are withdrawn: peers are to learn of the collective first.
        for &at in ranks.iter().filter(|at| **at != by) {
            if !self.peers[at].is_gone {
                self.peers[at].outbox.push_out_of_step(news);
                self.pump(at, buffers);
            }
        }
        self.fail_from(context, number, buffers);
    }

    /// Takes in what peers have told of collectives that they have given up.
    #[cold]
    pub(super) fn take_out_of_step(&mut self, buffers: &BufferTable) {
        while let Some(news) = self.matching.notices.pop() {
            if self.matching.record(news) {
                self.fail_from(news.context, news.number, buffers);
            }
        }
    }

    /// Ends all collectives of a communicator from this number on.
    fn fail_from(&mut self, context: u32, number: u32, buffers: &BufferTable) {
        let Some(cause) = self.matching.out_of_step(context, number) else { return };
        for key in self.matching.collectives.keys() {
            let is_it =
                |plan: &CollectiveArgs| plan.context == context && is_from(number, plan.tag);
            self.fail_collective(key, &cause, is_it, buffers);
        }
        let matching = &self.matching;
        for peer in &mut self.peers {
            peer.inbox.forget(|header| matching.is_out_of_step(header.context, header.tag));
        }
        self.threads.note_change();
    }

    /// Gives up the messages of an owner; how many of them devices still copy. Peers that one of them
    /// was offered to hear first that its collective was given up.
    pub(super) fn cancel_messages(
        &mut self,
        owner: Owner,
        news: Option<OutOfStep>,
        buffers: &BufferTable,
    ) -> usize {
        self.matching.posted.retain(|posted| posted.owner != owner);
        let mut with_device = 0;
        for at in 0..self.peers.len() {
            let (end_sleep, exposed) = self.incoming(at, buffers).0.cancel(owner);
            let Peer { link, outbox, .. } = &mut self.peers[at];
            if outbox.is_with_device(owner) {
                news.into_iter().for_each(|news| outbox.push_out_of_step(news));
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

    /// A message waits again, perhaps for a receive that was posted meanwhile.
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
