//! Messages of a queue pair in slots: memory that is cut into pieces of one size, some of which the
//! device fills and some of which it sends.
//!
//! Each slot is either the device's or the program's. What has come lies in a slot that the device
//! has given up, so it can be looked at where it is, for as long as its [`FilledBuffer`] is not given back.

use crate::error::VerbsError;
use crate::memory::{MemoryRegion, MrSlice, ProtectionDomain};
use crate::queue::{Completion, WcStatus};
use crate::queue::{Connected, QueuePair, RemoteAddr};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// BounceBuffers begin where lines of processors' caches do.
const LINE: usize = 64;
/// Of a request's id: its number among those of its kind and its queue pair.
const NUMBER: u32 = 43;
/// Above it: whether it receives.
const RECEIVES: u64 = 1 << NUMBER;
/// Above that: whose it is.
const TAG: u32 = NUMBER + 1;

/// How many there were so far: no two have one number.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A queue pair that sends from and receives into slots.
#[derive(Debug)]
pub struct BounceBuffers {
    // In this order: once the queue pair is gone, no device touches the memory.
    pair: QueuePair<Connected>,
    region: MemoryRegion,
    layout: Layout,
    number: u64,
    /// BounceBuffers that the device fills, in that order.
    posted: VecDeque<u32>,
    /// Messages that have come.
    came: u64,
    outgoing: Outgoing,
}

/// Where slots are: first those that receive.
#[derive(Clone, Copy, Debug)]
struct Layout {
    receive: u32,
    send: u32,
    /// Of a message, in bytes.
    size: usize,
}

/// A message that has come.
#[derive(Debug, PartialEq, Eq)]
pub struct FilledBuffer {
    /// Among whose slots.
    of: u64,
    index: u32,
    length: usize,
}

/// What a completion was about.
#[derive(Debug)]
pub enum BufferEvent {
    /// A message has come.
    Received(FilledBuffer),
    /// Requests to send or write have ended: [`BounceBuffers::ended`] says how many.
    Sent,
    /// The queue pair has failed, and with it all that was asked of it.
    Failed(WcStatus),
}

/// Requests to send and write, which end in the order in which they were posted.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    room: u64,
    posted: u64,
    ended: u64,
    /// Up to here they are signalled.
    signalled: u64,
}

impl Outgoing {
    fn new(room: u32) -> Outgoing {
        Outgoing { room: room.into(), posted: 0, ended: 0, signalled: 0 }
    }

    fn room(self) -> u64 {
        self.room - (self.posted - self.ended)
    }

    /// Whether the next has to tell of its end: a fourth of them is enough to know of all.
    fn is_due(self) -> bool {
        self.posted + 1 - self.signalled >= (self.room / 4).max(1)
    }

    fn post(&mut self, signalled: bool) {
        self.posted += 1;
        if signalled {
            self.signalled = self.posted;
        }
    }

    /// The request of this number has ended, of which the last bits are known; and so have those
    /// before it.
    fn end(&mut self, number: u64) {
        let behind = (self.posted - 1).wrapping_sub(number) & (RECEIVES - 1);
        let ended = self.posted.saturating_sub(behind);
        self.ended = self.ended.max(ended);
    }
}

impl Layout {
    fn stride(self) -> usize {
        self.size.next_multiple_of(LINE)
    }

    fn receiving(self, index: u32) -> usize {
        self.stride() * index as usize
    }

    fn sending(self, number: u64) -> usize {
        let index = number % u64::from(self.send);
        self.stride() * (self.receive as usize + index as usize)
    }

    fn memory(self) -> usize {
        self.stride() * (self.receive as usize + self.send as usize)
    }
}

impl BounceBuffers {
    /// How much memory so many slots of `size` bytes take, in bytes.
    pub fn memory(receive: u32, send: u32, size: usize) -> usize {
        Layout { receive, send, size }.memory()
    }

