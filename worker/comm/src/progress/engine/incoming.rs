//! Handling of packets received from one peer.
//!
//! A message is *unexpected* while no posted receive matches it. Memory is *exposed* while the
//! peer's device may write to it. RTS, CTS and FIN are the packets described in
//! [`crate::transport`].

use super::inbox::{
    ArrivingMessage, Fetch, Inbox, Origin, PartialPacket, Unexpected, UnexpectedBody,
};
use super::matching::{Matching, Owner, PostedReceive, Status, Target};
use super::out_of_step::OutOfStep;
use super::outbox::Outbox;
use crate::transport::{Fill, Header, Limits, LocalSlice, PacketKind, RemoteBuf, Rts, Sink};
use crate::types::{Cause, LinkError};
use rlaunch_lock::BufferTable;
use std::io;

/// Number of bytes that are reduced at once if a packet arrives in parts: a multiple of every
/// element size, and few enough to stay in the cache.
const REDUCE_CHUNK: usize = 64 << 10;

/// Handler of the packets received from one peer. Borrows the parts of the engine that these
/// packets change.
pub(crate) struct Incoming<'e> {
    pub(crate) matching: &'e mut Matching,
    pub(crate) inbox: &'e mut Inbox,
    pub(crate) outbox: &'e mut Outbox,
    pub(crate) buffers: &'e BufferTable,
    pub(crate) peer: usize,
    pub(crate) limits: Limits,
}

