//! Send and receive buffers of a queue pair: registered memory that is divided into buffers of
//! equal size.
//!
//! Receive buffers cycle between the device and the program: [`BounceBuffers::new`] posts all of
//! them; a completion passes one buffer to the program as a [`FilledBuffer`], which the program
//! reads in place ([`BounceBuffers::message`]) and returns ([`BounceBuffers::repost`]). Send
//! buffers form a ring: a buffer is free again once the send that used it is known to have
//! completed.
//!
//! A work request id consists of, from the highest bit, the tag of its `BounceBuffers` (20 bits), a
//! bit that is set for receives, and a sequence number (43 bits) that counts sends and receives
//! separately.

use crate::error::VerbsError;
use crate::memory::{MemoryRegion, MrSlice, ProtectionDomain};
use crate::queue::{Completion, Connected, QueuePair, RemoteAddr, WcStatus};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment of buffers, in bytes.
const CACHE_LINE: usize = 64;
const SEQUENCE_BITS: u32 = 43;
const RECEIVE_FLAG: u64 = 1 << SEQUENCE_BITS;
const TAG_SHIFT: u32 = SEQUENCE_BITS + 1;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Connected queue pair together with its send and receive buffers. This object owns the queue
/// pair: no other work requests may be posted to it.
#[derive(Debug)]
pub struct BounceBuffers {
    // Drop order matters: the device may write to the region until the queue pair is destroyed.
    pair: QueuePair<Connected>,
    region: MemoryRegion,
    layout: Layout,
    /// Number of this object, unique in the process; its low 20 bits are the tag.
    id: u64,
    /// Indices of the receive buffers that are posted to the device, in the order in which the
    /// device fills them.
    posted_receives: VecDeque<u32>,
    /// Number of messages received.
    received: u64,
    sends: SendQueue,
}

/// Layout of the region: the receive buffers, then the send buffers.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Number of receive buffers.
    receive: u32,
    /// Number of send buffers.
    send: u32,
    /// Longest message, in bytes.
    size: usize,
}

/// Receive buffer with a message. The device cannot reuse the buffer until the program passes this
/// value to [`BounceBuffers::repost`]. If the program drops this value instead, the queue pair has
/// one receive buffer less.
#[derive(Debug, PartialEq, Eq)]
pub struct FilledBuffer {
    /// [`BounceBuffers::id`] of the object that the buffer belongs to.
    owner: u64,
    index: u32,
    length: usize,
}

/// Meaning of a completion.
#[derive(Debug)]
pub enum BufferEvent {
    /// A message was received.
    Received(FilledBuffer),
    /// One or more sends or writes completed; [`BounceBuffers::completed`] returns the new count.
    Sent,
    /// A work request failed. The queue pair is now in the error state, and all its other work
    /// requests fail as well.
    Failed(WcStatus),
}

/// Counts of send and write requests, which complete in the order in which they were posted.
#[derive(Clone, Copy, Debug)]
struct SendQueue {
    /// Number of requests that the send queue has room for.
    capacity: u64,
    posted: u64,
    completed: u64,
    /// Value of `posted` just after the last signalled request was posted.
    signalled: u64,
}

impl SendQueue {
    fn new(capacity: u32) -> SendQueue {
        SendQueue { capacity: capacity.into(), posted: 0, completed: 0, signalled: 0 }
    }

    fn available(self) -> u64 {
        self.capacity - (self.posted - self.completed)
    }

    /// Tells whether the next request must be signalled. The completion of a request implies that
    /// all requests before it have completed, so one signalled request for each quarter of the
    /// queue is enough to free the queue.
    fn needs_signal(self) -> bool {
        self.posted + 1 - self.signalled >= (self.capacity / 4).max(1)
    }

    fn post(&mut self, signalled: bool) {
        self.posted += 1;
        if signalled {
            self.signalled = self.posted;
        }
    }

    /// Records that a request and all requests before it have completed. `number` has the low
    /// [`SEQUENCE_BITS`] bits of the request's sequence number.
    fn complete(&mut self, number: u64) {
        let behind = (self.posted - 1).wrapping_sub(number) & (RECEIVE_FLAG - 1);
        let ended = self.posted.saturating_sub(behind);
        self.completed = self.completed.max(ended);
    }
}

impl Layout {
    fn stride(self) -> usize {
        self.size.next_multiple_of(CACHE_LINE)
    }

    fn receive_offset(self, index: u32) -> usize {
        self.stride() * index as usize
    }

