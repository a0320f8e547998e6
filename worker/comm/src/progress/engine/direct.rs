//! Short messages without queueing: from the caller's memory into the link, and from the link into
//! the caller's memory while the caller waits for nothing else.
//!
//! Sending ends with a store that stalls until the peer's core gives up the cache line. A later
//! read that is wider than the preceding writes, such as a move of a whole structure, stalls until
//! those writes are done. Nothing here therefore moves values wider than a register: envelopes are
//! passed by reference, and the reason for a failure is fetched only when needed.

use super::inbox::Lookup;
use super::incoming::Incoming;
use super::matching::Matching;
use super::{Engine, Envelope};
use crate::transport::packet::{Header, PacketKind};
use crate::transport::{Fill, Sink};
use crate::types::error::LinkError;
use rlaunch_lock::BufferTable;

/// Result of sending a short message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The link has taken the whole message.
    Sent,
    /// The link has no room for the message at present; a copy is queued.
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
    /// The message is long and was only announced, or its receive has to report an error: it needs
    /// a posted receive.
    NeedsPosting,
    /// Other packets have arrived.
    Progress,
    Nothing,
    /// Nothing can be received from this peer any more; see [`Engine::failure`].
    Failed,
}

impl Engine {
    /// Sends a message if it is short enough for the eager protocol, or queues a copy of it.
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
        match peer.link.send(header, bytes) {
            Ok(true) => {
                if to.peer == self.me {
                    self.threads.note_change();
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

    /// Tells whether everything queued for a peer has been sent.
    pub(crate) fn has_sent(&self, peer: usize) -> bool {
        self.peers[peer].outbox.is_empty() || self.peers[peer].is_gone
    }

    /// Returns the length in bytes of an [announced](ReceiveOutcome::Rts) message.
    pub(crate) fn rts_length(&self, from: &Envelope) -> Option<u64> {
        self.peers[from.peer].inbox.rts_length(from.context, from.tag)
    }

    /// Polls one peer for the message of an envelope and passes it to `take` if it is short.
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
    /// Tells whether a posted receive matches the message.
    #[inline]
    fn is_wanted(&self, from: &Envelope) -> bool {
        !self.posted.is_empty() && self.find_posted(from.peer, from.context, from.tag).is_some()
    }
}

/// Packet handler that passes the message `wanted` to a callback and everything else to the engine.
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
