//! Messages of one peer that are not done with.

use super::matching::Owner;
use super::outbox::Rts;
use super::target::Target;
use crate::transport::packet::Header;
use rlaunch_lock::BufferId;
use std::collections::{BTreeMap, VecDeque};

/// A message that has come before a receive was posted for it.
#[derive(Debug)]
pub(super) struct Unexpected {
    pub(super) header: Header,
    pub(super) body: UnexpectedBody,
    /// Its place among all such messages of the process, in the order in which they came.
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) enum UnexpectedBody {
    Whole(Vec<u8>),
    Rts(Rts),
    /// It has so many bytes, and comes: its receive was given up.
    Arriving(u64),
    /// Its sender gave it up.
    Withdrawn,
}

/// A long message as it was before a receive took it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) header: Header,
    /// See [`Unexpected::number`].
    pub(super) number: u64,
}

/// Result of a look among messages that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Message,
    /// A message that is long, or that a posted receive has to be told about.
    Rts,
    Nothing,
}

/// A long message on its way.
#[derive(Debug)]
pub(super) struct ArrivingMessage {
    pub(super) origin: Origin,
    pub(super) target: Target,
    pub(super) owner: Owner,
    pub(super) length: usize,
    pub(super) came: usize,
    /// Bytes at its beginning that were fetched and reduced before the kernel forbade to fetch the rest.
    pub(super) folded: usize,
    /// The peer was told where to write it.
    pub(super) is_exposed: bool,
    /// Memory of the engine that it goes to because its receive was given up.
    pub(super) kept: Option<BufferId>,
    /// Its receive was given up, and it waits for the next one when it has been written.
    pub(super) goes_back: bool,
}

/// A message that this rank fetches itself, or lets its sender write.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(super) origin: Origin,
    /// Where it is; 0 where it cannot be fetched.
    pub(super) address: u64,
    pub(super) length: usize,
    /// How much of it has come.
    pub(super) fetched: usize,
    pub(super) target: Target,
    pub(super) owner: Owner,
}

/// Where a packet goes that comes in parts.
#[derive(Debug)]
pub(super) enum PartialPacket {
    /// To where its transfer goes, from this offset on; so much of the packet has come.
    Transfer { transfer: u32, start: usize, came: usize },
    /// No receive was posted for it, or none has room for it.
    Kept(Vec<u8>),
}

/// Unfinished messages from one peer.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(super) unexpected: VecDeque<Unexpected>,
    pub(super) arriving: BTreeMap<u32, ArrivingMessage>,
    pub(super) half: Option<PartialPacket>,
    /// Elements of a packet that comes in parts, until there are enough to be reduced.
    pub(super) scratch: Vec<u8>,
    /// To be fetched, or to be written by the peer.
    pub(crate) fetches: VecDeque<Fetch>,
    /// How many messages the peer has given up.
    pub(crate) withdrawn: u32,
    /// Whether a goodbye or news of a collective has come.
    pub(crate) has_control: bool,
    /// Whether the peer has said goodbye.
    pub(crate) has_left: bool,
    /// Rank of the job whose loss made the peer leave.
    pub(crate) lost_rank: Option<usize>,
}

impl Inbox {
    /// Whether something long is on its way.
    pub(crate) fn awaits_data(&self) -> bool {
        !self.arriving.is_empty() || !self.fetches.is_empty()
    }

