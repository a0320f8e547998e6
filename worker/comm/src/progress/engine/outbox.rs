//! What is to be sent to one peer, in what order.
//!
//! Messages and answers go in the order in which they came. Long messages that the peer has asked
//! for go when there is nothing else, a packet each in turn, so that no short message waits for a
//! long one.

use super::matching::Owner;
use super::out_of_step::OutOfStep;
use crate::transport::LocalSlice;
use crate::transport::packet::{Header, PacketKind};
use crate::transport::{Link, RemoteBuf, WriteOutcome};
use crate::types::error::LinkError;
use rlaunch_lock::BufferTable;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What goes along with [`PacketKind::Rts`]: the message's length, and where it may be fetched from, 0
/// where it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rts {
    pub(crate) length: u64,
    pub(crate) address: u64,
}

impl Rts {
    const SIZE: usize = 16;

    fn encode(self) -> [u8; Rts::SIZE] {
        pair(self.length, self.address)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Rts, LinkError> {
        let [length, address] = words(bytes, "an offer that is none")?;
        Ok(Rts { length, address })
    }
}

impl RemoteBuf {
    const SIZE: usize = 16;

    fn encode(self) -> [u8; RemoteBuf::SIZE] {
        pair(self.address, self.key)
    }

    /// What goes along with [`PacketKind::Cts`]: nothing where the bytes are to be sent.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<RemoteBuf>, LinkError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let [address, key] = words(bytes, "it wants a message and does not say where")?;
        Ok(Some(RemoteBuf { address, key }))
    }
}

pub(super) fn pair(first: u64, second: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&second.to_le_bytes());
    bytes
}

pub(super) fn words(bytes: &[u8], what: &'static str) -> Result<[u64; 2], LinkError> {
    let ([first, second], []) = bytes.as_chunks::<8>() else {
        return Err(LinkError::Protocol(what));
    };
    Ok([u64::from_le_bytes(*first), u64::from_le_bytes(*second)])
}

/// A packet that waits.
#[derive(Debug)]
enum QueuedPacket {
    /// A whole message from its owner's memory.
    Message { header: Header, from: LocalSlice, owner: Owner },
    /// A whole message of nobody's any more.
    Copy { header: Header, bytes: Box<[u8]> },
    /// An offer.
    Rts { header: Header, rts: Rts },
    /// Two words: a grant that says where to write, or news of a collective.
    Words { header: Header, words: [u8; 16] },
    /// Nothing but a header.
    Bare(Header),
}

/// A long message.
#[derive(Debug)]
struct Transfer {
    from: LocalSlice,
    owner: Owner,
    /// Where it was offered to be fetched from.
    address: u64,
    sent: usize,
    /// Where it may be written to.
    place: Option<RemoteBuf>,
    /// The link has all of it, and says when its memory may change.
    is_written: bool,
}

impl Transfer {
    /// The next packet of this transfer, and where its payload is.
    fn packet(&self, id: u32, longest: usize) -> (Header, LocalSlice) {
        let length = (self.from.length - self.sent).min(longest);
        (about(PacketKind::Data, id, length), self.from.part(self.sent, length))
    }

    /// Whether a device reads the message from its owner's memory.
    fn is_with_device(&self, is_begun: bool) -> bool {
        self.is_written || (is_begun && self.place.is_some())
    }
}

/// Packets for one peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<QueuedPacket>,
    /// Whether the first of the queue is half sent.
    is_begun: bool,
    /// Messages that were offered.
    transfers: BTreeMap<u32, Transfer>,
    /// Those of them that are wanted, in turn; and how much of the first's next packet was begun.
    streams: VecDeque<u32>,
    begun: Option<u32>,
    /// Messages that were offered and then given up, until the peer has answered.
    withdrawn: BTreeSet<u32>,
    last: u32,
}

