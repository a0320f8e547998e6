//! What becomes of packets that have come.

use super::core::{Came, Core, Owner, Posted};
use super::outbox::{Offer, Outbox};
use super::stretch::Target;
use crate::error::LinkError;
use crate::link::{Fill, Limits, Place, Sink};
use crate::packet::{Header, Kind};
use rlaunch_sys::Loans;
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// How much of what comes in parts is reduced at once, in bytes: a multiple of every element, and
/// well within a cache.
const FOLDED: usize = 64 << 10;

/// A message that nobody has asked for yet.
#[derive(Debug)]
struct Unexpected {
    header: Header,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Whole(Vec<u8>),
    Offered(Offer),
}

/// What was found among what has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Message,
    /// A message that is long.
    Offer,
    Nothing,
}

/// A long message on its way.
#[derive(Debug)]
struct Arriving {
    target: Target,
    owner: Owner,
    length: usize,
    came: usize,
    /// The peer was told where to write it.
    is_exposed: bool,
}

/// A message that this rank fetches itself, or lets its sender write.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) transfer: u32,
    /// Where it is; 0 where it cannot be fetched.
    pub(crate) address: u64,
    pub(crate) length: usize,
    pub(crate) target: Target,
    pub(crate) owner: Owner,
}

/// Where a packet goes that comes in parts.
#[derive(Debug)]
enum Half {
    /// To a receive's target, from this offset on.
    Target { target: Target, start: usize },
    /// Nobody has asked for it yet, or nobody has room for it.
    Kept(Vec<u8>),
}

/// What has come from one peer and is not done with.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    unexpected: VecDeque<Unexpected>,
    arriving: BTreeMap<u32, Arriving>,
    half: Option<Half>,
    /// Elements of a packet that comes in parts, until there are enough to be reduced.
    scratch: Vec<u8>,
    /// To be fetched, or to be written by the peer.
    pub(crate) fetches: VecDeque<Fetch>,
    /// The peer has nothing to say any more.
    pub(crate) has_left: bool,
    /// Whom it had lost when it left: a rank of the job.
    pub(crate) has_lost: Option<usize>,
}

impl Inbox {
    /// Whether something long is on its way.
    pub(crate) fn awaits_data(&self) -> bool {
        !self.arriving.is_empty()
    }

    /// Hands over a short message that has come, if one has.
    #[inline]
    pub(crate) fn look(&mut self, context: u32, tag: u32, take: &mut impl FnMut(&[u8])) -> Found {
        if self.unexpected.is_empty() {
            return Found::Nothing;
        }
        let Some(at) = self.find(context, tag) else { return Found::Nothing };
        match &self.unexpected[at].body {
            Body::Whole(bytes) => {
                take(bytes);
                self.unexpected.remove(at);
                Found::Message
            }
            Body::Offered(_) => Found::Offer,
        }
    }

    /// How long a message is that was offered, in bytes.
    pub(crate) fn offered(&self, context: u32, tag: u32) -> Option<u64> {
        match self.unexpected[self.find(context, tag)?].body {
            Body::Offered(offer) => Some(offer.length),
            Body::Whole(_) => None,
        }
    }

    /// Whether a message waits that a receive fits.
    fn find(&self, context: u32, tag: u32) -> Option<usize> {
        let fits =
            |message: &Unexpected| message.header.tag == tag && message.header.context == context;
        self.unexpected.iter().position(fits)
    }

    /// Whose messages can never come now.
    pub(crate) fn fail(&mut self) -> Vec<Owner> {
        let fetches = std::mem::take(&mut self.fetches);
        let arriving = std::mem::take(&mut self.arriving);
        let fetched = fetches.into_iter().map(|fetch| fetch.owner);
        fetched.chain(arriving.into_values().map(|arriving| arriving.owner)).collect()
    }

    /// Whether anything of this owner's is on its way.
    pub(crate) fn holds(&self, owner: Owner) -> bool {
        self.arriving.values().any(|arriving| arriving.owner == owner)
            || self.fetches.iter().any(|fetch| fetch.owner == owner)
    }

    /// Forgets where the messages of `owner` were to go; what still comes of them is lost.
    pub(crate) fn withdraw(&mut self, owner: Owner) -> Result<(), LinkError> {
        if self.holds(owner) { Err(LinkError::HalfSent) } else { Ok(()) }
    }
}

/// Packets of one peer go through this.
pub(crate) struct Incoming<'e> {
    pub(crate) core: &'e mut Core,
    pub(crate) inbox: &'e mut Inbox,
    pub(crate) outbox: &'e mut Outbox,
    pub(crate) loans: &'e Loans,
    pub(crate) peer: usize,
    pub(crate) limits: Limits,
}