impl Incoming<'_> {
    /// Matches a receive with an unexpected message; returns `false` if no unexpected message
    /// matches.
    pub(crate) fn match_posted(&mut self, posted: PostedReceive) -> Result<bool, LinkError> {
        let Some(message) = self.inbox.take(posted.context, posted.tag) else { return Ok(false) };
        let Unexpected { header, body, number } = message;
        let origin = Origin { header, number };
        match body {
            UnexpectedBody::Whole(bytes) => self.deliver(&posted, &bytes),
            UnexpectedBody::Rts(rts) => self.accept_rts(&posted, origin, rts)?,
            UnexpectedBody::Arriving(_) => self.resume_into(&posted, header.transfer),
            UnexpectedBody::Withdrawn => {
                self.matching.complete(posted.owner, Err(self.withdrawn_by()));
            }
        }
        Ok(true)
    }

    /// Redirects a message that is still arriving to a new receive, after its first receive was
    /// cancelled.
    fn resume_into(&mut self, posted: &PostedReceive, transfer: u32) {
        let received = self.inbox.received_so_far(transfer);
        let Some(arriving) = self.inbox.arriving.get_mut(&transfer) else { return };
        let Some(diverted) = arriving.diverted.take() else { return };
        let before = std::mem::replace(&mut arriving.target, posted.target);
        arriving.owner = posted.owner;
        let length = arriving.length as u64;
        let mismatch = self.matching.mismatch(self.peer, length, posted);
        match mismatch {
            // The message does not fit the receive. The rest of the message is discarded: it goes
            // to the buffer that is freed below.
            Some(cause) => {
                arriving.target = before;
                self.matching.complete(posted.owner, Err(cause));
            }
            None => {
                let part = before.into.part(0, received);
                let put = |bytes: &[u8]| posted.target.put(self.buffers, 0, bytes);
                let _ = part.read(self.buffers, put);
            }
        }
        self.buffers.free(diverted);
    }

    fn withdrawn_by(&self) -> Cause {
        Cause::Withdrawn(self.matching.names[self.peer].clone())
    }

    /// Detaches arriving messages from a cancelled operation. If the operation is a receive of the
    /// program, they become unexpected again; if it is a collective, they are dropped. Returns
    /// whether any message became unexpected, and the number of messages that the peer's device may
    /// still write.
    pub(crate) fn cancel(&mut self, owner: Owner) -> (bool, usize) {
        let (mut has_requeued, mut with_device) = (false, 0);
        let is_message = matches!(owner, Owner::Request(_));
        while let Some(at) = self.inbox.fetches.iter().position(|fetch| fetch.owner == owner) {
            let Some(fetch) = self.inbox.fetches.remove(at) else { break };
            let Fetch { origin, length, address, .. } = fetch;
            if is_message {
                let rts = Rts { length: length as u64, address };
                self.inbox.put_back(origin, UnexpectedBody::Rts(rts));
                has_requeued = true;
            } else {
                self.outbox.push_control(PacketKind::Fin, origin.header.transfer);
            }
        }
        let mut origins = Vec::new();
        for arriving in self.inbox.arriving.values_mut().filter(|arriving| arriving.owner == owner)
        {
            if arriving.is_exposed {
                arriving.requeues = is_message;
                with_device += 1;
                continue;
            }
            arriving.owner = Owner::Cancelled;
            if !is_message {
                continue;
            }
            origins.push(arriving.origin);
        }
        for origin in origins {
            has_requeued |= self.divert(origin);
        }
        (has_requeued, with_device)
    }

    /// Diverts an arriving message into a buffer of the engine, together with the bytes received so
    /// far, until another receive matches the message. Returns `false` if the message is not
    /// arriving.
    fn divert(&mut self, origin: Origin) -> bool {
        let transfer = origin.header.transfer;
        let received = self.inbox.received_so_far(transfer);
        let Some(arriving) = self.inbox.arriving.get_mut(&transfer) else { return false };
        let length = arriving.length;
        let diverted = self.buffers.allocate(length);
        let target = Target { into: LocalSlice::all(diverted, length), reduction: None };
        let before = std::mem::replace(&mut arriving.target, target);
        let received = before.into.part(0, received);
        let _ = received.read(self.buffers, |bytes| target.put(self.buffers, 0, bytes));
        arriving.diverted = Some(diverted);
        self.inbox.put_back(origin, UnexpectedBody::Arriving(length as u64));
        true
    }

    /// Handles the cancellation of a message by its sender.
    fn on_withdrawn(&mut self, transfer: u32) {
        self.inbox.withdrawn = self.inbox.withdrawn.wrapping_add(1);
        let fetched = self.inbox.fetches.iter().position(|f| f.origin.header.transfer == transfer);
        let ended = if let Some(arriving) = self.inbox.arriving.remove(&transfer) {
            match arriving.diverted {
                Some(diverted) => {
                    self.buffers.free(diverted);
                    self.inbox.mark_withdrawn(transfer);
                }
                None if arriving.requeues => {
                    self.inbox.put_back(arriving.origin, UnexpectedBody::Withdrawn);
                }
                None => self.matching.complete(arriving.owner, Err(self.withdrawn_by())),
            }
            true
        } else if let Some(fetch) = fetched.and_then(|at| self.inbox.fetches.remove(at)) {
            self.matching.complete(fetch.owner, Err(self.withdrawn_by()));
            true
        } else {
            self.inbox.mark_withdrawn(transfer)
        };
        // Otherwise this rank had already answered with FIN when the peer cancelled the message.
        if ended {
            self.outbox.push_control(PacketKind::Fin, transfer);
        }
    }

    #[inline]
    fn deliver(&mut self, posted: &PostedReceive, bytes: &[u8]) {
        let result = match self.matching.mismatch(self.peer, bytes.len() as u64, posted) {
            Some(cause) => Err(cause),
            None => {
                // Ignore failure: it means that the program has taken the memory back, and then no
                // call waits for the request.
                let _ = posted.target.put(self.buffers, 0, bytes);
                Ok(Status { from: self.peer, length: bytes.len() })
            }
        };
        self.matching.complete(posted.owner, result);
    }

    /// Decides how a long message that matches a receive is transferred.
    fn accept_rts(
        &mut self,
        posted: &PostedReceive,
        origin: Origin,
        rts: Rts,
    ) -> Result<(), LinkError> {
        let (target, owner) = (posted.target, posted.owner);
        let transfer = origin.header.transfer;
        if let Some(cause) = self.matching.mismatch(self.peer, rts.length, posted) {
            self.matching.complete(owner, Err(cause));
            self.outbox.push_control(PacketKind::Fin, transfer);
            return Ok(());
        }
        // The length is at most that of the buffer, as checked above.
        let length = rts.length as usize;
        let address = if length >= self.limits.fetch { rts.address } else { 0 };
        let fetch = Fetch { origin, address, length, fetched: 0, target, owner };
        // A device cannot reduce, so messages to be reduced arrive as packets.
        if address != 0 || (length >= self.limits.write && target.reduction.is_none()) {
            self.inbox.fetches.push_back(fetch);
            return Ok(());
        }
        self.send_cts(&fetch, None)
    }

    /// Answers an RTS with a CTS, which asks the sender to write the message to `exposed`, or to
    /// send it as packets if `exposed` is `None`. The sender transfers the whole message even if
    /// this rank has already fetched a part.
    pub(crate) fn send_cts(
        &mut self,
        fetch: &Fetch,
        exposed: Option<RemoteBuf>,
    ) -> Result<(), LinkError> {
        let Fetch { origin, length, target, owner, fetched, .. } = *fetch;
        let reduced = if target.reduction.is_some() { fetched } else { 0 };
        let (is_exposed, transfer) = (exposed.is_some(), origin.header.transfer);
        let (received, diverted, requeues) = (0, None, false);
        let arriving = ArrivingMessage {
            origin,
            target,
            owner,
            length,
            received,
            reduced,
            is_exposed,
            diverted,
            requeues,
        };
        if self.inbox.arriving.insert(transfer, arriving).is_some() {
            return Err(LinkError::Protocol("it announced two messages with one transfer id"));
        }
        self.outbox.push_cts(transfer, exposed);
        Ok(())
    }

    /// Counts `length` more bytes of a long message as received, and completes the message after
    /// its last byte.
    fn advance(&mut self, transfer: u32, length: usize) {
        let Some(arriving) = self.inbox.arriving.get_mut(&transfer) else { return };
        arriving.received += length;
        if arriving.received < arriving.length {
            return;
        }
        let ArrivingMessage { origin, owner, length, target, diverted, requeues, .. } = *arriving;
        self.inbox.arriving.remove(&transfer);
        let bytes = || target.into.read(self.buffers, <[u8]>::to_vec).unwrap_or_default();
        if let Some(diverted) = diverted {
            let bytes = bytes();
            self.buffers.free(diverted);
            self.inbox.complete(transfer, bytes);
        } else if requeues {
            let Header { context, tag, .. } = origin.header;
            match self.matching.take_posted(self.peer, context, tag) {
                Some(posted) => self.deliver(&posted, &bytes()),
                None => self.inbox.put_back(origin, UnexpectedBody::Whole(bytes())),
            }
        } else {
            self.matching.complete(owner, Ok(Status { from: self.peer, length }));
        }
    }

    /// Completes a message that the peer's device has written to exposed memory.
    fn on_written_by_peer(&mut self, transfer: u32) -> Result<(), LinkError> {
        match self.inbox.arriving.get(&transfer) {
            Some(ArrivingMessage { is_exposed: true, received: 0, length, target, .. }) => {
                let (length, into) = (*length, target.into.part(0, *length));
                self.buffers.conceal(into.buffer, &into.range());
                self.advance(transfer, length);
                Ok(())
            }
            _ => Err(LinkError::Protocol("it wrote a message without a CTS")),
        }
    }

    /// Returns the destination of the message to which a `Data` packet belongs, the offset in the
    /// message at which the packet's payload begins, and the number of bytes to skip at the start
    /// of the message because they were already reduced.
    fn target_of(&self, header: Header) -> Result<(Target, usize, usize), LinkError> {
        let unwanted = LinkError::Protocol("it sent data without a CTS");
        let arriving = self.inbox.arriving.get(&header.transfer).ok_or(unwanted)?;
        // The peer sends packets instead of writing if its device cannot register its memory. The
        // message still counts as exposed, so a cancellation of its receive waits for the rest of
        // the message.
        if arriving.is_exposed && arriving.received == 0 {
            let into = arriving.target.into.part(0, arriving.length);
            self.buffers.conceal(into.buffer, &into.range());
        }
        if header.length as usize > arriving.length - arriving.received {
            return Err(LinkError::Protocol("it sent more data than it announced"));
        }
        Ok((arriving.target, arriving.received, arriving.reduced))
    }

    /// Decides where to put the payload of a packet that arrives in parts.
    fn begin_packet(&mut self, header: Header) -> Result<PartialPacket, LinkError> {
        Ok(match header.kind {
            PacketKind::Data => {
                let (_, start, _) = self.target_of(header)?;
                PartialPacket::Transfer { transfer: header.transfer, start, received: 0 }
            }
            // A matching receive may still be posted before the packet is complete.
            _ => PartialPacket::Kept(Vec::new()),
        })
    }

    fn end_packet(&mut self, header: Header) -> Result<(), LinkError> {
        match self.inbox.partial.take() {
            Some(PartialPacket::Transfer { .. }) => {
                self.advance(header.transfer, header.length as usize);
                Ok(())
            }
            Some(PartialPacket::Kept(bytes)) => self.packet(header, &bytes),
            None => Ok(()),
        }
    }

    /// Keeps a message until a receive for it is posted.
    fn keep_unexpected(&mut self, header: Header, body: UnexpectedBody) {
        let number = self.matching.arrival();
        self.inbox.unexpected.push_back(Unexpected { header, body, number });
    }

    /// Reduces the bytes in [`Inbox::scratch`], which are a part of a packet's payload that ends at
    /// offset `end` in the payload. The payload begins at offset `start` of the message; the first
    /// `reduced` bytes of the message are skipped.
    fn reduce_scratch(&mut self, (target, reduced): (Target, usize), start: usize, end: usize) {
        let from = start + end - self.inbox.scratch.len();
        let _ = target.put_from(reduced, self.buffers, from, &self.inbox.scratch);
        self.inbox.scratch.clear();
    }
}

