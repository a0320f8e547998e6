//! Links over RDMA: one reliable-connected (RC) queue pair for each pair of ranks.
//!
//! A device message is a word of 8 bytes for flow control ([`credits`]) and then a packet: header
//! and payload. Some device messages have only the word. Each device message is copied into a
//! registered send buffer (send slot) and sent as one SEND work request. The message stays in a
//! receive buffer (receive slot) of the peer until the peer has processed it.
//!
//! Long messages of the program are written by RDMA WRITE from the sender's memory straight into
//! the receiver's memory, at the address and with the rkey in the CTS. Work requests of a queue
//! pair are executed in order, so packets sent later arrive after the written data.
//!
//! All links of a device share a protection domain and a completion queue ([`CqPoller`]).

mod cq_poller;
mod credits;

pub(crate) use cq_poller::CqPoller;

use super::{
    Armed, Exposure, Limits, Link, LinkHint, LocalSlice, RemoteBuf, Sink, WatchedFd, WriteOutcome,
};
use crate::transport::{Header, PacketKind};
use crate::types::LinkError;
use credits::Credits;
use rlaunch_lock::{Attached, BufferTable};
use rlaunch_verbs::{
    BounceBuffers, BufferEvent, Completion, RemoteAddr, UserMr, VerbsError, WcStatus,
};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Length of the flow-control word before each packet, in bytes.
const PREFIX: usize = 8;
/// Length of everything before a payload, in bytes.
const HEAD: usize = PREFIX + Header::SIZE;
/// Shortest message, in bytes, that is sent by RDMA WRITE: from this length on it costs less to
/// register memory than to copy into and out of slots.
const WRITE: usize = 32 << 10;
/// Maximum number of bytes of one RDMA WRITE; some devices accept no more.
const CHUNK: usize = 4 << 20;
/// Maximum number of completions that one call of [`Link::receive`] processes before other links
/// get their turn.
const COMPLETION_BUDGET: usize = 16;
/// Time of silence after which a rank sends a message to a peer that it waits for. The rank's
/// device notices only by a missing acknowledgement that the peer's device is gone, so something
/// must be sent.
const SILENCE: Duration = Duration::from_secs(2);
/// Time until a sleeping rank continues after data has arrived. It is long because NICs delay
/// interrupts to raise fewer of them, and emulated hosts are slow.
const WAKE_LATENCY: Duration = Duration::from_millis(10);

/// Parameters of a link. Both ends compute them from what each has advertised to the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConfig {
    /// Longest payload in bytes; a multiple of 64.
    pub(crate) payload: usize,
    /// Number of receive slots of the peer, and of this end; at least two each.
    pub(crate) slots: (u32, u32),
}

impl LinkConfig {
    /// Returns the size of a slot for payloads of up to `payload` bytes, in bytes.
    pub(crate) fn slot(payload: usize) -> usize {
        HEAD + payload
    }
}

/// End of a connection that sends the first message. On iWARP it must be the end that sent the
/// connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstSender {
    /// This end, immediately.
    Local,
    /// The peer; this end sends nothing before it has received the peer's first message.
    Peer,
    /// Either end.
    Either,
}

/// Link to one peer over RDMA.
#[derive(Debug)]
pub(crate) struct VerbsLink {
    slots: BounceBuffers,
    poller: Arc<CqPoller>,
    credits: Credits,
    payload: usize,
    /// Completions that are not processed yet.
    inbox: VecDeque<Completion>,
    /// Time of the last probe, or of the beginning of this rank's wait for the peer if no probe was
    /// sent. `None` after each message from the peer.
    silent_since: Option<Instant>,
    /// Status of the first work request that failed.
    failed: Option<WcStatus>,
    /// Error with which the device rejected a work request. Messages that arrived earlier are still
    /// processed.
    refused: Option<LinkError>,
    /// Whether [`PacketKind::Bye`] has arrived.
    has_peer_left: bool,
    /// Number that [`BounceBuffers::completed`] reaches when the goodbye packet is known to be
    /// delivered; 0 before the packet is sent.
    bye_posted: u64,
    /// Number of bytes posted so far of the message that is being written by RDMA WRITE.
    posted_bytes: usize,
    /// Messages that were posted as RDMA WRITEs and have not completed. Each has the number that
    /// [`BounceBuffers::completed`] reaches when the message is complete, and its transfer id.
    writing: VecDeque<(u64, u32)>,
}

/// Converts a verbs error to the error of a link.
pub(super) fn failed(error: &VerbsError) -> LinkError {
    LinkError::Rdma(error.to_string())
}

