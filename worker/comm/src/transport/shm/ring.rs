//! Ring of records from one rank to another, in memory that both map.
//!
//! The ring consists of lines of 64 bytes. A record carries one packet, and begins at the start of
//! a line. It has two words of 8 bytes, of which the first is never 0, and then the payload. The
//! receiver polls the first word of the line where the next record will begin and nothing else, so
//! that a short message costs the transfer of one cache line.
//!
//! For this, the line behind the last record must begin with 0. Before the sender publishes a
//! record, it clears the first word of the line behind the record, because old data from the
//! previous lap there would look like the next record. The sender publishes a record by a release
//! store of the record's first word, which the receiver loads with acquire ordering.
//!
//! Records do not wrap around: if a record does not fit before the end of the ring, a pad record
//! fills the rest of the ring, and the record begins at the first line. Positions count lines and
//! never wrap; the line at a position is the position modulo the number of lines. The receiver
//! publishes its position in the head word after every eighth of the ring, and the sender reads the
//! head word when it runs out of room.

use super::memory::{Bytes, Memory};
use crate::types::LinkError;
use std::sync::atomic::Ordering;

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;
/// Length of the two words before a record's payload, in bytes.
const HEADER: usize = 16;
/// First word of a pad record, which says that the rest of this lap is empty.
const PAD: u64 = 0xff << 32;
/// Number of lines behind the record just sent that the sender clears while the receiver is busy.
/// The lines of the next short record are then in the sender's cache.
const AHEAD: u64 = 2;
/// Distance from the tail to the line that the sender fetches for a later record. The receiver has
/// read that line in the last lap, so fetching it takes about as long as a message. That time passes
/// while the next few records are sent, and clearing the line then takes none.
const FETCHED_AHEAD: u64 = 8;
/// Maximum number of lines that an idle sender clears for the next record, which it expects to be
/// as long as the last one. This shortens the time of a 1 KiB message by a third. A sender that has
/// more to send does not clear these lines, because it would only lose time.
const IDLE_AHEAD: u64 = 34;

/// Location and size of a ring in the segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingLayout {
    /// Offset in the segment of the first line, in bytes; a multiple of [`LINE`].
    pub(super) first_line: usize,
    /// Number of lines: a power of two, at least 8.
    pub(super) count: usize,
    /// Offset in the segment of the head word, which has the receiver's position and a cache line
    /// of its own.
    pub(super) head: usize,
}

impl RingLayout {
    /// Returns the longest payload of a record in bytes. Four such records fit into the ring, so
    /// that sender and receiver cannot both wait for each other.
    pub(super) fn max_payload(&self) -> usize {
        self.count / 4 * LINE - HEADER
    }

    /// Returns the offset in the segment of the line at a position.
    #[inline(always)]
    fn at(&self, position: u64) -> usize {
        self.first_line + (position as usize & (self.count - 1)) * LINE
    }

    /// Returns the byte range of the ring's lines in the segment.
    pub(super) fn bytes(&self) -> std::ops::Range<usize> {
        self.first_line..self.first_line + self.count * LINE
    }

    /// Returns the number of lines from a position to the end of the ring.
    #[inline(always)]
    fn lines_left(&self, position: u64) -> u64 {
        (self.count - (position as usize & (self.count - 1))) as u64
    }

    fn capacity(&self) -> u64 {
        self.count as u64
    }
}

#[inline(always)]
fn lines(payload: usize) -> u64 {
    (HEADER + payload).div_ceil(LINE) as u64
}

/// Writing end of a ring.
#[derive(Debug)]
pub(super) struct Sender {
    layout: RingLayout,
    /// Position of the next record to send.
    tail: u64,
    /// First position behind the tail whose line may not begin with 0. All lines between the tail
    /// and this position begin with 0.
    cleared: u64,
    /// Receiver's position, as the sender last read it in the head word.
    head: u64,
    /// Number of lines of the last record; 0 once [`Sender::idle`] has cleared lines for the next.
    last: u64,
}

impl Sender {
    /// Makes the sender of a ring that is filled with zeros.
    pub(super) fn new(layout: RingLayout) -> Sender {
        Sender { layout, tail: 0, cleared: layout.capacity(), head: 0, last: 0 }
    }

    /// Makes the sender of a ring that was in use. Only the line at `position` is known to begin
    /// with 0.
    #[cfg(test)]
    pub(super) fn at(layout: RingLayout, position: u64) -> Sender {
        Sender { layout, tail: position, cleared: position + 1, head: position, last: 0 }
    }

    /// Writes and publishes a record. Returns `false` if there is no room. `words[0]` must not be
    /// 0, and its lower half must be the payload's length.
    #[inline]
    pub(super) fn send<M: Bytes>(
        &mut self,
        memory: &M,
        words: [u64; 2],
        payload: &[u8],
    ) -> Result<bool, LinkError> {
        debug_assert_eq!(words[0] as u32 as usize, payload.len());
        if payload.len() > self.layout.max_payload() {
            return Err(LinkError::Protocol("a payload is longer than the ring allows"));
        }
        let (start, end) = self.span(payload.len());
        if !self.fits(memory, end)? {
            return Ok(false);
        }
        if end >= self.cleared {
            memory.store(self.layout.at(end), 0, Ordering::Relaxed);
            self.cleared = end + 1;
        }
        let at = self.layout.at(start);
        memory.write(at + HEADER, payload);
        memory.store(at + 8, words[1], Ordering::Relaxed);
        memory.store(at, words[0], Ordering::Release);
        if start != self.tail {
            // The pad is published last, so that the record behind it is complete once the pad is
            // visible.
            memory.store(self.layout.at(self.tail), PAD, Ordering::Release);
        }
        self.tail = end;
        self.last = end - start;
        Ok(true)
    }

