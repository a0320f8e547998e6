//! Packets over RDMA: a queue pair of a reliable connection for each pair of ranks.
//!
//! A message is a word of the [`credits`], 8 bytes, and then a packet, if there is one: its header
//! and its payload. It lies in a slot of the sender until it is sent, and in one of the receiver
//! until it is understood. Long messages are written by the device, from their sender's memory
//! straight to their receiver's; what is sent afterwards comes after them.

mod cq_poller;
mod credits;

pub(crate) use cq_poller::CqPoller;

use super::{
    Armed, Exposure, Limits, Link, LinkHint, LocalSlice, RemoteBuf, Sink, WatchedFd, WriteOutcome,
};
use crate::transport::packet::{Header, PacketKind};
use crate::types::error::LinkError;
use credits::Credits;
use rlaunch_lock::{Attached, BufferTable};
use rlaunch_verbs::{
    BounceBuffers, BufferEvent, Completion, RemoteAddr, UserMr, VerbsError, WcStatus,
};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Before each packet, in bytes.
const PREFIX: usize = 8;
/// Before each payload, in bytes.
const HEAD: usize = PREFIX + Header::SIZE;
/// From here on messages are written by the device, in bytes: then it costs less to tell it of
/// memory than to copy from and to slots.
const WRITE: usize = 32 << 10;
/// What is written at once, in bytes: some devices do not take more.
const CHUNK: usize = 4 << 20;
/// So many completions are looked at before other links get their turn.
const TURN: usize = 16;
/// A peer that is waited for and has been silent for so long is sent a word: a device whose peer is
/// gone learns it from what is not answered, and from nothing else.
const SILENCE: Duration = Duration::from_secs(2);
/// Cards hold interrupts back to send fewer, and those of emulated hosts take their time.
const WAKE_LATENCY: Duration = Duration::from_millis(10);

/// How a link of two ranks is made, the same at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkConfig {
    /// Of the longest payload, in bytes; a multiple of 64.
    pub(crate) payload: usize,
    /// The peer's slots, and this end's: at least two each.
    pub(crate) slots: (u32, u32),
}

impl LinkConfig {
    /// How large a slot is, in bytes.
    pub(crate) fn slot(payload: usize) -> usize {
        HEAD + payload
    }
}

/// Who speaks first. iWARP wants it to be the end that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstSender {
    /// This end, at once.
    Local,
    /// The peer, and this end is silent until then.
    Peer,
    /// Whoever has something to say.
    Either,
}

/// RDMA to one other rank.
#[derive(Debug)]
pub(crate) struct VerbsLink {
    slots: BounceBuffers,
    poller: Arc<CqPoller>,
    credits: Credits,
    payload: usize,
    /// What has ended and was not looked at.
    inbox: VecDeque<Completion>,
    /// Since when the peer was found to be silent, or was last asked.
    silent: Option<Instant>,
    /// How the queue pair has failed.
    failed: Option<WcStatus>,
    /// Why the device takes no requests any more. The peer's last word may still wait to be read.
    refused: Option<LinkError>,
    /// [`PacketKind::Bye`] has come.
    has_peer_left: bool,
    /// Requests up to here are to end before this rank may.
    bye_posted: u64,
    /// How much of a message is written of which a part is.
    begun: usize,
    /// Messages that were written when so many requests have ended, by transfer.
    writing: VecDeque<(u64, u32)>,
}

/// As ranks are told of it.
pub(super) fn failed(error: &VerbsError) -> LinkError {
    LinkError::Rdma(error.to_string())
}

impl VerbsLink {
    /// Takes over `slots` of a queue pair that is connected, and whose peer is ready. Both ends give
    /// the same `config`, each from where it stands.
    pub(crate) fn new(
        slots: BounceBuffers,
        poller: Arc<CqPoller>,
        config: LinkConfig,
        begins: FirstSender,
    ) -> VerbsLink {
        let (theirs, own) = config.slots;
        poller.join(slots.tag());
        let mut link = VerbsLink {
            slots,
            poller,
            credits: Credits::new(theirs, own, begins == FirstSender::Peer),
            payload: config.payload,
            inbox: VecDeque::new(),
            silent: None,
            failed: None,
            refused: None,
            has_peer_left: false,
            bye_posted: 0,
            begun: 0,
            writing: VecDeque::new(),
        };
        if begins == FirstSender::Local {
            link.send_credits();
        }
        link
    }