impl VerbsLink {
    /// Makes a link from the buffers `slots` of a connected queue pair. The peer must have posted
    /// its receives. The peer's `config` must have the same payload length, and both numbers of
    /// slots in the opposite order.
    pub(crate) fn new(
        slots: BounceBuffers,
        poller: Arc<CqPoller>,
        config: LinkConfig,
        first_sender: FirstSender,
    ) -> VerbsLink {
        let (peer_slots, own_slots) = config.slots;
        poller.join(slots.tag());
        let mut link = VerbsLink {
            slots,
            poller,
            credits: Credits::new(peer_slots, own_slots, first_sender == FirstSender::Peer),
            payload: config.payload,
            inbox: VecDeque::new(),
            silent_since: None,
            failed: None,
            refused: None,
            has_peer_left: false,
            bye_posted: 0,
            posted_bytes: 0,
            writing: VecDeque::new(),
        };
        if first_sender == FirstSender::Local {
            link.send_credits();
        }
        link
    }

    /// Returns the properties of a link whose longest payload has `payload` bytes.
    pub(crate) fn link_hint(payload: usize) -> LinkHint {
        let (fetch, write) = (usize::MAX, WRITE.max(payload + 1));
        let limits =
            Limits { eager: payload, packet: payload, fetch, write, poll_is_syscall: false };
        LinkHint { limits, wake_latency: WAKE_LATENCY, is_rdma: true }
    }

    /// Returns whether the send queue has room for a packet. The last entry is reserved for
    /// [`VerbsLink::send_credits`].
    fn has_room(&self) -> bool {
        self.slots.available() > 1
    }

    /// Returns whether a packet may be sent: the peer has a slot, the send queue has room, and the
    /// device has not rejected a work request.
    fn may_send(&self) -> bool {
        self.credits.may_send() && self.has_room() && self.refused.is_none()
    }

    /// Records the first error with which the device rejected a work request.
    fn refuse(&mut self, error: &VerbsError) {
        self.refused.get_or_insert_with(|| failed(error));
    }

    /// Sends a message with only the count of consumed messages.
    fn send_credits(&mut self) {
        let word = prefix(self.credits.on_send());
        if let Err(error) = self.slots.send([&word], false) {
            self.refuse(&error);
        }
    }

    /// Tells the peer the count of consumed messages, if enough were consumed since the last report
    /// ([`Credits::is_due`]) and a message can be sent.
    #[inline]
    fn send_credits_if_due(&mut self) {
        let may_send_credits = self.credits.may_send_credits() && self.slots.available() > 0;
        if self.credits.is_due() && may_send_credits && self.refused.is_none() {
            self.send_credits();
        }
    }

    /// Fails if the queue pair has failed, unless the peer has said goodbye.
    fn check(&self) -> Result<(), LinkError> {
        match self.failed {
            Some(_) if self.has_peer_left => Ok(()),
            Some(status) if status.is_flushed() => Err(LinkError::Gone),
            Some(status) => Err(LinkError::Rdma(format!("{}: {status}", self.poller.device()))),
            None => Ok(()),
        }
    }

    /// Handles a poll without a completion. Returns `false`, or an error if no further message can
    /// arrive.
    fn on_empty_poll(&mut self) -> Result<bool, LinkError> {
        self.check()?;
        match self.refused.take() {
            Some(error) if !self.has_peer_left => Err(error),
            _ => Ok(false),
        }
    }

