//! Messages from one peer that are incomplete, or not yet matched with a receive.
//!
//! A message is *unexpected* while no posted receive matches it. A *transfer id* is the number that
//! the sender has given to a long message.

use super::matching::{Owner, Target};
use crate::transport::{Header, Rts};
use rlaunch_lock::BufferId;
use std::collections::{BTreeMap, VecDeque};

/// Message for which no receive is posted: it arrived before its receive was posted, or its receive
/// was cancelled.
#[derive(Debug)]
pub(super) struct Unexpected {
    pub(super) header: Header,
    pub(super) body: UnexpectedBody,
    /// Arrival number: position among the messages of all peers, in order of arrival.
    pub(super) number: u64,
}

/// State of an unexpected message.
#[derive(Debug)]
pub(super) enum UnexpectedBody {
    /// Complete message.
    Whole(Vec<u8>),
    /// Long message that the peer has announced and waits to send.
    Rts(Rts),
    /// Long message of this many bytes that is arriving after its receive was cancelled.
    Arriving(u64),
    /// Message that the sender has cancelled, which fails the next matching receive.
    Withdrawn,
}

/// Header and arrival number of a long message, kept in case its receive is cancelled and the
/// message becomes unexpected again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) header: Header,
    /// Arrival number, see [`Unexpected::number`].
    pub(super) number: u64,
}

/// Result of a search among unexpected messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Message,
    /// The message must be received by a posted receive, because it is long or the receive has to
    /// report an error.
    NeedsPosting,
    Nothing,
}

/// Long message that is being received after a CTS (clear to send) was sent for it.
#[derive(Debug)]
pub(super) struct ArrivingMessage {
    pub(super) origin: Origin,
    pub(super) target: Target,
    pub(super) owner: Owner,
    pub(super) length: usize,
    pub(super) received: usize,
    /// Number of bytes at the beginning of the message that were fetched and reduced before
    /// fetching failed. These bytes arrive again and must be skipped.
    pub(super) reduced: usize,
    /// Whether the peer's device may write the message directly into the memory of the receive.
    pub(super) is_exposed: bool,
    /// Buffer of the engine that receives the message after its receive was cancelled; `None`
    /// before that.
    pub(super) diverted: Option<BufferId>,
    /// Whether the receive was cancelled while its memory was exposed. The message then becomes
    /// unexpected once the peer has written all of it.
    pub(super) requeues: bool,
}

/// Long message that was announced and matched with a receive, and whose transfer has not finished:
/// this rank still has to fetch it from the sender's memory, or to expose memory for the sender to
/// write it.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(super) origin: Origin,
    /// Address in the sender's memory; 0 if the message cannot be fetched.
    pub(super) address: u64,
    pub(super) length: usize,
    /// Number of bytes fetched so far.
    pub(super) fetched: usize,
    pub(super) target: Target,
    pub(super) owner: Owner,
}

/// Packet of which only a part has arrived.
#[derive(Debug)]
pub(super) enum PartialPacket {
    /// `Data` packet whose payload begins at byte `start` of its message; `received` bytes of the
    /// payload have arrived.
    Transfer { transfer: u32, start: usize, received: usize },
    /// Payload received so far of a packet of another kind, which is handled once it is complete.
    Kept(Vec<u8>),
}

/// Messages from one peer that are incomplete, or not yet matched with a receive.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(super) unexpected: VecDeque<Unexpected>,
    pub(super) arriving: BTreeMap<u32, ArrivingMessage>,
    pub(super) partial: Option<PartialPacket>,
    /// Bytes of a partial packet, collected until there are enough to reduce.
    pub(super) scratch: Vec<u8>,
    /// Long messages that this rank still has to fetch, or to expose memory for, in the order in
    /// which they were matched with receives.
    pub(crate) fetches: VecDeque<Fetch>,
    /// Number of messages that the peer has cancelled.
    pub(crate) withdrawn: u32,
    /// Whether a goodbye or a notice of a cancelled collective has arrived and still has to be
    /// handled.
    pub(crate) has_control: bool,
    /// Whether the peer has sent a goodbye.
    pub(crate) has_left: bool,
    /// Rank of the job that the peer's goodbye names as lost; `None` if the peer left for another
    /// reason.
    pub(crate) lost_rank: Option<usize>,
}

impl Inbox {
    /// Tells whether a long message from the peer is being received or waits to be fetched.
    pub(crate) fn awaits_data(&self) -> bool {
        !self.arriving.is_empty() || !self.fetches.is_empty()
    }

    /// Passes the first unexpected message with this context and tag to `take` and removes it, if
    /// the message is short.
    #[inline]
    pub(crate) fn take_short(
        &mut self,
        context: u32,
        tag: u32,
        take: &mut impl FnMut(&[u8]),
    ) -> Lookup {
        if self.unexpected.is_empty() {
            return Lookup::Nothing;
        }
        let Some(at) = self.find(context, tag) else { return Lookup::Nothing };
        match &self.unexpected[at].body {
            UnexpectedBody::Whole(bytes) => {
                take(bytes);
                self.unexpected.remove(at);
                Lookup::Message
            }
            UnexpectedBody::Rts(_) | UnexpectedBody::Arriving(_) | UnexpectedBody::Withdrawn => {
                Lookup::NeedsPosting
            }
        }
    }

