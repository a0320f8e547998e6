//! Short messages that bypass the queues: they are sent from the caller's memory straight into the
//! link, and received from the link straight into the caller's memory while the caller waits for
//! nothing else.
//!
//! A send through shared memory ends with a store that is complete only when the peer's core has
//! given up the cache line. If a later read is wider than the writes before it, such as a move of a
//! whole structure, the processor waits until those writes are done. The functions here therefore
//! move no values wider than a register: they pass envelopes by reference, and fetch the reason for
//! a failure only when needed.

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