impl Sink for Incoming<'_> {
    #[inline]
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        match header.kind {
            PacketKind::Eager => {
                match self.matching.take_posted(self.peer, header.context, header.tag) {
                    Some(posted) => self.deliver(&posted, payload),
                    None if self.matching.is_out_of_step(header.context, header.tag) => {}
                    None => self.keep_unexpected(header, UnexpectedBody::Whole(payload.to_vec())),
                }
            }
            PacketKind::Data => {
                let (target, received, reduced) = self.target_of(header)?;
                let _ = target.put_from(reduced, self.buffers, received, payload);
                self.advance(header.transfer, payload.len());
            }
            PacketKind::Rts => {
                let rts = Rts::decode(payload)?;
                match self.matching.take_posted(self.peer, header.context, header.tag) {
                    Some(posted) => {
                        let origin = Origin { header, number: self.matching.arrival() };
                        self.accept_rts(&posted, origin, rts)?;
                    }
                    None => self.keep_unexpected(header, UnexpectedBody::Rts(rts)),
                }
            }
            PacketKind::Cts => self.outbox.on_cts(header.transfer, RemoteBuf::decode(payload)?)?,
            PacketKind::Written => self.on_written_by_peer(header.transfer)?,
            PacketKind::Fin => {
                if let Some((owner, length)) = self.outbox.on_fin(header.transfer)? {
                    self.matching.complete(owner, Ok(Status { from: self.peer, length }));
                }
            }
            PacketKind::Bye => {
                self.inbox.has_left = true;
                self.inbox.lost_rank = (header.transfer as usize).checked_sub(1);
                self.inbox.has_control = true;
            }
            PacketKind::Withdrawn => self.on_withdrawn(header.transfer),
            PacketKind::OutOfStep => {
                self.matching.notices.push(OutOfStep::decode(header, payload)?);
                self.inbox.has_control = true;
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
        if offset == 0 || self.inbox.partial.is_none() {
            self.inbox.partial = Some(self.begin_packet(header)?);
        }
        // The message may have been redirected to another receive since the packet began.
        let target = match &self.inbox.partial {
            Some(PartialPacket::Transfer { transfer, .. }) => {
                let arriving = self.inbox.arriving.get(transfer);
                arriving.map(|arriving| (arriving.target, arriving.reduced))
            }
            _ => None,
        };
        let filled = match (&mut self.inbox.partial, target) {
            (Some(PartialPacket::Transfer { start, .. }), Some((target, _)))
                if target.reduction.is_none() =>
            {
                let into = target.into.part(*start + offset, length - offset);
                let filled = into.write(self.buffers, |memory| fill(memory));
                filled.unwrap_or_else(|| discard(length - offset, fill))
            }
            (Some(PartialPacket::Transfer { start, .. }), Some(target)) => {
                let start = *start;
                let room = (length - offset).min(REDUCE_CHUNK - self.inbox.scratch.len());
                let filled = append(&mut self.inbox.scratch, room, fill);
                if let Ok(count) = filled
                    && (self.inbox.scratch.len() == REDUCE_CHUNK || offset + count == length)
                {
                    self.reduce_scratch(target, start, offset + count);
                }
                filled
            }
            (Some(PartialPacket::Transfer { .. }), None) => discard(length - offset, fill),
            (Some(PartialPacket::Kept(bytes)), _) => append(bytes, length - offset, fill),
            (None, _) => Ok(0),
        };
        let filled = filled.map_err(|source| LinkError::System { operation: "receive", source })?;
        if let Some(PartialPacket::Transfer { received, .. }) = &mut self.inbox.partial {
            *received = offset + filled;
        }
        if offset + filled == length {
            self.end_packet(header)?;
        }
        Ok(filled)
    }

    fn written(&mut self, transfer: u32) -> Result<(), LinkError> {
        let unknown = LinkError::Protocol("the link reported a write that was not requested");
        let (owner, length) = self.outbox.on_written(transfer).ok_or(unknown)?;
        self.matching.complete(owner, Ok(Status { from: self.peer, length }));
        Ok(())
    }

    fn buffers(&self) -> Option<&BufferTable> {
        Some(self.buffers)
    }
}

/// Reads up to 4096 bytes of the `rest` unwanted bytes of a packet and drops them. Returns the
/// number of bytes read.
fn discard(rest: usize, fill: &mut Fill<'_>) -> io::Result<usize> {
    fill(&mut [0; 4096][..rest.min(4096)])
}

/// Appends up to `room` bytes that `fill` provides to `bytes`, and returns their number.
fn append(bytes: &mut Vec<u8>, room: usize, fill: &mut Fill<'_>) -> io::Result<usize> {
    let before = bytes.len();
    bytes.resize(before + room, 0);
    let filled = fill(&mut bytes[before..]);
    bytes.truncate(before + filled.as_ref().map_or(0, |count| (*count).min(room)));
    filled
}