    /// Returns the length in bytes of the first message with this context and tag; `None` if there
    /// is none, or if it is not an announced long message.
    pub(crate) fn rts_length(&self, context: u32, tag: u32) -> Option<u64> {
        match self.unexpected[self.find(context, tag)?].body {
            UnexpectedBody::Rts(rts) => Some(rts.length),
            UnexpectedBody::Arriving(length) => Some(length),
            UnexpectedBody::Whole(_) | UnexpectedBody::Withdrawn => None,
        }
    }

    /// Returns the arrival number of the message that a receive with this context and tag would
    /// match.
    pub(crate) fn arrival_of(&self, context: u32, tag: u32) -> Option<u64> {
        Some(self.unexpected[self.find(context, tag)?].number)
    }

    /// Counts the received bytes of a long message, including those of a partial packet.
    pub(super) fn received_so_far(&self, transfer: u32) -> usize {
        let whole = self.arriving.get(&transfer).map_or(0, |arriving| arriving.received);
        match self.partial {
            Some(PartialPacket::Transfer { transfer: of, received, .. }) if of == transfer => {
                whole + received
            }
            _ => whole,
        }
    }

    /// Removes and returns the first message that a receive with this context and tag matches.
    pub(super) fn take(&mut self, context: u32, tag: u32) -> Option<Unexpected> {
        self.unexpected.remove(self.find(context, tag)?)
    }

    fn find(&self, context: u32, tag: u32) -> Option<usize> {
        let fits =
            |message: &Unexpected| message.header.tag == tag && message.header.context == context;
        self.unexpected.iter().position(fits)
    }

    /// Makes a message unexpected again after its receive was cancelled, at its position in the
    /// order of arrival.
    pub(super) fn put_back(&mut self, origin: Origin, body: UnexpectedBody) {
        let Origin { header, number } = origin;
        let at = self.unexpected.partition_point(|message| message.number < number);
        self.unexpected.insert(at, Unexpected { header, body, number });
    }

    /// Stores the contents of a message that has arrived completely after its receive was
    /// cancelled.
    pub(super) fn complete(&mut self, transfer: u32, bytes: Vec<u8>) {
        if let Some(at) = self.long(transfer) {
            self.unexpected[at].body = UnexpectedBody::Whole(bytes);
        }
    }

    /// Marks the unexpected message with this transfer id as cancelled by its sender. Returns
    /// `false` if there is no such message.
    pub(super) fn mark_withdrawn(&mut self, transfer: u32) -> bool {
        let Some(at) = self.long(transfer) else { return false };
        match self.unexpected[at].header.context % 2 {
            0 => self.unexpected[at].body = UnexpectedBody::Withdrawn,
            // Odd contexts belong to collectives, whose ranks are notified by
            // `PacketKind::OutOfStep`.
            _ => drop(self.unexpected.remove(at)),
        }
        true
    }

    /// Finds the unexpected long message with this transfer id.
    fn long(&self, transfer: u32) -> Option<usize> {
        let matches = |message: &Unexpected| {
            message.header.transfer == transfer
                && matches!(message.body, UnexpectedBody::Rts(_) | UnexpectedBody::Arriving(_))
        };
        self.unexpected.iter().position(matches)
    }

    /// Drops complete messages for which `is_over` returns `true`: those of cancelled collectives.
    /// Announced messages stay until the peer withdraws them.
    pub(super) fn forget(&mut self, is_over: impl Fn(&Header) -> bool) {
        self.unexpected.retain(|message| {
            !matches!(message.body, UnexpectedBody::Whole(_)) || !is_over(&message.header)
        });
    }

    /// Drops messages that can no longer complete because the peer has left. Returns the owners of
    /// these messages, and the buffers of the engine that the caller has to free.
    pub(super) fn fail(&mut self) -> (Vec<Owner>, Vec<BufferId>) {
        self.unexpected.retain(|message| {
            matches!(message.body, UnexpectedBody::Whole(_) | UnexpectedBody::Withdrawn)
        });
        let fetches = std::mem::take(&mut self.fetches);
        let arriving = std::mem::take(&mut self.arriving);
        let diverted = arriving.values().filter_map(|arriving| arriving.diverted).collect();
        let arriving = arriving.into_values().filter(|arriving| arriving.diverted.is_none());
        let fetched = fetches.into_iter().map(|fetch| fetch.owner);
        (fetched.chain(arriving.map(|arriving| arriving.owner)).collect(), diverted)
    }

    /// Tells whether the peer's device may still write to the memory of `owner`, which is a
    /// cancelled operation.
    pub(crate) fn is_with_device(&self, owner: Owner) -> bool {
        let mut arriving = self.arriving.values();
        arriving.any(|arriving| arriving.owner == owner && arriving.is_exposed)
    }

    /// Tells whether long messages for this owner are being received or wait to be fetched.
    pub(crate) fn holds(&self, owner: Owner) -> bool {
        self.arriving.values().any(|arriving| arriving.owner == owner)
            || self.fetches.iter().any(|fetch| fetch.owner == owner)
    }
}
