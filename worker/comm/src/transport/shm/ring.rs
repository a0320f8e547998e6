//! A ring of records from one rank to one other, in memory that both have.
//!
//! It is made of lines of 64 bytes, and a record begins with one: two words, the first of them
//! never 0, then the payload. The receiver looks at the first word of the line where the next
//! record will begin, and nowhere else, so a short message costs one line that changes hands. For
//! that, the sender keeps the word at its own end 0: it clears the word behind a record before it
//! publishes the record, or what was there a lap ago would look like the next one.
//!
//! Records do not wrap around; where one does not fit before the end, a pad takes the rest.
//! Positions count lines and go on for ever; where they are in the ring is their remainder.

use super::memory::{Bytes, Memory};
use crate::types::error::LinkError;
use std::sync::atomic::Ordering;

/// What changes hands between caches, in bytes.
pub(super) const LINE: usize = 64;
/// Of a record, in front of its payload, in bytes.
const WORDS: usize = 16;
/// In the place of a packet's kind: the rest of the lap is empty.
const PAD: u64 = 0xff << 32;
/// So many lines beyond its own end the sender clears while nobody waits for it, so that the
/// next short record meets lines that its cache has already.
const AHEAD: u64 = 2;
/// So many when it has nothing to do: as many as the last record had, up to this. 1 KiB goes over
/// in two thirds of the time then; a sender with more to send would only lose by it.
const IDLE_AHEAD: u64 = 34;

/// Where a ring is.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingLayout {
    /// The offset of its lines, a multiple of [`LINE`].
    pub(super) lines: usize,
    /// How many, a power of two and at least 8.
    pub(super) count: usize,
    /// The offset of the word that says how far the receiver is, in a line of its own.
    pub(super) head: usize,
}

impl RingLayout {
    /// The longest payload of a record, in bytes: with four of them in flight there is no state
    /// in which sender and receiver wait for each other.
    pub(super) fn payload(&self) -> usize {
        self.count / 4 * LINE - WORDS
    }

    /// Of the first word of the line at a position.
    #[inline(always)]
    fn at(&self, position: u64) -> usize {
        self.lines + (position as usize & (self.count - 1)) * LINE
    }

    /// Its lines, as bytes of the memory.
    pub(super) fn bytes(&self) -> std::ops::Range<usize> {
        self.lines..self.lines + self.count * LINE
    }

    /// From there to the end of the lap.
    #[inline(always)]
    fn rest(&self, position: u64) -> u64 {
        (self.count - (position as usize & (self.count - 1))) as u64
    }

    fn capacity(&self) -> u64 {
        self.count as u64
    }
}

#[inline(always)]
fn lines(payload: usize) -> u64 {
    (WORDS + payload).div_ceil(LINE) as u64
}

/// The end that writes.
#[derive(Debug)]
pub(super) struct Sender {
    place: RingLayout,
    /// Where the next record begins.
    tail: u64,
    /// From the tail up to here, lines begin with 0.
    cleared: u64,
    /// Where the receiver was when we last looked.
    head: u64,
    /// How many lines the last record had, if there was time for nothing else since.
    last: u64,
}

impl Sender {
    /// Of a ring that is full of zeros.
    pub(super) fn new(place: RingLayout) -> Sender {
        Sender { place, tail: 0, cleared: place.capacity(), head: 0, last: 0 }
    }

    /// Of a ring that has been in use: its lines say anything, only the next begins with 0.
    #[cfg(test)]
    pub(super) fn at(place: RingLayout, position: u64) -> Sender {
        Sender { place, tail: position, cleared: position + 1, head: position, last: 0 }
    }

    /// Puts a record in, or says `false` when there is no room. The first word is not 0, and its
    /// lower half is the payload's length.
    #[inline]
    pub(super) fn send<M: Bytes>(
        &mut self,
        memory: &M,
        words: [u64; 2],
        payload: &[u8],
    ) -> Result<bool, LinkError> {
        debug_assert_eq!(words[0] as u32 as usize, payload.len());
        if payload.len() > self.place.payload() {
            return Err(LinkError::Protocol("a payload longer than the ring takes"));
        }
        let (start, end) = self.span(payload.len());
        if !self.fits(memory, end)? {
            return Ok(false);
        }
        if end >= self.cleared {
            memory.store(self.place.at(end), 0, Ordering::Relaxed);
            self.cleared = end + 1;
        }
        let at = self.place.at(start);
        memory.write(at + WORDS, payload);
        memory.store(at + 8, words[1], Ordering::Relaxed);
        memory.store(at, words[0], Ordering::Release);
        if start != self.tail {
            // Last, so that what is behind the pad is there once the pad is.
            memory.store(self.place.at(self.tail), PAD, Ordering::Release);
        }
        self.tail = end;
        self.last = end - start;
        Ok(true)
    }