    /// Makes slots for messages of up to `size` bytes, as many as the queue pair holds requests, and
    /// lets the peer fill all that receive. Nothing else is asked of the queue pair from then on.
    pub fn new(pair: QueuePair<Connected>, size: usize) -> Result<BounceBuffers, VerbsError> {
        let depth = pair.resources().depth;
        let layout = Layout { receive: depth.receive, send: depth.send.max(1), size: size.max(1) };
        let domain: &Arc<ProtectionDomain> = &pair.resources().domain;
        let region = MemoryRegion::register_local(domain, layout.memory())?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let posted = VecDeque::with_capacity(layout.receive as usize);
        let outgoing = Outgoing::new(layout.send);
        let mut slots = BounceBuffers { pair, region, layout, number, posted, came: 0, outgoing };
        (0..layout.receive).try_for_each(|index| slots.post(index))?;
        Ok(slots)
    }

    /// By which completions are sorted: those of these slots have it, by [`BounceBuffers::tag_of`].
    pub fn tag(&self) -> u64 {
        self.number & (u64::MAX >> TAG)
    }

    /// Whose slots a completion is about.
    pub fn tag_of(completion: &Completion) -> u64 {
        completion.id() >> TAG
    }

    /// How many requests to send or write were posted so far.
    pub fn posted(&self) -> u64 {
        self.outgoing.posted
    }

    /// How many of them are known to have ended. Those up to the last that was signalled get known.
    pub fn ended(&self) -> u64 {
        self.outgoing.ended
    }

    /// How many may be posted now.
    pub fn room(&self) -> u64 {
        self.outgoing.room()
    }