impl Outbox {
    /// Whether nothing waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.streams.is_empty()
    }

    /// Whether the peer still has to say something to what was offered.
    pub(crate) fn awaits_cts(&self) -> bool {
        !self.transfers.is_empty()
    }

    pub(crate) fn push_message(&mut self, header: Header, from: LocalSlice, owner: Owner) {
        self.queue.push_back(QueuedPacket::Message { header, from, owner });
    }

    /// A copy of a message, whose first bytes are sent perhaps.
    pub(crate) fn push_copy(&mut self, header: Header, bytes: &[u8], is_begun: bool) {
        self.is_begun |= is_begun;
        self.queue.push_back(QueuedPacket::Copy { header, bytes: bytes.into() });
    }

    /// Offers a long message.
    pub(crate) fn push_rts(
        &mut self,
        header: Header,
        from: LocalSlice,
        address: u64,
        owner: Owner,
    ) {
        self.last = self.last.wrapping_add(1).max(1);
        let rts = Rts { length: from.length as u64, address };
        let transfer = Transfer { from, owner, address, sent: 0, place: None, is_written: false };
        self.transfers.insert(self.last, transfer);
        let header = Header { transfer: self.last, length: Rts::SIZE as u32, ..header };
        self.queue.push_back(QueuedPacket::Rts { header, rts });
    }

    /// Tells the peer about a collective.
    pub(crate) fn push_out_of_step(&mut self, news: OutOfStep) {
        let (header, words) = news.encode();
        self.queue.push_back(QueuedPacket::Words { header, words });
    }

    /// Answers an offer of the peer.
    pub(crate) fn push_control(&mut self, kind: PacketKind, transfer: u32) {
        self.queue.push_back(QueuedPacket::Bare(about(kind, transfer, 0)));
    }

    /// Wants a message of the peer, to be written to `place` if there is one.
    pub(crate) fn push_cts(&mut self, transfer: u32, place: Option<RemoteBuf>) {
        let Some(place) = place else { return self.push_control(PacketKind::Cts, transfer) };
        let header = about(PacketKind::Cts, transfer, RemoteBuf::SIZE);
        self.queue.push_back(QueuedPacket::Words { header, words: place.encode() });
    }

    /// Says goodbye, and whom this rank has lost, if that is why it leaves; then nothing else is
    /// said but what is half sent.
    pub(crate) fn push_bye(&mut self, lost: Option<usize>) {
        if lost.is_some() {
            let keeps = usize::from(self.is_begun);
            self.queue.truncate(keeps);
            if self.begun.is_none() {
                self.streams.clear();
            }
        }
        self.push_control(PacketKind::Bye, lost.map_or(0, |rank| rank as u32 + 1));
    }

    /// The peer wants a message.
    pub(crate) fn on_cts(
        &mut self,
        transfer: u32,
        place: Option<RemoteBuf>,
    ) -> Result<(), LinkError> {
        if self.withdrawn.contains(&transfer) {
            return Ok(());
        }
        let unknown = LinkError::Protocol("it wants what was not offered");
        let wanted = self.transfers.get_mut(&transfer).ok_or(unknown)?;
        if wanted.place.is_some() || self.streams.contains(&transfer) {
            return Err(LinkError::Protocol("it wants a message twice"));
        }
        wanted.place = place;
        self.streams.push_back(transfer);
        Ok(())
    }

    /// What was written to a peer that has left: it was there before the peer's last word, whether or
    /// not the link has said so yet.
    pub(crate) fn take_written(&mut self) -> Vec<(Owner, usize)> {
        let written = self.transfers.extract_if(.., |_, transfer| transfer.is_written);
        written.map(|(_, transfer)| (transfer.owner, transfer.from.length)).collect()
    }

    /// The link has written a message; whose it was.
    pub(crate) fn on_written(&mut self, transfer: u32) -> Option<(Owner, usize)> {
        let written = self.transfers.remove(&transfer)?;
        Some((written.owner, written.from.length))
    }

    /// The peer has fetched a message, or does not want it; whose it was, unless it was given up.
    pub(crate) fn on_fin(&mut self, transfer: u32) -> Result<Option<(Owner, usize)>, LinkError> {
        if self.withdrawn.remove(&transfer) {
            return Ok(None);
        }
        if self.streams.contains(&transfer) {
            return Err(LinkError::Protocol("it has what it wants to be sent"));
        }
        let unknown = LinkError::Protocol("it has what was not offered");
        let ended = self.transfers.remove(&transfer).ok_or(unknown)?;
        Ok(Some((ended.owner, ended.from.length)))
    }

    /// Sends as much as there is room for; whose messages are sent goes to `sent`. Says whether
    /// anything was.
    pub(crate) fn pump(
        &mut self,
        link: &mut dyn Link,
        buffers: &BufferTable,
        sent: &mut Vec<(Owner, usize)>,
    ) -> Result<bool, LinkError> {
        let mut progress = false;
        loop {
            // A packet of a stream that was begun goes before the queue.
            let went = if self.begun.is_some()
                || (self.queue.is_empty() && !self.streams.is_empty())
            {
                self.pump_stream(link, buffers, sent)?
            } else if let Some(first) = self.queue.front() {
                let went = send(first, link, buffers)?;
                self.is_begun = !went;
                if went
                    && let Some(QueuedPacket::Message { from, owner, .. }) = self.queue.pop_front()
                {
                    sent.push((owner, from.length));
                }
                went
            } else {
                return Ok(progress);
            };
            if !went {
                return Ok(progress);
            }
            progress = true;
        }
    }

    fn pump_stream(
        &mut self,
        link: &mut dyn Link,
        buffers: &BufferTable,
        sent: &mut Vec<(Owner, usize)>,
    ) -> Result<bool, LinkError> {
        let Some(&id) = self.streams.front() else { return Ok(false) };
        let Some(transfer) = self.transfers.get_mut(&id) else { return Ok(false) };
        if let Some(place) = transfer.place {
            match link.write(buffers, transfer.from, place, id)? {
                WriteOutcome::Posted => {
                    transfer.is_written = true;
                    self.begun = None;
                    self.streams.pop_front();
                    self.push_control(PacketKind::Written, id);
                    return Ok(true);
                }
                WriteOutcome::NoRoom => {
                    self.begun = Some(id);
                    return Ok(false);
                }
                WriteOutcome::Refused => transfer.place = None,
            }
        }
        let (header, part) = transfer.packet(id, link.limits().packet);
        let length = part.length;
        let went = part.read(buffers, |bytes| link.send(header, bytes));
        if !went.ok_or(LinkError::PartlySent)?? {
            self.begun = Some(id);
            return Ok(false);
        }
        self.begun = None;
        transfer.sent += length;
        self.streams.rotate_left(1);
        if transfer.sent == transfer.from.length {
            self.streams.pop_back();
            if let Some(Transfer { owner, from, .. }) = self.transfers.remove(&id) {
                sent.push((owner, from.length));
            }
        }
        Ok(true)
    }

    /// Gives up what belongs to `owner`, whose memory is not read any more when this returns: a packet
    /// of which a part is sent goes on from a copy. Says how many messages a device still reads.
    pub(crate) fn cancel(
        &mut self,
        owner: Owner,
        link: &mut dyn Link,
        buffers: &BufferTable,
    ) -> Result<usize, LinkError> {
        let theirs = self.transfers.iter().filter(|(_, transfer)| transfer.owner == owner);
        let theirs: Vec<u32> = theirs.map(|(id, _)| *id).collect();
        let mut with_device = 0;
        for id in theirs {
            with_device += usize::from(!self.cancel_rts(id, link, buffers)?);
        }
        if let Some(QueuedPacket::Message { header, from, owner: of }) = self.queue.front()
            && *of == owner
            && self.is_begun
        {
            let bytes = from.read(buffers, |bytes| bytes.into()).ok_or(LinkError::PartlySent)?;
            self.queue[0] = QueuedPacket::Copy { header: *header, bytes };
        }
        self.queue.retain(
            |queued| !matches!(queued, QueuedPacket::Message { owner: of, .. } if *of == owner),
        );
        Ok(with_device)
    }

    /// Takes back an offer; `false` where a device reads the message.
    fn cancel_rts(
        &mut self,
        id: u32,
        link: &mut dyn Link,
        buffers: &BufferTable,
    ) -> Result<bool, LinkError> {
        let Some(transfer) = self.transfers.get(&id) else { return Ok(true) };
        let is_begun = self.begun == Some(id);
        if transfer.is_with_device(is_begun) {
            return Ok(false);
        }
        if is_begun {
            let (header, part) = transfer.packet(id, link.limits().packet);
            let bytes = part.read(buffers, |bytes| bytes.into()).ok_or(LinkError::PartlySent)?;
            let is_last = transfer.sent + part.length == transfer.from.length;
            self.queue.push_front(QueuedPacket::Copy { header, bytes });
            (self.is_begun, self.begun) = (true, None);
            if is_last {
                // The message arrives all the same.
                self.streams.retain(|stream| *stream != id);
                self.transfers.remove(&id);
                return Ok(true);
            }
        }
        self.revoke(id, link);
        Ok(true)
    }

    fn revoke(&mut self, id: u32, link: &mut dyn Link) {
        let Some(transfer) = self.transfers.remove(&id) else { return };
        self.streams.retain(|stream| *stream != id);
        let is_it = |queued: &QueuedPacket| matches!(queued, QueuedPacket::Rts { header, .. } if header.transfer == id);
        let queued = self.queue.iter().position(is_it);
        if let Some(at) = queued.filter(|at| *at > 0 || !self.is_begun) {
            // The peer has not heard of it.
            self.queue.remove(at);
            return;
        }
        link.revoke(transfer.address);
        self.withdrawn.insert(id);
        self.push_control(PacketKind::Withdrawn, id);
    }

    /// Takes back all offers, since their owners' memory goes. The peer is not told which they were: it
    /// hears of the fault, and until then trusts nothing that it fetches.
    pub(crate) fn revoke_all(&mut self, link: &mut dyn Link) {
        let begun = self.begun;
        let is_free = |id: &u32, transfer: &mut Transfer| {
            begun != Some(*id) && !transfer.is_with_device(false)
        };
        for (id, transfer) in self.transfers.extract_if(.., is_free) {
            self.streams.retain(|stream| *stream != id);
            self.withdrawn.insert(id);
            link.revoke(transfer.address);
        }
    }

    /// Whether a message of this owner's was offered, which has given it up: then a device reads it.
    pub(crate) fn is_with_device(&self, owner: Owner) -> bool {
        self.transfers.values().any(|transfer| transfer.owner == owner)
    }

    /// Whether anything of this owner's is not sent.
    pub(crate) fn holds(&self, owner: Owner) -> bool {
        let is_queued = |queued: &QueuedPacket| matches!(queued, QueuedPacket::Message { owner: of, .. } if *of == owner);
        self.transfers.values().any(|transfer| transfer.owner == owner)
            || self.queue.iter().any(is_queued)
    }

    /// Whose messages can never be sent now.
    pub(crate) fn fail(&mut self) -> Vec<Owner> {
        let queued = self.queue.drain(..).filter_map(|queued| match queued {
            QueuedPacket::Message { owner, .. } => Some(owner),
            QueuedPacket::Copy { .. }
            | QueuedPacket::Rts { .. }
            | QueuedPacket::Words { .. }
            | QueuedPacket::Bare(_) => None,
        });
        let queued: Vec<Owner> = queued.collect();
        self.streams.clear();
        self.withdrawn.clear();
        let transfers = std::mem::take(&mut self.transfers);
        queued.into_iter().chain(transfers.into_values().map(|transfer| transfer.owner)).collect()
    }
}

fn send(
    queued: &QueuedPacket,
    link: &mut dyn Link,
    buffers: &BufferTable,
) -> Result<bool, LinkError> {
    match queued {
        QueuedPacket::Message { header, from, .. } => {
            from.read(buffers, |bytes| link.send(*header, bytes)).ok_or(LinkError::PartlySent)?
        }
        QueuedPacket::Copy { header, bytes } => link.send(*header, bytes),
        QueuedPacket::Rts { header, rts } => link.send(*header, &rts.encode()),
        QueuedPacket::Words { header, words } => link.send(*header, words),
        QueuedPacket::Bare(header) => link.send(*header, &[]),
    }
}

/// Of a packet about a transfer.
fn about(kind: PacketKind, transfer: u32, length: usize) -> Header {
    Header { kind, context: 0, tag: 0, transfer, length: length as u32 }
}
