//! Short messages without a detour: from the caller's memory into the link, and from the link into
//! the caller's memory, while the caller waits for nothing else.
//!
//! What is sent is a store that takes until the peer's processor has given up the line. Whoever then
//! reads something wider than it was written, as moved structures are, waits for all of that. So
//! nothing here is moved that is wider than a register: messages are borrowed, and why something
//! cannot be done is asked for when it matters.

use super::inbox::Lookup;
use super::incoming::Incoming;
use super::matching::Matching;
use super::{Engine, Envelope};
use crate::transport::packet::{Header, PacketKind};
use crate::transport::{Fill, Sink};
use crate::types::error::LinkError;
use rlaunch_lock::BufferTable;

/// What became of a message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The link has it.
    Sent,
    /// There was no room; a copy of it waits.
    Queued,
    /// It has to be offered first.
    TooLong,
    /// Nothing goes to this peer any more: see [`Engine::failure`].
    Failed,
}

/// What became of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    /// A message, whose bytes were handed over.
    Message,
    /// A message that is too long for that.
    Rts,
    /// Something else.
    Progress,
    Nothing,
    /// Nothing comes from this peer any more: see [`Engine::failure`].
    Failed,
}

impl Engine {
    /// Sends a short message.
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
            self.has_queued(to.peer);
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
                self.has_queued(to.peer);
                SendOutcome::Queued
            }
            Err(error) => {
                self.lose(to.peer, error);
                SendOutcome::Failed
            }
        }
    }

    /// Whether everything has gone that was to be sent to a peer.
    pub(crate) fn has_sent(&self, peer: usize) -> bool {
        self.peers[peer].outbox.is_empty() || self.peers[peer].is_gone
    }

    /// How long a message of a peer is that was [offered](Got::Offer), in bytes.
    pub(crate) fn rts_length(&self, from: &Envelope) -> Option<u64> {
        self.peers[from.peer].inbox.rts_length(from.context, from.tag)
    }

    /// Looks for a message of one peer, and hands it to `take`.
    #[inline]
    pub(crate) fn receive_short_message(
        &mut self,
        from: &Envelope,
        buffers: &BufferTable,
        mut take: impl FnMut(&[u8]),
    ) -> ReceiveOutcome {
        let at = from.peer;
        match self.peers[at].inbox.look(from.context, from.tag, &mut take) {
            Lookup::Message => return ReceiveOutcome::Message,
            Lookup::Rts => return ReceiveOutcome::Rts,
            Lookup::Nothing => {}
        }
        if self.has_failed(at) {
            return ReceiveOutcome::Failed;
        }
        let (incoming, link) = self.incoming(at, buffers);
        let mut direct = DirectSink { incoming, wanted: from, take, is_taken: false };
        let came = link.receive(&mut direct);
        let is_taken = direct.is_taken;
        match came {
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
    /// Whether a receive that was posted before takes such a message.
    #[inline]
    fn is_wanted(&self, from: &Envelope) -> bool {
        !self.posted.is_empty() && self.find_posted(from.peer, from.context, from.tag).is_some()
    }
}

/// Takes one message out of what comes.
struct DirectSink<'e, F> {
    incoming: Incoming<'e>,
    wanted: &'e Envelope,
    take: F,
    is_taken: bool,
}

impl<F: FnMut(&[u8])> Sink for DirectSink<'_, F> {
    #[inline]
    fn packet(&mut self, header: Header, payload: &[u8]) -> Result<(), LinkError> {
        let is_it = header.kind == PacketKind::Eager
            && header.context == self.wanted.context
            && header.tag == self.wanted.tag
            && !self.is_taken
            && !self.incoming.matching.is_wanted(self.wanted);
        if !is_it {
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
