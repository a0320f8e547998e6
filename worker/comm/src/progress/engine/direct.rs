//! Short messages that bypass the queues: they are sent from the caller's memory straight into the
//! link, and received from the link straight into the caller's memory while the caller waits for
//! nothing else.
//!
//! A send through shared memory ends with a store that is complete only when the peer's core has
//! given up the cache line. If a later read is wider than the writes before it, such as a move of a
//! whole structure, the processor waits until those writes are done. The functions here therefore
//! move no values wider than a register: they pass envelopes by reference, and fetch the reason for
//! a failure only when needed. And whether a peer sleeps and has to be woken is looked at only after
//! the first poll for its answer ([`publish`]), or when the engine lock is released.
//!
//! [`publish`]: crate::transport::Link::publish
//!
//! Zero-copy transfer of long messages: this rank fetches them from their sender's memory, or
//! exposes memory for the sender's device to write.

use super::inbox::{Fetch, Lookup};
use super::incoming::Incoming;
use super::matching::{Matching, Status};
use super::{Engine, Envelope, Peer};
use crate::transport::{Exposure, Fill, Header, PacketKind, Sink};
use crate::types::LinkError;
use rlaunch_lock::BufferTable;

/// Result of sending a short message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The link has taken the whole message.
    Sent,
    /// The link has no room for the whole message at present; a copy is queued.
    Queued,
    /// The message is too long to be sent eagerly. Nothing was sent.
    TooLong,
    /// Nothing can be sent to this peer any more; see [`Engine::failure`].
    Failed,
}

/// Result of polling for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    /// The message has been passed to the callback.
    Message,
    /// The message is there, but must be received by a posted receive: it is long and was only
    /// announced, or the receive has to report an error.
    NeedsPosting,
    /// Other packets have arrived, but not the message.
    Progress,
    Nothing,
    /// Nothing can be received from this peer any more; see [`Engine::failure`].
    Failed,
}

impl Engine {
    /// Sends a message if it is short enough to be sent eagerly, as one packet. Queues a copy if
    /// the link has no room.
    #[inline]
    pub(crate) fn send_short(&mut self, to: &Envelope, bytes: &[u8]) -> SendOutcome {
        if self.has_failed(to.peer) {
            return SendOutcome::Failed;
        }
        let peer = &mut self.peers[to.peer];
        if bytes.len() > peer.limits.eager {
            return SendOutcome::TooLong;
        }
        let (context, tag, length) = (to.context, to.tag, bytes.len() as u32);
        let header = Header { kind: PacketKind::Eager, context, tag, transfer: 0, length };
        if !peer.outbox.is_empty() {
            peer.outbox.push_copy(header, bytes, false);
            self.note_queued(to.peer);
            return SendOutcome::Queued;
        }
        match peer.link.publish(header, bytes) {
            Ok(true) => {
                if to.peer == self.me {
                    self.threads.note_change();
                }
                if to.peer != self.published {
                    self.wake_published();
                    self.published = to.peer;
                }
                SendOutcome::Sent
            }
            Ok(false) => {
                peer.outbox.push_copy(header, bytes, true);
                self.note_queued(to.peer);
                SendOutcome::Queued
            }
            Err(error) => {
                self.lose(to.peer, error);
                SendOutcome::Failed
            }
        }
    }

    /// Tells whether everything that was queued for a peer has been sent, or never will be because
    /// the peer is gone.
    pub(crate) fn has_sent(&self, peer: usize) -> bool {
        self.peers[peer].outbox.is_empty() || self.peers[peer].is_gone
    }

    /// Returns the length in bytes of the first message that matches an envelope, if it is a long
    /// message that the peer has announced; `None` otherwise.
    pub(crate) fn rts_length(&self, from: &Envelope) -> Option<u64> {
        self.peers[from.peer].inbox.rts_length(from.context, from.tag)
    }

    /// Looks for a message that matches the envelope `from`: among the messages that have arrived,
    /// then by polling the peer's link. Passes the message to `take` if it is short.
    #[inline]
    pub(crate) fn receive_short_message(
        &mut self,
        from: &Envelope,
        buffers: &BufferTable,
        mut take: impl FnMut(&[u8]),
    ) -> ReceiveOutcome {
        let at = from.peer;
        match self.peers[at].inbox.take_short(from.context, from.tag, &mut take) {
            Lookup::Message => return ReceiveOutcome::Message,
            Lookup::NeedsPosting => return ReceiveOutcome::NeedsPosting,
            Lookup::Nothing => {}
        }
        if self.has_failed(at) {
            return ReceiveOutcome::Failed;
        }
        let (incoming, link) = self.incoming(at, buffers);
        let mut direct = DirectSink { incoming, wanted: from, take, is_taken: false };
        let received = link.receive(&mut direct);
        let is_taken = direct.is_taken;
        self.wake_published();
        match received {
            Ok(false) => {
                self.awaited = at;
                ReceiveOutcome::Nothing
            }
            Ok(true) => {
                self.threads.note_change();
                self.after_receive(at, buffers);
                if is_taken { ReceiveOutcome::Message } else { ReceiveOutcome::Progress }
            }
            Err(error) => {
                self.lose(at, error);
                if is_taken { ReceiveOutcome::Message } else { ReceiveOutcome::Failed }
            }
        }
    }
}

impl Matching {
    /// Tells whether a posted receive matches messages with this envelope.
    #[inline]
    fn is_wanted(&self, from: &Envelope) -> bool {
        !self.posted.is_empty() && self.find_posted(from.peer, from.context, from.tag).is_some()
    }
}