    /// Returns whether a record with a payload of this length would fit.
    pub(super) fn has_room<M: Memory>(
        &mut self,
        memory: &M,
        payload: usize,
    ) -> Result<bool, LinkError> {
        let (_, end) = self.span(payload);
        self.fits(memory, end)
    }

    /// Clears lines for the next record, and begins to fetch one for a later record. Called after a
    /// record is published, so that the receiver does not wait for the clearing.
    #[inline]
    pub(super) fn prepare<M: Memory>(&mut self, memory: &M) {
        self.clear(memory, self.tail + AHEAD);
        let later = self.tail + FETCHED_AHEAD;
        // A line that the receiver still has to read would only be taken from it.
        if later - self.head < self.layout.capacity() {
            memory.prefetch_for_write(self.layout.at(later));
        }
    }

    /// Clears lines for a record as long as the last one. Called when there is nothing else to do.
    #[inline(always)]
    pub(super) fn idle<M: Memory>(&mut self, memory: &M) {
        if self.last != 0 {
            self.clear(memory, self.tail + (self.last + 1).min(IDLE_AHEAD));
            self.last = 0;
        }
    }

    fn clear<M: Memory>(&mut self, memory: &M, end: u64) {
        while self.cleared < end && self.cleared - self.head < self.layout.capacity() {
            memory.store(self.layout.at(self.cleared), 0, Ordering::Relaxed);
            self.cleared += 1;
        }
    }

    #[inline(always)]
    fn span(&self, payload: usize) -> (u64, u64) {
        let (lines, lines_left) = (lines(payload), self.layout.lines_left(self.tail));
        let start = if lines <= lines_left { self.tail } else { self.tail + lines_left };
        (start, start + lines)
    }

    /// Returns whether the ring has room up to the position `end`, and for the line behind.
    #[inline(always)]
    fn fits<M: Memory>(&mut self, memory: &M, end: u64) -> Result<bool, LinkError> {
        if end - self.head < self.layout.capacity() {
            return Ok(true);
        }
        let head = memory.load(self.layout.head, Ordering::Acquire);
        if head < self.head || head > self.tail {
            return Err(LinkError::Protocol("the head of a ring is ahead of its tail"));
        }
        self.head = head;
        Ok(end - self.head < self.layout.capacity())
    }
}

/// Reading end of a ring.
#[derive(Debug)]
pub(super) struct Receiver {
    layout: RingLayout,
    /// Position of the next record to receive.
    head: u64,
    /// Position that was last published in the head word.
    released: u64,
}

impl Receiver {
    /// Makes the receiver of a ring that is filled with zeros.
    pub(super) fn new(layout: RingLayout) -> Receiver {
        Receiver { layout, head: 0, released: 0 }
    }

    /// Makes the receiver of a ring that was in use, at `position`.
    #[cfg(test)]
    pub(super) fn at(layout: RingLayout, position: u64) -> Receiver {
        Receiver { layout, head: position, released: position }
    }

    /// Returns whether a record has arrived.
    #[inline]
    pub(super) fn has_record<M: Memory>(&self, memory: &M) -> bool {
        memory.load(self.layout.at(self.head), Ordering::Acquire) != 0
    }

    /// Passes the next record to `take` without a copy, and returns the result of `take`; `None` if
    /// there is no record. The payload is aligned to 16 bytes. If `take` fails, the record stays in
    /// the ring.
    #[inline]
    pub(super) fn receive<M: Bytes, T>(
        &mut self,
        memory: &M,
        take: impl FnOnce([u64; 2], &[u8]) -> Result<T, LinkError>,
    ) -> Result<Option<T>, LinkError> {
        let mut first = memory.load(self.layout.at(self.head), Ordering::Acquire);
        if first == 0 {
            return Ok(None);
        }
        let mut head = self.head;
        if first == PAD {
            head += self.layout.lines_left(head);
            first = memory.load(self.layout.at(head), Ordering::Acquire);
            if first == 0 || first == PAD {
                return Err(LinkError::Protocol("no record follows a pad"));
            }
        }
        let payload = first as u32 as usize;
        if payload > self.layout.max_payload() || lines(payload) > self.layout.lines_left(head) {
            return Err(LinkError::Protocol("a record extends past the end of its ring"));
        }
        let at = self.layout.at(head);
        let second = memory.load(at + 8, Ordering::Relaxed);
        let taken = memory.with(at + HEADER, payload, |bytes| take([first, second], bytes))?;
        self.head = head + lines(payload);
        Ok(Some(taken))
    }

    /// Publishes the receiver's position if the receiver has consumed an eighth of the ring since
    /// the last publication. Returns whether it has published, so that the caller can wake the
    /// sender.
    #[inline]
    pub(super) fn release<M: Memory>(&mut self, memory: &M) -> bool {
        if self.head - self.released < self.layout.capacity() / 8 {
            return false;
        }
        self.released = self.head;
        memory.store(self.layout.head, self.head, Ordering::Release);
        true
    }
}