    /// What a link will be whose longest payload is this, in bytes.
    pub(crate) fn link_hint(payload: usize) -> LinkHint {
        let (fetch, write) = (usize::MAX, WRITE.max(payload + 1));
        let limits =
            Limits { eager: payload, packet: payload, fetch, write, poll_is_syscall: false };
        LinkHint { limits, wake_latency: WAKE_LATENCY, is_rdma: true }
    }

    /// A request more is posted for packets, and one is left for [`VerbsLink::tell`].
    fn has_room(&self) -> bool {
        self.slots.available() > 1
    }

    /// Whether a packet may be posted.
    fn may_send(&self) -> bool {
        self.credits.may_send() && self.has_room() && self.refused.is_none()
    }

    /// The device takes nothing any more.
    fn refuse(&mut self, error: &VerbsError) {
        self.refused.get_or_insert_with(|| failed(error));
    }

    /// Says what was taken, and nothing else.
    fn send_credits(&mut self) {
        let word = prefix(self.credits.on_send());
        if let Err(error) = self.slots.send([&word], false) {
            self.refuse(&error);
        }
    }

    /// The same when it is time, and as soon as it can be said.
    #[inline]
    fn send_credits_if_due(&mut self) {
        let may_send_credits = self.credits.may_send_credits() && self.slots.available() > 0;
        if self.credits.is_due() && may_send_credits && self.refused.is_none() {
            self.send_credits();
        }
    }

    /// Fails once the queue pair has, unless the peer has left.
    fn check(&self) -> Result<(), LinkError> {
        match self.failed {
            Some(_) if self.has_peer_left => Ok(()),
            Some(status) if status.is_flushed() => Err(LinkError::Gone),
            Some(status) => Err(LinkError::Rdma(format!("{}: {status}", self.poller.device()))),
            None => Ok(()),
        }
    }

    /// Nothing has come that was not handed over. Fails if nothing will.
    fn nothing(&mut self) -> Result<bool, LinkError> {
        self.check()?;
        match self.refused.take() {
            Some(error) if !self.has_peer_left => Err(error),
            _ => Ok(false),
        }
    }

