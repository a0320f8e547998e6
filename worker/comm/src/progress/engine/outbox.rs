//! Packets waiting to be sent to one peer.
//!
//! Short messages and control packets are sent first, in order. If none are left, the long messages
//! that the peer has requested are sent, one packet of each in turn. So no short message waits
//! until a whole long message has been sent.
//!
//! A *transfer id* is the number that this rank gives to a long message. RTS, CTS and FIN are the
//! packets described in [`crate::transport`].

use super::matching::Owner;
use super::out_of_step::OutOfStep;
use crate::transport::{Header, Link, LocalSlice, PacketKind, RemoteBuf, Rts, WriteOutcome};
use crate::types::LinkError;
use rlaunch_lock::BufferTable;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug)]
enum QueuedPacket {
    /// Message to be sent from its owner's memory.
    Message { header: Header, from: LocalSlice, owner: Owner },
    /// Copy of a message. No operation waits until it is sent.
    Copy { header: Header, bytes: Box<[u8]> },
    /// Announcement of a long message.
    Rts { header: Header, rts: Rts },
    /// Control packet with a payload: a CTS that names the memory to write to, or a notice of a
    /// cancelled collective.
    Words { header: Header, words: [u8; 16] },
    /// Control packet without a payload.
    Bare(Header),
}

/// Long message that was announced to the peer.
#[derive(Debug)]
struct Transfer {
    from: LocalSlice,
    owner: Owner,
    /// Address from which the peer may fetch the message; 0 if the peer cannot fetch it.
    address: u64,
    sent: usize,
    /// Memory of the peer to which to write the message; `None` if the message is sent as packets.
    remote: Option<RemoteBuf>,
    /// Whether the whole message has been posted to the link as a write. The link reports later
    /// when the message's memory may change.
    is_written: bool,
}

impl Transfer {
    /// Returns the header of this transfer's next packet, and the location of the packet's payload.
    /// `id` is the transfer id, and `longest` the maximum length of the payload in bytes.
    fn packet(&self, id: u32, longest: usize) -> (Header, LocalSlice) {
        let length = (self.from.length - self.sent).min(longest);
        (transfer_header(PacketKind::Data, id, length), self.from.part(self.sent, length))
    }

    /// Tells whether a device may be reading the message from its owner's memory. `is_begun` tells
    /// whether [`Outbox::begun`] is the transfer id of this message.
    fn is_with_device(&self, is_begun: bool) -> bool {
        self.is_written || (is_begun && self.remote.is_some())
    }
}

/// Packets and long messages to send to one peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<QueuedPacket>,
    /// Whether a part of the first queued packet has been sent.
    is_begun: bool,
    /// Announced messages by transfer id.
    transfers: BTreeMap<u32, Transfer>,
    /// Transfer ids of the announced messages that the peer has requested, in the order of their
    /// turns.
    streams: VecDeque<u32>,
    /// Transfer id of the long message of which a packet or a write was begun and is not finished.
    begun: Option<u32>,
    /// Transfer ids of messages that were cancelled after their RTS, and that the peer has not
    /// answered with FIN yet.
    withdrawn: BTreeSet<u32>,
    last_transfer: u32,
}