/// Packet handler that passes one short message with the envelope `wanted` to the callback `take`,
/// and all other packets to the engine.
struct DirectSink<'e, F> {
    incoming: Incoming<'e>,
    wanted: &'e Envelope,
    take: F,
    is_taken: bool,
}

impl<F: FnMut(&[u8])> Sink for DirectSink<'_, F> {
    #[inline]
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        let matches = header.kind == PacketKind::Eager
            && header.context == self.wanted.context
            && header.tag == self.wanted.tag
            && !self.is_taken
            && !self.incoming.matching.is_wanted(self.wanted);
        if !matches {
            return self.incoming.packet(header, payload);
        }
        self.is_taken = true;
        (self.take)(payload);
        Ok(())
    }

    fn part(
        &mut self,
        header: Header,
        offset: usize,
        fill: &mut Fill<'_>,
    ) -> Result<usize, LinkError> {
        self.incoming.part(header, offset, fill)
    }

    fn written(&mut self, transfer: u32) -> Result<(), LinkError> {
        self.incoming.written(transfer)
    }

    fn buffers(&self) -> Option<&BufferTable> {
        self.incoming.buffers()
    }
}

/// Maximum number of bytes in one fetch. After each fetch, the engine checks whether the peer has
/// cancelled a message and may have reused its memory.
const MAX_FETCH: usize = 4 << 20;
/// Maximum number of bytes in one fetch for a reduction: few enough to stay in the cache until they
/// are reduced. In tests the number is smaller, so that their messages are fetched in several
/// parts.
const MAX_REDUCED_FETCH: usize = if cfg!(test) { 2 << 10 } else { 128 << 10 };

enum Fetched {
    All,
    /// The kernel does not permit this rank to read the peer's memory.
    Forbidden,
    /// The peer has cancelled a message, possibly this one, so the fetched bytes may be wrong.
    Revoked,
}

impl Engine {
    /// Handles the long messages in [`Inbox::fetches`](super::inbox::Inbox::fetches) of peer `at`,
    /// in order: fetches each from the peer's memory, or exposes memory to which the peer's device
    /// writes it.
    pub(super) fn fetch(&mut self, at: usize, buffers: &BufferTable) {
        while let Some(mut fetch) = self.peers[at].inbox.fetches.pop_front() {
            if fetch.address == 0 {
                let into = fetch.target.into.part(0, fetch.length);
                let exposed = match self.peers[at].link.expose_write(buffers, into) {
                    Exposure::At(exposed) => Some(exposed),
                    Exposure::Refused => None,
                    Exposure::Pending => {
                        return self.peers[at].inbox.fetches.push_front(fetch);
                    }
                };
                match self.incoming(at, buffers).0.send_cts(&fetch, exposed) {
                    Ok(()) => drop(self.pump(at, buffers)),
                    Err(error) => return self.lose(at, error),
                }
                continue;
            }
            match self.fetch_one(at, &mut fetch, buffers) {
                Ok(Fetched::All) => {
                    self.peers[at]
                        .outbox
                        .push_control(PacketKind::Fin, fetch.origin.header.transfer);
                    self.matching
                        .complete(fetch.owner, Ok(Status { from: at, length: fetch.length }));
                    self.pump(at, buffers);
                }
                Ok(Fetched::Forbidden) => match self.incoming(at, buffers).0.send_cts(&fetch, None)
                {
                    Ok(()) => drop(self.pump(at, buffers)),
                    Err(error) => return self.lose(at, error),
                },
                // Wait for the peer's packet `Withdrawn`, which tells the message that was
                // cancelled. The other messages are fetched after it.
                Ok(Fetched::Revoked) => return self.peers[at].inbox.fetches.push_front(fetch),
                Err(error) => {
                    let cause = self.mark_lost(at, error);
                    self.matching.complete(fetch.owner, Err(cause.clone()));
                    return self.fail_all(&cause);
                }
            }
        }
    }

    fn fetch_one(
        &mut self,
        at: usize,
        fetch: &mut Fetch,
        buffers: &BufferTable,
    ) -> Result<Fetched, LinkError> {
        let Peer { link, inbox, .. } = &mut self.peers[at];
        let known = inbox.withdrawn;
        let Fetch { address, length, target, .. } = *fetch;
        let at_once = if target.reduction.is_some() { MAX_REDUCED_FETCH } else { MAX_FETCH };
        let scratch = &mut self.scratch;
        if target.reduction.is_some() && scratch.len() < at_once.min(length) {
            scratch.resize(at_once.min(length), 0);
        }
        if link.has_revoked(known) {
            return Ok(Fetched::Revoked);
        }
        while fetch.fetched < length {
            let part = at_once.min(length - fetch.fetched);
            let from = address + fetch.fetched as u64;
            let is_fetched = if target.reduction.is_some() {
                link.fetch(from, &mut scratch[..part])
            } else {
                let into = target.into.part(fetch.fetched, part);
                into.write(buffers, |memory| link.fetch(from, memory)).unwrap_or(Ok(true))
            };
            // The bytes just read, or the failure to read them, may stem from memory that the peer
            // has reused.
            if link.has_revoked(known) {
                return Ok(Fetched::Revoked);
            }
            if !is_fetched? {
                return Ok(Fetched::Forbidden);
            }
            if target.reduction.is_some() {
                let _ = target.put(buffers, fetch.fetched, &scratch[..part]);
            }
            fetch.fetched += part;
        }
        Ok(Fetched::All)
    }
}