    /// Hands what has come to the sink.
    fn take(&mut self, completion: Completion, sink: &mut dyn Sink) -> Result<(), LinkError> {
        match self.slots.process(completion) {
            Some(BufferEvent::Received(slot)) => {
                self.silent = None;
                let understood = understand(self.slots.message(&slot), &mut self.credits);
                let handed = understood.and_then(|packet| {
                    let Some((header, payload)) = packet else { return Ok(()) };
                    self.has_peer_left |= header.kind == PacketKind::Bye;
                    sink.packet(header, payload)
                });
                if let Err(error) = self.slots.repost(slot) {
                    self.refuse(&error);
                }
                handed
            }
            Some(BufferEvent::Sent) => self.written(sink),
            Some(BufferEvent::Failed(status)) => {
                // What fails first says why; the others were never tried.
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

    /// Asks the device to write what follows of a message, as far as there is room.
    fn post(
        slots: &mut BounceBuffers,
        from: Written<'_>,
        begun: &mut usize,
    ) -> Result<WriteOutcome, VerbsError> {
        let Written { region, start, length, to, key } = from;
        while *begun < length {
            if slots.available() < 2 {
                return Ok(WriteOutcome::NoRoom);
            }
            let part = region.slice(start + *begun, (length - *begun).min(CHUNK))?;
            slots.write(part, RemoteAddr::new(to.wrapping_add(*begun as u64), key))?;
            *begun += (length - *begun).min(CHUNK);
        }
        Ok(WriteOutcome::Posted)
    }
}

impl CqPoller {
    /// Runs `uses` on what the device was told of lent memory, and on where the buffer begins in that.
    fn with_registration<R>(
        &self,
        buffers: &BufferTable,
        slice: LocalSlice,
        uses: impl FnOnce(&UserMr, usize) -> R,
    ) -> Attached<R> {
        let domain = self.resources.domain.clone();
        let tell = move |held| UserMr::register(&domain, held).ok();
        buffers.with_attachment(slice.buffer, self.number, tell, uses)
    }
}

/// A message that is written.
#[derive(Clone, Copy)]
struct Written<'r> {
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
            return Err(LinkError::Protocol("its length is another than its header says"));
        }
        self.check()?;
        if !self.may_send() {
            return Ok(false);
        }
        let word = prefix(self.credits.on_send());
        let is_last = header.kind == PacketKind::Bye;
        let said = self.slots.send([&word, &to_bytes(header), payload], is_last);
        if let Err(error) = said {
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
                return self.nothing();
            }
        }
        for _ in 0..TURN {
            let Some(completion) = self.inbox.pop_front() else { break };
            self.take(completion, sink)?;
        }
        self.send_credits_if_due();
        Ok(true)
    }

    fn register(&mut self, buffers: &BufferTable, whole: LocalSlice) {
        // Where the device refuses, messages from and to the memory are copied.
        let _ = self.poller.with_registration(buffers, whole, |_, _| ());
    }

    fn expose_write(&mut self, buffers: &BufferTable, into: LocalSlice) -> Exposure {
        let LocalSlice { buffer, start, length } = into;
        let place = self.poller.with_registration(buffers, into, |region, offset| {
            // All of it is there, and may be written to.
            let at = offset + start;
            region.slice(at, length).ok().filter(|_| region.is_writable())?;
            let address = region.address() + at as u64;
            Some(RemoteBuf { address, key: region.rkey().into() })
        });
        match place {
            // Nobody looks at it until the peer has written.
            Attached::Used(Some(place)) if buffers.expose(buffer, start..start + length) => {
                Exposure::At(place)
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
            return Err(LinkError::Protocol("it wants a message where no device has memory"));
        };
        let LocalSlice { start, length, .. } = from;
        let (slots, begun) = (&mut self.slots, &mut self.begun);
        let wrote = self.poller.with_registration(buffers, from, |region, offset| {
            let start = offset + start;
            VerbsLink::post(slots, Written { region, start, length, to: to.address, key }, begun)
        });
        let wrote = match wrote {
            Attached::Used(wrote) => wrote,
            Attached::Pending => return Ok(WriteOutcome::NoRoom),
            Attached::Unavailable if self.begun == 0 => return Ok(WriteOutcome::Refused),
            Attached::Unavailable => return Err(LinkError::PartlySent),
        };
        match wrote {
            Ok(WriteOutcome::Posted) => {
                self.begun = 0;
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
        let since = *self.silent.get_or_insert_with(Instant::now);
        if since.elapsed() >= SILENCE {
            self.silent = Some(Instant::now());
            // As a packet, not as a word that must get through.
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

    fn unwatch(&self, unwatches: &mut dyn FnMut(BorrowedFd<'_>)) {
        unwatches(self.poller.fd());
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

fn to_bytes(header: Header) -> [u8; Header::SIZE] {
    let [first, second] = header.to_words();
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

/// The packet of a message, if it has one.
fn understand<'m>(
    message: &'m [u8],
    credits: &mut Credits,
) -> Result<Option<(Header, &'m [u8])>, LinkError> {
    let short = || LinkError::Protocol("shorter than a message may be");
    let (word, rest) = message.split_first_chunk::<PREFIX>().ok_or_else(short)?;
    let word = u64::from_le_bytes(*word);
    credits.on_receive(u32::try_from(word).map_err(|_| short())?)?;
    if rest.is_empty() {
        return Ok(None);
    }
    let (head, payload) = rest.split_first_chunk::<{ Header::SIZE }>().ok_or_else(short)?;
    let both = u128::from_le_bytes(*head);
    let header = Header::from_words([both as u64, (both >> 64) as u64])?;
    match header.length as usize == payload.len() {
        true => Ok(Some((header, payload))),
        false => Err(LinkError::Protocol("its length is another than its header says")),
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
        let message = [&prefix(1)[..], &to_bytes(header), &[1, 2, 3]].concat();
        let mut credits = Credits::new(4, 4, false);
        credits.on_send();
        let packet = understand(&message, &mut credits).unwrap();
        assert_eq!(packet, Some((header, &[1, 2, 3][..])));
        assert_eq!(understand(&prefix(1), &mut credits).unwrap(), None);
        assert_eq!(message.len(), LinkConfig::slot(3));
    }

    #[test]
    fn what_no_rlaunch_sends_is_refused() {
        let good = [&prefix(0)[..], &to_bytes(header(PacketKind::Eager, 2)), &[1, 2]].concat();
        let refused = |message: &[u8]| {
            understand(message, &mut Credits::new(4, 4, false)).unwrap_err().to_string()
        };
        assert!(refused(&[]).ends_with("shorter than a message may be"));
        assert!(refused(&good[..20]).ends_with("shorter than a message may be"));
        let said = "its length is another than its header says";
        assert!(refused(&good[..25]).ends_with(said));
        assert!(refused(&[&good[..], &[0]].concat()).ends_with(said));
        let mut unknown = good.clone();
        unknown[PREFIX + 4] |= 0xf;
        assert!(refused(&unknown).ends_with("unknown kind 15"));
        let mut taken = good;
        taken[0] = 1;
        assert!(refused(&taken).ends_with("it has taken more messages than were sent"));
    }
}