    /// Hands over a short message that has come, if one has.
    #[inline]
    pub(crate) fn look(&mut self, context: u32, tag: u32, take: &mut impl FnMut(&[u8])) -> Lookup {
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
                Lookup::Rts
            }
        }
    }

    /// Returns the length of an offered message, in bytes.
    pub(crate) fn rts_length(&self, context: u32, tag: u32) -> Option<u64> {
        match self.unexpected[self.find(context, tag)?].body {
            UnexpectedBody::Rts(rts) => Some(rts.length),
            UnexpectedBody::Arriving(length) => Some(length),
            UnexpectedBody::Whole(_) | UnexpectedBody::Withdrawn => None,
        }
    }

    /// Returns the arrival number of the message that a receive would get; later ones are greater.
    pub(crate) fn arrival_of(&self, context: u32, tag: u32) -> Option<u64> {
        Some(self.unexpected[self.find(context, tag)?].number)
    }

    /// Counts the bytes of a long message that have come, those of a half-read packet included.
    pub(super) fn came_so_far(&self, transfer: u32) -> usize {
        let whole = self.arriving.get(&transfer).map_or(0, |arriving| arriving.came);
        match self.half {
            Some(PartialPacket::Transfer { transfer: of, came, .. }) if of == transfer => {
                whole + came
            }
            _ => whole,
        }
    }

    /// Takes the first message that a receive fits.
    pub(super) fn take(&mut self, context: u32, tag: u32) -> Option<Unexpected> {
        self.unexpected.remove(self.find(context, tag)?)
    }

    fn find(&self, context: u32, tag: u32) -> Option<usize> {
        let fits =
            |message: &Unexpected| message.header.tag == tag && message.header.context == context;
        self.unexpected.iter().position(fits)
    }

    /// Puts a message back to where it was before a receive took it.
    pub(super) fn put_back(&mut self, origin: Origin, body: UnexpectedBody) {
        let Origin { header, number } = origin;
        let at = self.unexpected.partition_point(|message| message.number < number);
        self.unexpected.insert(at, Unexpected { header, body, number });
    }

    /// Stores a message that has come whole after its receive was given up.
    pub(super) fn complete(&mut self, transfer: u32, bytes: Vec<u8>) {
        if let Some(at) = self.long(transfer) {
            self.unexpected[at].body = UnexpectedBody::Whole(bytes);
        }
    }

    /// Notes that the peer has withdrawn a message that waits here; `false` if there is none.
    pub(super) fn mark_withdrawn(&mut self, transfer: u32) -> bool {
        let Some(at) = self.long(transfer) else { return false };
        match self.unexpected[at].header.context % 2 {
            0 => self.unexpected[at].body = UnexpectedBody::Withdrawn,
            // Odd contexts are those of collectives, whose ranks are told by Kind::OutOfStep.
            _ => drop(self.unexpected.remove(at)),
        }
        true
    }

    /// Finds a long message that waits for its receive.
    fn long(&self, transfer: u32) -> Option<usize> {
        let is_it = |message: &Unexpected| {
            message.header.transfer == transfer
                && matches!(message.body, UnexpectedBody::Rts(_) | UnexpectedBody::Arriving(_))
        };
        self.unexpected.iter().position(is_it)
    }

    /// Forgets whole messages of collectives that are over, as `is_over` tells.
    pub(super) fn forget(&mut self, is_over: impl Fn(&Header) -> bool) {
        // Offers stay until the peer has taken them back.
        self.unexpected.retain(|message| {
            !matches!(message.body, UnexpectedBody::Whole(_)) || !is_over(&message.header)
        });
    }

    /// Drops what can never come now; returns the owners to be told, and memory of the engine that is free
    /// again.
    pub(super) fn fail(&mut self) -> (Vec<Owner>, Vec<BufferId>) {
        self.unexpected.retain(|message| {
            matches!(message.body, UnexpectedBody::Whole(_) | UnexpectedBody::Withdrawn)
        });
        let fetches = std::mem::take(&mut self.fetches);
        let arriving = std::mem::take(&mut self.arriving);
        let kept = arriving.values().filter_map(|arriving| arriving.kept).collect();
        let arriving = arriving.into_values().filter(|arriving| arriving.kept.is_none());
        let fetched = fetches.into_iter().map(|fetch| fetch.owner);
        (fetched.chain(arriving.map(|arriving| arriving.owner)).collect(), kept)
    }

    /// Whether the peer's device may write to what is this owner's, which has given it up.
    pub(crate) fn is_with_device(&self, owner: Owner) -> bool {
        let mut arriving = self.arriving.values();
        arriving.any(|arriving| arriving.owner == owner && arriving.is_exposed)
    }

    /// Whether anything of this owner's is on its way.
    pub(crate) fn holds(&self, owner: Owner) -> bool {
        self.arriving.values().any(|arriving| arriving.owner == owner)
            || self.fetches.iter().any(|fetch| fetch.owner == owner)
    }
}