    /// Whether a record of this payload would go in.
    pub(super) fn has_room<M: Memory>(
        &mut self,
        memory: &M,
        payload: usize,
    ) -> Result<bool, LinkError> {
        let (_, end) = self.span(payload);
        self.fits(memory, end)
    }

    /// Prepares for the next record. To be called when the last one is on its way: what this
    /// waits for, nobody else does.
    #[inline]
    pub(super) fn prepare<M: Memory>(&mut self, memory: &M) {
        self.clear(memory, self.tail + AHEAD);
    }

    /// Prepares for one as long as the last. To be called when there is nothing else to do.
    #[inline(always)]
    pub(super) fn idle<M: Memory>(&mut self, memory: &M) {
        if self.last != 0 {
            self.clear(memory, self.tail + (self.last + 1).min(IDLE_AHEAD));
            self.last = 0;
        }
    }

    fn clear<M: Memory>(&mut self, memory: &M, end: u64) {
        while self.cleared < end && self.cleared - self.head < self.place.capacity() {
            memory.store(self.place.at(self.cleared), 0, Ordering::Relaxed);
            self.cleared += 1;
        }
    }

    #[inline(always)]
    fn span(&self, payload: usize) -> (u64, u64) {
        let (lines, rest) = (lines(payload), self.place.rest(self.tail));
        let start = if lines <= rest { self.tail } else { self.tail + rest };
        (start, start + lines)
    }

    /// Whether the lines up to `end`, and the one behind, are free.
    #[inline(always)]
    fn fits<M: Memory>(&mut self, memory: &M, end: u64) -> Result<bool, LinkError> {
        if end - self.head < self.place.capacity() {
            return Ok(true);
        }
        let head = memory.load(self.place.head, Ordering::Acquire);
        if head < self.head || head > self.tail {
            return Err(LinkError::Protocol("a receiver that is ahead of its sender"));
        }
        self.head = head;
        Ok(end - self.head < self.place.capacity())
    }
}

/// The end that reads.
#[derive(Debug)]
pub(super) struct Receiver {
    place: RingLayout,
    /// Where the next record begins.
    head: u64,
    /// What the sender may know of that.
    released: u64,
}

impl Receiver {
    /// Of a ring that is full of zeros.
    pub(super) fn new(place: RingLayout) -> Receiver {
        Receiver { place, head: 0, released: 0 }
    }

    /// Of a ring that has been in use.
    #[cfg(test)]
    pub(super) fn at(place: RingLayout, position: u64) -> Receiver {
        Receiver { place, head: position, released: position }
    }

    /// Whether there is a record.
    #[inline]
    pub(super) fn waiting<M: Memory>(&self, memory: &M) -> bool {
        memory.load(self.place.at(self.head), Ordering::Acquire) != 0
    }

    /// Hands over the next record, if there is one, where it lies: its payload is at a multiple of
    /// 16. When that fails the record stays.
    #[inline]
    pub(super) fn receive<M: Bytes, T>(
        &mut self,
        memory: &M,
        take: impl FnOnce([u64; 2], &[u8]) -> Result<T, LinkError>,
    ) -> Result<Option<T>, LinkError> {
        let mut first = memory.load(self.place.at(self.head), Ordering::Acquire);
        if first == 0 {
            return Ok(None);
        }
        let mut head = self.head;
        if first == PAD {
            head += self.place.rest(head);
            first = memory.load(self.place.at(head), Ordering::Acquire);
            if first == 0 || first == PAD {
                return Err(LinkError::Protocol("nothing behind a pad"));
            }
        }
        let payload = first as u32 as usize;
        if payload > self.place.payload() || lines(payload) > self.place.rest(head) {
            return Err(LinkError::Protocol("a record that leaves the ring"));
        }
        let at = self.place.at(head);
        let second = memory.load(at + 8, Ordering::Relaxed);
        let taken = memory.with(at + WORDS, payload, |bytes| take([first, second], bytes))?;
        self.head = head + lines(payload);
        Ok(Some(taken))
    }

    /// Lets the sender have the lines of what has been received, if they are worth the line that
    /// says so. True when it was told.
    #[inline]
    pub(super) fn release<M: Memory>(&mut self, memory: &M) -> bool {
        if self.head - self.released < self.place.capacity() / 8 {
            return false;
        }
        self.released = self.head;
        memory.store(self.place.head, self.head, Ordering::Release);
        true
    }
}