    fn send_offset(self, number: u64) -> usize {
        let index = number % u64::from(self.send);
        self.stride() * (self.receive as usize + index as usize)
    }

    fn total_size(self) -> usize {
        self.stride() * (self.receive as usize + self.send as usize)
    }
}

impl BounceBuffers {
    /// Returns the memory in bytes that `receive` receive buffers and `send` send buffers take, for
    /// messages of up to `size` bytes.
    pub fn memory_size(receive: u32, send: u32, size: usize) -> usize {
        Layout { receive, send, size }.total_size()
    }

    /// Allocates and registers buffers for messages of up to `size` bytes, one for each work
    /// request that the queue pair holds ([`crate::Depth`]), and posts all receive buffers.
    pub fn new(pair: QueuePair<Connected>, size: usize) -> Result<BounceBuffers, VerbsError> {
        let depth = pair.resources().depth;
        let layout = Layout { receive: depth.receive, send: depth.send.max(1), size: size.max(1) };
        let domain: &Arc<ProtectionDomain> = &pair.resources().domain;
        let region = MemoryRegion::register_local(domain, layout.total_size())?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let posted_receives = VecDeque::with_capacity(layout.receive as usize);
        let sends = SendQueue::new(layout.send);
        let mut buffers =
            BounceBuffers { pair, region, layout, id, posted_receives, received: 0, sends };
        (0..layout.receive).try_for_each(|index| buffers.post(index))?;
        Ok(buffers)
    }

    /// Returns the tag of these buffers. [`BounceBuffers::tag_of`] returns the same tag for each of
    /// their completions, so that the user of a shared completion queue can recognize them. Tags
    /// repeat after 2^20 objects.
    pub fn tag(&self) -> u64 {
        self.id & (u64::MAX >> TAG_SHIFT)
    }

    /// Returns the [tag](BounceBuffers::tag) of the `BounceBuffers` that a completion belongs to.
    pub fn tag_of(completion: &Completion) -> u64 {
        completion.id() >> TAG_SHIFT
    }

    /// Returns the number of sends and writes posted so far.
    pub fn posted(&self) -> u64 {
        self.sends.posted
    }

    /// Returns the number of posted sends and writes that are known to have completed. An
    /// unsignalled request counts once a later signalled request has completed.
    pub fn completed(&self) -> u64 {
        self.sends.completed
    }

    /// Returns the number of sends and writes that can be posted now.
    pub fn available(&self) -> u64 {
        self.sends.available()
    }