impl Outbox {
    /// Tells whether nothing waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.streams.is_empty()
    }

    /// Tells whether an announced message is unfinished, so that an answer of the peer is expected.
    pub(crate) fn has_transfers(&self) -> bool {
        !self.transfers.is_empty()
    }

    pub(crate) fn push_message(&mut self, header: Header, from: LocalSlice, owner: Owner) {
        self.queue.push_back(QueuedPacket::Message { header, from, owner });
    }

    /// Queues a copy of a short message. `is_begun` tells whether the link has already begun to
    /// send the message, so that it must be sent next.
    pub(crate) fn push_copy(&mut self, header: Header, bytes: &[u8], is_begun: bool) {
        self.is_begun |= is_begun;
        self.queue.push_back(QueuedPacket::Copy { header, bytes: bytes.into() });
    }

    /// Queues the announcement of a long message. `address` is where the peer may fetch the
    /// message, or 0.
    pub(crate) fn push_rts(
        &mut self,
        header: Header,
        from: LocalSlice,
        address: u64,
        owner: Owner,
    ) {
        self.last_transfer = self.last_transfer.wrapping_add(1).max(1);
        let rts = Rts { length: from.length as u64, address };
        let transfer = Transfer { from, owner, address, sent: 0, remote: None, is_written: false };
        self.transfers.insert(self.last_transfer, transfer);
        let header = Header { transfer: self.last_transfer, length: Rts::SIZE as u32, ..header };
        self.queue.push_back(QueuedPacket::Rts { header, rts });
    }

    /// Queues a notice of a cancelled collective.
    pub(crate) fn push_out_of_step(&mut self, notice: OutOfStep) {
        let (header, words) = notice.encode();
        self.queue.push_back(QueuedPacket::Words { header, words });
    }

    /// Queues a control packet without a payload.
    pub(crate) fn push_control(&mut self, kind: PacketKind, transfer: u32) {
        self.queue.push_back(QueuedPacket::Bare(transfer_header(kind, transfer, 0)));
    }

    /// Queues a CTS, which asks the peer to write the message that it has announced to `exposed`,
    /// or to send the message as packets if `exposed` is `None`.
    pub(crate) fn push_cts(&mut self, transfer: u32, exposed: Option<RemoteBuf>) {
        let Some(exposed) = exposed else { return self.push_control(PacketKind::Cts, transfer) };
        let header = transfer_header(PacketKind::Cts, transfer, RemoteBuf::SIZE);
        self.queue.push_back(QueuedPacket::Words { header, words: exposed.encode() });
    }

    /// Queues a goodbye. If this rank leaves because another rank was lost, the goodbye names the
    /// lost rank, and messages whose sending has not begun are dropped.
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

    /// Handles a CTS: begins to write an announced message to `remote`, or to send the message as
    /// packets if `remote` is `None`. Fails if this rank has not announced the message, or the peer
    /// has requested it before.
    pub(crate) fn on_cts(
        &mut self,
        transfer: u32,
        remote: Option<RemoteBuf>,
    ) -> Result<(), LinkError> {
        if self.withdrawn.contains(&transfer) {
            return Ok(());
        }
        let unknown = LinkError::Protocol("it requested a message that was not announced");
        let wanted = self.transfers.get_mut(&transfer).ok_or(unknown)?;
        if wanted.remote.is_some() || self.streams.contains(&transfer) {
            return Err(LinkError::Protocol("it requested a message twice"));
        }
        wanted.remote = remote;
        self.streams.push_back(transfer);
        Ok(())
    }

    /// Removes the messages that were written to a peer that has left, and returns their owners and
    /// lengths in bytes. These messages arrived before the peer's goodbye, even if the link has not
    /// reported their completion yet.
    pub(crate) fn take_written(&mut self) -> Vec<(Owner, usize)> {
        let written = self.transfers.extract_if(.., |_, transfer| transfer.is_written);
        written.map(|(_, transfer)| (transfer.owner, transfer.from.length)).collect()
    }

    /// Removes a message that the link has written, and returns its owner and its length in bytes.
    pub(crate) fn on_written(&mut self, transfer: u32) -> Option<(Owner, usize)> {
        let written = self.transfers.remove(&transfer)?;
        Some((written.owner, written.from.length))
    }

    /// Handles a FIN: the peer has fetched a message, or needs no more of it. Returns the owner and
    /// the length in bytes of the message, or `None` if this rank has cancelled the message.
    pub(crate) fn on_fin(&mut self, transfer: u32) -> Result<Option<(Owner, usize)>, LinkError> {
        if self.withdrawn.remove(&transfer) {
            return Ok(None);
        }
        if self.streams.contains(&transfer) {
            return Err(LinkError::Protocol("it acknowledged a message that is still being sent"));
        }
        let unknown = LinkError::Protocol("it acknowledged a message that was not announced");
        let ended = self.transfers.remove(&transfer).ok_or(unknown)?;
        Ok(Some((ended.owner, ended.from.length)))
    }

    /// Sends packets while the link has room, and appends the owners and lengths in bytes of sent
    /// messages to `sent`. Returns whether anything was sent.
    pub(crate) fn pump(
        &mut self,
        link: &mut dyn Link,
        buffers: &BufferTable,
        sent: &mut Vec<(Owner, usize)>,
    ) -> Result<bool, LinkError> {
        let mut progress = false;
        loop {
            // A packet or a write that was begun must be finished first.
            let is_sent = if self.begun.is_some()
                || (self.queue.is_empty() && !self.streams.is_empty())
            {
                self.pump_stream(link, buffers, sent)?
            } else if let Some(first) = self.queue.front() {
                let is_sent = send(first, link, buffers)?;
                self.is_begun = !is_sent;
                if is_sent
                    && let Some(QueuedPacket::Message { from, owner, .. }) = self.queue.pop_front()
                {
                    sent.push((owner, from.length));
                }
                is_sent
            } else {
                return Ok(progress);
            };
            if !is_sent {
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
        if let Some(remote) = transfer.remote {
            match link.write(buffers, transfer.from, remote, id)? {
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
                WriteOutcome::Refused => transfer.remote = None,
            }
        }
        let (header, part) = transfer.packet(id, link.limits().packet);
        let length = part.length;
        let is_sent = part.read(buffers, |bytes| link.send(header, bytes));
        if !is_sent.ok_or(LinkError::PartlySent)?? {
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

    /// Cancels the messages of an owner, and returns the number of these messages that a device
    /// still reads. After this call, the engine no longer reads the owner's memory itself: if a
    /// packet was sent in part, its rest is sent from a copy.
    pub(crate) fn cancel(
        &mut self,
        owner: Owner,
        link: &mut dyn Link,
        buffers: &BufferTable,
    ) -> Result<usize, LinkError> {
        let ids = self.transfers.iter().filter(|(_, transfer)| transfer.owner == owner);
        let ids: Vec<u32> = ids.map(|(id, _)| *id).collect();
        let mut with_device = 0;
        for id in ids {
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

    /// Cancels an announced message. Returns `false`, without any effect, if a device is reading
    /// the message.
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
                // The message arrives nevertheless.
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
        let matches = |queued: &QueuedPacket| matches!(queued, QueuedPacket::Rts { header, .. } if header.transfer == id);
        let queued = self.queue.iter().position(matches);
        if let Some(at) = queued.filter(|at| *at > 0 || !self.is_begun) {
            // The RTS has not been sent, so the peer does not know about the message.
            self.queue.remove(at);
            return;
        }
        link.revoke(transfer.address);
        self.withdrawn.insert(id);
        self.push_control(PacketKind::Withdrawn, id);
    }

    /// Revokes all announced messages that are not being sent or read by a device, because the
    /// program may reuse their memory. No packet reports this to the peer: the goodbye that follows
    /// makes all operations of the peer fail. Until then, [`Link::has_revoked`] tells the peer
    /// after each fetch that the fetched bytes may be wrong.
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

    /// Tells whether a device still reads a message of an owner whose messages were
    /// [cancelled](Outbox::cancel).
    pub(crate) fn is_with_device(&self, owner: Owner) -> bool {
        self.transfers.values().any(|transfer| transfer.owner == owner)
    }

    /// Tells whether messages of this owner wait to be sent.
    pub(crate) fn holds(&self, owner: Owner) -> bool {
        let is_queued = |queued: &QueuedPacket| matches!(queued, QueuedPacket::Message { owner: of, .. } if *of == owner);
        self.transfers.values().any(|transfer| transfer.owner == owner)
            || self.queue.iter().any(is_queued)
    }

    /// Drops everything that is queued or announced. Returns the owners of the messages that will
    /// never be sent completely.
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

/// Returns the header of a packet that belongs to a transfer.
fn transfer_header(kind: PacketKind, transfer: u32, length: usize) -> Header {
    Header { kind, context: 0, tag: 0, transfer, length: length as u32 }
}