impl Incoming<'_> {
    /// Gives a receive what has come before it was posted; `false` where nothing has.
    pub(crate) fn posted(&mut self, posted: Posted) -> Result<bool, LinkError> {
        let Some(at) = self.inbox.find(posted.context, posted.tag) else { return Ok(false) };
        let Some(message) = self.inbox.unexpected.remove(at) else { return Ok(false) };
        match message.body {
            Body::Whole(bytes) => self.deliver(&posted, &bytes),
            Body::Offered(offer) => self.accept(&posted, message.header.transfer, offer)?,
        }
        Ok(true)
    }

    #[inline]
    fn deliver(&mut self, posted: &Posted, bytes: &[u8]) {
        let how = match self.core.misfit(self.peer, bytes.len() as u64, posted) {
            Some(cause) => Err(cause),
            None => {
                // Memory that was taken back belongs to a request that nobody waits for.
                let _ = posted.target.put(self.loans, 0, bytes);
                Ok(Came { from: self.peer, length: bytes.len() })
            }
        };
        self.core.ended(posted.owner, how);
    }

    /// Decides how a long message comes.
    fn accept(&mut self, posted: &Posted, transfer: u32, offer: Offer) -> Result<(), LinkError> {
        let (target, owner) = (posted.target, posted.owner);
        if let Some(cause) = self.core.misfit(self.peer, offer.length, posted) {
            self.core.ended(owner, Err(cause));
            self.outbox.answer(Kind::Done, transfer);
            return Ok(());
        }
        // No longer than the memory for it.
        let length = offer.length as usize;
        let address = if length >= self.limits.fetch { offer.address } else { 0 };
        let fetch = Fetch { transfer, address, length, target, owner };
        // What is reduced comes by way of packets: a device does not reduce.
        if address != 0 || (length >= self.limits.write && target.fold.is_none()) {
            self.inbox.fetches.push_back(fetch);
            return Ok(());
        }
        self.grant(&fetch, None)
    }

    /// Asks for a long message to be sent, or to be written to `place`.
    pub(crate) fn grant(&mut self, fetch: &Fetch, place: Option<Place>) -> Result<(), LinkError> {
        let Fetch { transfer, length, target, owner, .. } = *fetch;
        let is_exposed = place.is_some();
        let arriving = Arriving { target, owner, length, came: 0, is_exposed };
        if self.inbox.arriving.insert(transfer, arriving).is_some() {
            return Err(LinkError::OutOfTurn("it offers two messages by one number"));
        }
        self.outbox.grant(transfer, place);
        Ok(())
    }

    /// `length` bytes of a long message have come.
    fn advance(&mut self, transfer: u32, length: usize) {
        let Some(arriving) = self.inbox.arriving.get_mut(&transfer) else { return };
        arriving.came += length;
        if arriving.came == arriving.length {
            let (owner, length) = (arriving.owner, arriving.length);
            self.inbox.arriving.remove(&transfer);
            self.core.ended(owner, Ok(Came { from: self.peer, length }));
        }
    }

    /// A long message is where its sender was told to write it.
    fn written_here(&mut self, transfer: u32) -> Result<(), LinkError> {
        match self.inbox.arriving.get(&transfer) {
            Some(Arriving { is_exposed: true, came: 0, length, target, .. }) => {
                let (length, into) = (*length, target.into.part(0, *length));
                self.loans.conceal(into.loan, &into.range());
                self.advance(transfer, length);
                Ok(())
            }
            _ => Err(LinkError::OutOfTurn("it has written what nobody asked for")),
        }
    }

    /// Where the next bytes of a long message go.
    fn arriving(&mut self, header: Header) -> Result<(Target, usize), LinkError> {
        let unwanted = LinkError::OutOfTurn("it sends what nobody asked for");
        let arriving = self.inbox.arriving.get_mut(&header.transfer).ok_or(unwanted)?;
        // A peer whose device cannot be told of its own memory sends, and writes nothing.
        if std::mem::take(&mut arriving.is_exposed) {
            let into = arriving.target.into.part(0, arriving.length);
            self.loans.conceal(into.loan, &into.range());
        }
        if header.length as usize > arriving.length - arriving.came {
            return Err(LinkError::OutOfTurn("it sends more than it offered"));
        }
        Ok((arriving.target, arriving.came))
    }

    /// Decides where a packet goes whose first bytes are there.
    fn begin(&mut self, header: Header) -> Result<Half, LinkError> {
        Ok(match header.kind {
            Kind::Data => {
                let (target, start) = self.arriving(header)?;
                Half::Target { target, start }
            }
            // A message that fits no receive yet may fit one when it is whole.
            _ => Half::Kept(Vec::new()),
        })
    }

    fn end(&mut self, header: Header) -> Result<(), LinkError> {
        match self.inbox.half.take() {
            Some(Half::Target { .. }) => {
                self.advance(header.transfer, header.length as usize);
                Ok(())
            }
            Some(Half::Kept(bytes)) => self.packet(header, &bytes),
            None => Ok(()),
        }
    }

    /// Reduces what has gathered in the scratch memory, which ends at `end` of the packet.
    fn fold_scratch(&mut self, target: Target, start: usize, end: usize) {
        let from = start + end - self.inbox.scratch.len();
        let _ = target.put(self.loans, from, &self.inbox.scratch);
        self.inbox.scratch.clear();
    }
}