    /// Copies `parts` into a send buffer, one after the other, and sends them as one message. A
    /// message that fits into the work request ([`QueuePair::max_inline`]) is sent inline. If the
    /// send is not `signalled`, its completion may be reported only together with that of a later
    /// request.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfBounds`] if the message is longer than a buffer, or no send is
    /// [available](BounceBuffers::available).
    pub fn send<const N: usize>(
        &mut self,
        parts: [&[u8]; N],
        signalled: bool,
    ) -> Result<(), VerbsError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let at = self.layout.send_offset(self.sends.posted);
        if length > self.layout.size || self.available() == 0 {
            let size = self.layout.size * usize::from(self.available() > 0);
            return Err(VerbsError::OutOfBounds { offset: 0, length, size });
        }
        let mut offset = at;
        for part in parts {
            // SAFETY: this object alone has the buffer: the request that used it last has
            // completed, since `available` is not 0, and no reference to a send buffer outlives
            // this function.
            unsafe { self.region.memory().copy_from(offset, part) };
            offset += part.len();
        }
        let signalled = signalled || self.sends.needs_signal();
        let id = self.send_id();
        if length <= self.pair.max_inline() as usize {
            // SAFETY: this object alone has the buffer, as above, and devices do not write to send
            // buffers.
            let message = unsafe { self.region.memory().bytes(at, length) };
            self.pair.send_inline(id, message.unwrap_or_default(), signalled)?;
        } else {
            self.pair.send(id, self.region.slice(at, length)?, signalled)?;
        }
        self.sends.post(signalled);
        Ok(())
    }

    /// Posts a signalled RDMA write of `from` to the address `to` in the peer's memory.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfBounds`] if no write is [available](BounceBuffers::available).
    pub fn write(&mut self, from: MrSlice<'_>, to: RemoteAddr) -> Result<(), VerbsError> {
        if self.available() == 0 {
            return Err(VerbsError::OutOfBounds { offset: 0, length: 1, size: 0 });
        }
        self.pair.write(self.send_id(), from, to)?;
        self.sends.post(true);
        Ok(())
    }

    /// Interprets a completion and updates the counts. Returns `None` if the completion belongs to
    /// another queue pair.
    pub fn process(&mut self, completion: Completion) -> Option<BufferEvent> {
        let queue = self.pair.resources().completions.as_ptr();
        let is_own = completion.is_from(self.pair.qpn(), queue);
        if BounceBuffers::tag_of(&completion) != self.tag() || !is_own {
            return None;
        }
        let (id, status) = (completion.id(), completion.status);
        if !status.is_success() {
            return Some(BufferEvent::Failed(status));
        }
        if id & RECEIVE_FLAG == 0 {
            self.sends.complete(id & (RECEIVE_FLAG - 1));
            return Some(BufferEvent::Sent);
        }
        if id != self.receive_id(self.received) {
            return None;
        }
        let index = self.posted_receives.pop_front()?;
        self.received += 1;
        let length = (completion.length as usize).min(self.layout.size);
        Some(BufferEvent::Received(FilledBuffer { owner: self.id, index, length }))
    }

    /// Returns the message in a buffer; empty if the buffer belongs to another queue pair.
    pub fn message(&self, buffer: &FilledBuffer) -> &[u8] {
        if buffer.owner != self.id {
            return &[];
        }
        let at = self.layout.receive_offset(buffer.index);
        // SAFETY: the device gave the buffer up with the completion that `process` made `buffer`
        // from, and gets it back only by `repost`, which consumes `buffer`. Only the device writes
        // to receive buffers.
        unsafe { self.region.memory().bytes(at, buffer.length) }.unwrap_or_default()
    }

    /// Posts a receive buffer to the device again, for another message. Does nothing for a buffer
    /// that belongs to another queue pair.
    pub fn repost(&mut self, buffer: FilledBuffer) -> Result<(), VerbsError> {
        if buffer.owner == self.id { self.post(buffer.index) } else { Ok(()) }
    }

    fn post(&mut self, index: u32) -> Result<(), VerbsError> {
        let part = self.region.slice(self.layout.receive_offset(index), self.layout.size)?;
        let number = self.received + self.posted_receives.len() as u64;
        self.pair.receive(self.receive_id(number), part)?;
        self.posted_receives.push_back(index);
        Ok(())
    }

    fn send_id(&self) -> u64 {
        (self.id << TAG_SHIFT) | (self.sends.posted & (RECEIVE_FLAG - 1))
    }

    fn receive_id(&self, number: u64) -> u64 {
        (self.id << TAG_SHIFT) | RECEIVE_FLAG | (number & (RECEIVE_FLAG - 1))
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
                (0..receive).map(|index| layout.receive_offset(index)).collect();
            starts.extend((7..7 + u64::from(send)).map(|number| layout.send_offset(number)));
            starts.sort_unstable();
            assert!(starts.iter().all(|start| start % CACHE_LINE == 0));
            assert!(starts.windows(2).all(|two| two[0] + size <= two[1]));
            assert_eq!(starts.last().map(|last| last + layout.stride()), Some(layout.total_size()));
        }
    }

    #[test]
    fn one_request_that_tells_its_end_stands_for_those_before_it() {
        let mut sends = SendQueue::new(8);
        let mut signalled = Vec::new();
        for number in 0..8_u64 {
            let due = sends.needs_signal();
            signalled.extend(due.then_some(number));
            sends.post(due);
        }
        assert_eq!((sends.available(), &signalled[..]), (0, &[1, 3, 5, 7][..]));
        sends.complete(3);
        assert_eq!((sends.available(), sends.completed), (4, 4));
        sends.complete(1);
        assert_eq!(sends.completed, 4, "an earlier end changes nothing");
        sends.complete(7);
        assert_eq!(sends.available(), 8);
    }

    #[test]
    fn numbers_that_begin_anew_are_told_apart() {
        let last = RECEIVE_FLAG - 2;
        let mut sends = SendQueue { capacity: 8, posted: last, completed: last, signalled: last };
        (0..4).for_each(|_| sends.post(true));
        sends.complete((last + 2) & (RECEIVE_FLAG - 1));
        assert_eq!(sends.completed, last + 3);
        assert_eq!(sends.available(), 7);
    }

    #[test]
    fn a_queue_pair_of_one_request_signals_each() {
        let sends = SendQueue::new(1);
        assert!(sends.needs_signal());
    }
}