    /// Sends these parts, one behind the other, as a message. What does not fit into a slot is
    /// [`VerbsError::OutOfBounds`]; there is [room](BounceBuffers::room). Its end gets known if `signalled`,
    /// and sometimes else.
    pub fn send<const N: usize>(
        &mut self,
        parts: [&[u8]; N],
        signalled: bool,
    ) -> Result<(), VerbsError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let at = self.layout.sending(self.outgoing.posted);
        if length > self.layout.size || self.room() == 0 {
            let size = self.layout.size * usize::from(self.room() > 0);
            return Err(VerbsError::OutOfBounds { offset: 0, length, size });
        }
        let mut offset = at;
        for part in parts {
            // SAFETY: the slot is this one's alone, since the request that used it last has ended:
            // there is room; and nobody borrows slots that are sent from.
            unsafe { self.region.memory().copy_from(offset, part) };
            offset += part.len();
        }
        let signalled = signalled || self.outgoing.is_due();
        let id = self.sending_id();
        if length <= self.pair.inline() as usize {
            // SAFETY: the slot is this one's alone, as above, and devices write to none that is sent
            // from.
            let message = unsafe { self.region.memory().bytes(at, length) };
            self.pair.send_inline(id, message.unwrap_or_default(), signalled)?;
        } else {
            self.pair.send(id, self.region.slice(at, length)?, signalled)?;
        }
        self.outgoing.post(signalled);
        Ok(())
    }

    /// Has the device write to the peer's memory; there is [room](BounceBuffers::room). Its end gets known.
    pub fn write(&mut self, from: MrSlice<'_>, to: RemoteAddr) -> Result<(), VerbsError> {
        if self.room() == 0 {
            return Err(VerbsError::OutOfBounds { offset: 0, length: 1, size: 0 });
        }
        self.pair.write(self.sending_id(), from, to)?;
        self.outgoing.post(true);
        Ok(())
    }

    /// Takes what a completion says; `None` where it is not about these slots.
    pub fn take(&mut self, completion: Completion) -> Option<BufferEvent> {
        let queue = self.pair.resources().completions.as_ptr();
        let is_ours = completion.is_of(self.pair.qpn(), queue);
        if BounceBuffers::tag_of(&completion) != self.tag() || !is_ours {
            return None;
        }
        let (id, status) = (completion.id(), completion.status);
        if !status.is_success() {
            return Some(BufferEvent::Failed(status));
        }
        if id & RECEIVES == 0 {
            self.outgoing.end(id & (RECEIVES - 1));
            return Some(BufferEvent::Sent);
        }
        if id != self.receiving_id(self.came) {
            return None;
        }
        let index = self.posted.pop_front()?;
        self.came += 1;
        let length = (completion.length as usize).min(self.layout.size);
        Some(BufferEvent::Received(FilledBuffer { of: self.number, index, length }))
    }

    /// A message that has come to these slots; nothing where it has to others.
    pub fn message(&self, slot: &FilledBuffer) -> &[u8] {
        if slot.of != self.number {
            return &[];
        }
        let at = self.layout.receiving(slot.index);
        // SAFETY: the device has given up the slot with the completion that `take` made it of, and
        // gets it back by `repost` alone, which takes `slot` away from the caller. Nobody else
        // writes to slots that receive.
        unsafe { self.region.memory().bytes(at, slot.length) }.unwrap_or_default()
    }

    /// Lets the peer fill it again.
    pub fn repost(&mut self, slot: FilledBuffer) -> Result<(), VerbsError> {
        if slot.of == self.number { self.post(slot.index) } else { Ok(()) }
    }

    fn post(&mut self, index: u32) -> Result<(), VerbsError> {
        let part = self.region.slice(self.layout.receiving(index), self.layout.size)?;
        let number = self.came + self.posted.len() as u64;
        self.pair.receive(self.receiving_id(number), part)?;
        self.posted.push_back(index);
        Ok(())
    }

    fn sending_id(&self) -> u64 {
        (self.number << TAG) | (self.outgoing.posted & (RECEIVES - 1))
    }

    fn receiving_id(&self, number: u64) -> u64 {
        (self.number << TAG) | RECEIVES | (number & (RECEIVES - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_slots_overlap_and_each_begins_a_line() {
        for (receive, send, size) in [(1, 1, 1), (32, 32, 1048), (32, 40, 16408), (16, 8, 64)] {
            let layout = Layout { receive, send, size };
            let mut starts: Vec<usize> =
                (0..receive).map(|index| layout.receiving(index)).collect();
            starts.extend((7..7 + u64::from(send)).map(|number| layout.sending(number)));
            starts.sort_unstable();
            assert!(starts.iter().all(|start| start % LINE == 0));
            assert!(starts.windows(2).all(|two| two[0] + size <= two[1]));
            assert_eq!(starts.last().map(|last| last + layout.stride()), Some(layout.memory()));
        }
    }

    #[test]
    fn one_request_that_tells_its_end_stands_for_those_before_it() {
        let mut outgoing = Outgoing::new(8);
        let mut signalled = Vec::new();
        for number in 0..8_u64 {
            let due = outgoing.is_due();
            signalled.extend(due.then_some(number));
            outgoing.post(due);
        }
        assert_eq!((outgoing.room(), &signalled[..]), (0, &[1, 3, 5, 7][..]));
        outgoing.end(3);
        assert_eq!((outgoing.room(), outgoing.ended), (4, 4));
        outgoing.end(1);
        assert_eq!(outgoing.ended, 4, "an earlier end changes nothing");
        outgoing.end(7);
        assert_eq!(outgoing.room(), 8);
    }

    #[test]
    fn numbers_that_begin_anew_are_told_apart() {
        let last = RECEIVES - 2;
        let mut outgoing = Outgoing { room: 8, posted: last, ended: last, signalled: last };
        (0..4).for_each(|_| outgoing.post(true));
        outgoing.end((last + 2) & (RECEIVES - 1));
        assert_eq!(outgoing.ended, last + 3);
        assert_eq!(outgoing.room(), 7);
    }

    #[test]
    fn a_queue_pair_of_one_request_signals_each() {
        let outgoing = Outgoing::new(1);
        assert!(outgoing.is_due());
    }
}