impl Sink for Incoming<'_> {
    #[inline]
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        match header.kind {
            Kind::Eager => match self.core.take(self.peer, header.context, header.tag) {
                Some(posted) => self.deliver(&posted, payload),
                None => {
                    let body = Body::Whole(payload.to_vec());
                    self.inbox.unexpected.push_back(Unexpected { header, body });
                }
            },
            Kind::Data => {
                let (target, came) = self.arriving(header)?;
                let _ = target.put(self.loans, came, payload);
                self.advance(header.transfer, payload.len());
            }
            Kind::Offer => {
                let offer = Offer::decode(payload)?;
                match self.core.take(self.peer, header.context, header.tag) {
                    Some(posted) => self.accept(&posted, header.transfer, offer)?,
                    None => {
                        let body = Body::Offered(offer);
                        self.inbox.unexpected.push_back(Unexpected { header, body });
                    }
                }
            }
            Kind::Grant => self.outbox.granted(header.transfer, Place::decode(payload)?)?,
            Kind::Written => self.written_here(header.transfer)?,
            Kind::Done => {
                let (owner, length) = self.outbox.done(header.transfer)?;
                self.core.ended(owner, Ok(Came { from: self.peer, length }));
            }
            Kind::Bye => {
                self.inbox.has_left = true;
                self.inbox.has_lost = (header.transfer as usize).checked_sub(1);
            }
        }
        Ok(())
    }

    fn part(
        &mut self,
        header: Header,
        offset: usize,
        fill: &mut Fill<'_>,
    ) -> Result<usize, LinkError> {
        let length = header.length as usize;
        if offset == 0 || self.inbox.half.is_none() {
            self.inbox.half = Some(self.begin(header)?);
        }
        let filled = match &mut self.inbox.half {
            Some(Half::Target { target, start }) if target.fold.is_none() => {
                let into = target.into.part(*start + offset, length - offset);
                match into.write(self.loans, |memory| fill(memory)) {
                    Some(filled) => filled,
                    // The bytes have to go somewhere, even if nobody wants them any more.
                    None => fill(&mut [0; 4096][..(length - offset).min(4096)]),
                }
            }
            Some(Half::Target { target, start }) => {
                let (target, start) = (*target, *start);
                let room = (length - offset).min(FOLDED - self.inbox.scratch.len());
                let filled = append(&mut self.inbox.scratch, room, fill);
                if let Ok(count) = filled
                    && (self.inbox.scratch.len() == FOLDED || offset + count == length)
                {
                    self.fold_scratch(target, start, offset + count);
                }
                filled
            }
            Some(Half::Kept(bytes)) => append(bytes, length - offset, fill),
            None => Ok(0),
        };
        let filled = filled.map_err(|source| LinkError::System { operation: "receive", source })?;
        if offset + filled == length {
            self.end(header)?;
        }
        Ok(filled)
    }

    fn written(&mut self, transfer: u32) -> Result<(), LinkError> {
        let unknown = LinkError::OutOfTurn("a message was written that was not wanted");
        let (owner, length) = self.outbox.written(transfer).ok_or(unknown)?;
        self.core.ended(owner, Ok(Came { from: self.peer, length }));
        Ok(())
    }

    fn loans(&self) -> Option<&Loans> {
        Some(self.loans)
    }
}

/// Lets `fill` put up to `room` bytes behind those that are there.
fn append(bytes: &mut Vec<u8>, room: usize, fill: &mut Fill<'_>) -> io::Result<usize> {
    let before = bytes.len();
    bytes.resize(before + room, 0);
    let filled = fill(&mut bytes[before..]);
    bytes.truncate(before + filled.as_ref().map_or(0, |count| (*count).min(room)));
    filled
}