    /// Processes a completion, and passes a received packet to the sink.
    fn process(&mut self, completion: Completion, sink: &mut dyn Sink) -> Result<(), LinkError> {
        match self.slots.process(completion) {
            Some(BufferEvent::Received(slot)) => {
                self.silent_since = None;
                let decoded = decode_message(self.slots.message(&slot), &mut self.credits);
                let delivered = decoded.and_then(|packet| {
                    let Some((header, payload)) = packet else { return Ok(()) };
                    self.has_peer_left |= header.kind == PacketKind::Bye;
                    sink.packet(header, payload)
                });
                if let Err(error) = self.slots.repost(slot) {
                    self.refuse(&error);
                }
                delivered
            }
            Some(BufferEvent::Sent) => self.written(sink),
            Some(BufferEvent::Failed(status)) => {
                // The first failed work request has the cause; the requests after it are only
                // flushed.
                if self.failed.is_none_or(WcStatus::is_flushed) {
                    self.failed = Some(status);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn written(&mut self, sink: &mut dyn Sink) -> Result<(), LinkError> {
        while let Some(&(requests, transfer)) = self.writing.front()
            && requests <= self.slots.completed()
        {
            self.writing.pop_front();
            sink.written(transfer)?;
        }
        Ok(())
    }

    /// Posts RDMA WRITEs for the rest of a message while there is room. `posted_bytes` is the
    /// number of bytes posted so far.
    fn post(
        slots: &mut BounceBuffers,
        from: PendingWrite<'_>,
        posted_bytes: &mut usize,
    ) -> Result<WriteOutcome, VerbsError> {
        let PendingWrite { region, start, length, to, key } = from;
        while *posted_bytes < length {
            if slots.available() < 2 {
                return Ok(WriteOutcome::NoRoom);
            }
            let part = region.slice(start + *posted_bytes, (length - *posted_bytes).min(CHUNK))?;
            slots.write(part, RemoteAddr::new(to.wrapping_add(*posted_bytes as u64), key))?;
            *posted_bytes += (length - *posted_bytes).min(CHUNK);
        }
        Ok(WriteOutcome::Posted)
    }
}

impl CqPoller {
    /// Calls `f` with the registration of the lent buffer of `slice` on this device, and with the
    /// buffer's offset in the registered memory, which may be larger than the buffer. Requests the
    /// registration first if necessary.
    fn with_registration<R>(
        &self,
        buffers: &BufferTable,
        slice: LocalSlice,
        f: impl FnOnce(&UserMr, usize) -> R,
    ) -> Attached<R> {
        let domain = self.resources.domain.clone();
        let register = move |held| UserMr::register(&domain, held).ok();
        buffers.with_attachment(slice.buffer, self.number, register, f)
    }
}

/// Message to be written by RDMA WRITE: its range in a registered region, and the address and rkey
/// of the peer's memory.
#[derive(Clone, Copy)]
struct PendingWrite<'r> {
    region: &'r UserMr,
    start: usize,
    length: usize,
    to: u64,
    key: u32,
}

impl Link for VerbsLink {
    fn limits(&self) -> Limits {
        VerbsLink::link_hint(self.payload).limits
    }

    fn wake_latency(&self) -> Duration {
        WAKE_LATENCY
    }

    fn send(&mut self, header: Header, payload: &[u8]) -> Result<bool, LinkError> {
        if payload.len() > self.payload || header.length as usize != payload.len() {
            return Err(LinkError::Protocol("the payload has another length than its header says"));
        }
        self.check()?;
        if !self.may_send() {
            return Ok(false);
        }
        let word = prefix(self.credits.on_send());
        let is_last = header.kind == PacketKind::Bye;
        let sent = self.slots.send([&word, &header.to_bytes(), payload], is_last);
        if let Err(error) = sent {
            self.refuse(&error);
            return Ok(false);
        }
        if is_last {
            self.bye_posted = self.slots.posted();
        }
        Ok(true)
    }

    fn receive(&mut self, sink: &mut dyn Sink) -> Result<bool, LinkError> {
        if self.inbox.is_empty() {
            self.poller.collect(self.slots.tag(), &mut self.inbox)?;
            if self.inbox.is_empty() {
                self.send_credits_if_due();
                return self.on_empty_poll();
            }
        }
        for _ in 0..COMPLETION_BUDGET {
            let Some(completion) = self.inbox.pop_front() else { break };
            self.process(completion, sink)?;
        }
        self.send_credits_if_due();
        Ok(true)
    }

    fn register(&mut self, buffers: &BufferTable, whole: LocalSlice) {
        // If the device cannot register the memory, messages from and to it are copied.
        let _ = self.poller.with_registration(buffers, whole, |_, _| ());
    }

    fn expose_write(&mut self, buffers: &BufferTable, into: LocalSlice) -> Exposure {
        let LocalSlice { buffer, start, length } = into;
        let exposed = self.poller.with_registration(buffers, into, |region, offset| {
            // The slice must be in the region, and the region writable.
            let at = offset + start;
            region.slice(at, length).ok().filter(|_| region.is_writable())?;
            let address = region.address() + at as u64;
            Some(RemoteBuf { address, key: region.rkey().into() })
        });
        match exposed {
            // From here on the program cannot access the memory until the peer has written it.
            Attached::Used(Some(exposed)) if buffers.expose(buffer, start..start + length) => {
                Exposure::At(exposed)
            }
            Attached::Pending => Exposure::Pending,
            Attached::Used(_) | Attached::Unavailable => Exposure::Refused,
        }
    }

    fn write(
        &mut self,
        buffers: &BufferTable,
        from: LocalSlice,
        to: RemoteBuf,
        transfer: u32,
    ) -> Result<WriteOutcome, LinkError> {
        self.check()?;
        if self.refused.is_some() {
            return Ok(WriteOutcome::NoRoom);
        }
        let Ok(key) = u32::try_from(to.key) else {
            return Err(LinkError::Protocol("its CTS has an invalid rkey"));
        };
        let LocalSlice { start, length, .. } = from;
        let (slots, posted_bytes) = (&mut self.slots, &mut self.posted_bytes);
        let wrote = self.poller.with_registration(buffers, from, |region, offset| {
            let start = offset + start;
            VerbsLink::post(
                slots,
                PendingWrite { region, start, length, to: to.address, key },
                posted_bytes,
            )
        });
        let wrote = match wrote {
            Attached::Used(wrote) => wrote,
            Attached::Pending => return Ok(WriteOutcome::NoRoom),
            Attached::Unavailable if self.posted_bytes == 0 => return Ok(WriteOutcome::Refused),
            Attached::Unavailable => return Err(LinkError::PartlySent),
        };
        match wrote {
            Ok(WriteOutcome::Posted) => {
                self.posted_bytes = 0;
                self.writing.push_back((self.slots.posted(), transfer));
                Ok(WriteOutcome::Posted)
            }
            Ok(wrote) => Ok(wrote),
            Err(error) => {
                self.refuse(&error);
                Ok(WriteOutcome::NoRoom)
            }
        }
    }

    fn is_rdma(&self) -> bool {
        true
    }

    fn is_delivered(&self) -> bool {
        self.failed.is_some() || self.slots.completed() >= self.bye_posted
    }

    fn probe_peer(&mut self) {
        let since = *self.silent_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= SILENCE {
            self.silent_since = Some(Instant::now());
            // Like a packet, this must not use the reserved slot and work request.
            if self.may_send() {
                self.send_credits();
            }
        }
    }

    fn arm(&mut self, wants_room: bool) -> Result<Armed<'_>, LinkError> {
        self.send_credits_if_due();
        let has_room = wants_room && self.may_send();
        if has_room
            || self.refused.is_some()
            || !self.inbox.is_empty()
            || !self.poller.arm(self.slots.tag())?
        {
            return Ok(Armed::Ready);
        }
        Ok(Armed::Watch(WatchedFd { fd: self.poller.fd(), writable: false, instead_of: None }))
    }

    fn disarm(&mut self) {
        self.poller.disarm(self.has_peer_left);
    }

    fn visit_fds(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        visit(self.poller.fd());
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        self.poller.leave(self.slots.tag());
    }
}

fn prefix(taken: u32) -> [u8; PREFIX] {
    u64::from(taken).to_le_bytes()
}

/// Decodes a device message: passes its flow-control word to `credits`, and returns its packet;
/// `None` if the message has only the word.
fn decode_message<'m>(
    message: &'m [u8],
    credits: &mut Credits,
) -> Result<Option<(Header, &'m [u8])>, LinkError> {
    let short = || LinkError::Protocol("a message is too short");
    let (word, rest) = message.split_first_chunk::<PREFIX>().ok_or_else(short)?;
    let word = u64::from_le_bytes(*word);
    credits.on_receive(u32::try_from(word).map_err(|_| short())?)?;
    if rest.is_empty() {
        return Ok(None);
    }
    let (head, payload) = rest.split_first_chunk::<{ Header::SIZE }>().ok_or_else(short)?;
    let header = Header::from_bytes(head)?;
    if header.length as usize == payload.len() {
        Ok(Some((header, payload)))
    } else {
        Err(LinkError::Protocol("the payload has another length than its header says"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: PacketKind, length: u32) -> Header {
        Header { kind, context: 0xf12_3456, tag: 0xabcd_ef01, transfer: 0x2345_6789, length }
    }

    #[test]
    fn what_is_sent_is_understood() {
        let header = header(PacketKind::Data, 3);
        let message = [&prefix(1)[..], &header.to_bytes(), &[1, 2, 3]].concat();
        let mut credits = Credits::new(4, 4, false);
        credits.on_send();
        let packet = decode_message(&message, &mut credits).unwrap();
        assert_eq!(packet, Some((header, &[1, 2, 3][..])));
        assert_eq!(decode_message(&prefix(1), &mut credits).unwrap(), None);
        assert_eq!(message.len(), LinkConfig::slot(3));
    }

    #[test]
    fn what_no_rlaunch_sends_is_refused() {
        let good = [&prefix(0)[..], &header(PacketKind::Eager, 2).to_bytes(), &[1, 2]].concat();
        let refused = |message: &[u8]| {
            decode_message(message, &mut Credits::new(4, 4, false)).unwrap_err().to_string()
        };
        assert!(refused(&[]).ends_with("a message is too short"));
        assert!(refused(&good[..20]).ends_with("a message is too short"));
        let expected = "the payload has another length than its header says";
        assert!(refused(&good[..25]).ends_with(expected));
        assert!(refused(&[&good[..], &[0]].concat()).ends_with(expected));
        let mut unknown = good.clone();
        unknown[PREFIX + 4] |= 0xf;
        assert!(refused(&unknown).ends_with("unknown kind 15"));
        let mut taken = good;
        taken[0] = 1;
        assert!(
            refused(&taken).ends_with("it claims to have consumed more messages than were sent")
        );
    }
}
