//! One message, copied by both its ends at once.
//!
//! A receiver that fetches a message asks its sender to help: it takes slices from the front, and
//! the sender, when it has nothing better to do, writes slices from the back, until they meet. Each
//! slice is claimed in one word, so it does no harm when the sender never comes; but the receiver
//! waits for those that the sender has claimed, for until then its memory is written.

use super::memory::Memory;
use super::ring::LINE;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A request's number, never 0, and 0 when there is none; then what it says.
const NUMBER: usize = 0;
const SOURCE: usize = 8;
const TARGET: usize = 16;
const LENGTH: usize = 24;
const SLICE: usize = 32;
/// How many offers the sender has revoked. Beside the request, since nobody but the receiver reads
/// either often.
const REVOKED: usize = 40;
/// In a line of their own, because both sides write to it: the request's number, how many slices
/// are taken from the front, how many from the back.
const CLAIMED: usize = LINE;
/// The request's number, whether writing has failed, how many slices of the back are there.
const WRITTEN: usize = LINE + 8;
const FAILED: u64 = 1 << 31;

/// In bytes.
pub(super) const SIZE: usize = 2 * LINE;
/// So many slices at most, which a claim has bits for.
const MOST: usize = 1 << 12;

/// What is copied, from the sender's address to the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyRequest {
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) length: usize,
    /// Of all slices but the last, in bytes.
    pub(super) slice: usize,
}

impl CopyRequest {
    /// With slices of about this size.
    pub(super) fn new(source: u64, target: u64, length: usize, slice: usize) -> CopyRequest {
        let slice = slice.max(length.div_ceil(MOST)).next_multiple_of(LINE).max(LINE);
        CopyRequest { source, target, length, slice }
    }

    pub(super) fn slices(&self) -> usize {
        self.length.div_ceil(self.slice)
    }

    /// The bytes of a slice.
    pub(super) fn bytes(&self, slice: usize) -> Range<usize> {
        let end = (slice + 1).saturating_mul(self.slice);
        slice * self.slice..self.length.min(end)
    }
}

/// Says that memory that was offered is about to change: what it is changed to is not seen by a
/// receiver that does not see this. The sender's.
pub(super) fn revoke<M: Memory>(memory: &M, at: usize) {
    let revoked = memory.load(at + REVOKED, Ordering::Relaxed);
    memory.store(at + REVOKED, revoked.wrapping_add(1), Ordering::Relaxed);
    memory.fence();
}

/// How many offers the sender has revoked; the receiver's. What it has fetched before is what was
/// offered, unless it is more than the receiver knows of.
#[inline(always)]
pub(super) fn revoked<M: Memory>(memory: &M, at: usize) -> u32 {
    memory.acquire();
    memory.load(at + REVOKED, Ordering::Relaxed) as u32
}

/// Asks for help. The receiver's; one request at a time.
pub(super) fn request<M: Memory>(memory: &M, at: usize, number: u32, request: &CopyRequest) {
    let number = u64::from(number);
    memory.store(at + SOURCE, request.source, Ordering::Relaxed);
    memory.store(at + TARGET, request.target, Ordering::Relaxed);
    memory.store(at + LENGTH, request.length as u64, Ordering::Relaxed);
    memory.store(at + SLICE, request.slice as u64, Ordering::Relaxed);
    memory.store(at + WRITTEN, number << 32, Ordering::Relaxed);
    memory.store(at + CLAIMED, number << 32, Ordering::Relaxed);
    memory.store(at + NUMBER, number, Ordering::Release);
}

/// The next slice from the front.
pub(super) fn claim_front<M: Memory>(memory: &M, at: usize, slices: usize) -> Option<usize> {
    let mut claimed = memory.load(at + CLAIMED, Ordering::Relaxed);
    loop {
        let (front, back) = ((claimed >> 16) as u16, claimed as u16);
        if usize::from(front) + usize::from(back) >= slices {
            return None;
        }
        match memory.swap_if(at + CLAIMED, claimed, claimed + (1 << 16)) {
            Ok(_) => return Some(usize::from(front)),
            Err(found) => claimed = found,
        }
    }
}

/// The request is over for those who have not come. How many slices the sender has claimed.
pub(super) fn close<M: Memory>(memory: &M, at: usize) -> usize {
    memory.store(at + NUMBER, 0, Ordering::Relaxed);
    usize::from(memory.load(at + CLAIMED, Ordering::Relaxed) as u16)
}

/// Whether the sender has written so many slices; `None` when it could not.
pub(super) fn written<M: Memory>(memory: &M, at: usize, slices: usize) -> Option<bool> {
    let written = memory.load(at + WRITTEN, Ordering::Acquire) & u64::from(u32::MAX);
    if written & !FAILED < slices as u64 {
        return Some(false);
    }
    if written & FAILED == 0 { Some(true) } else { None }
}

/// Whether there is a request, by its number; the sender's.
#[inline(always)]
pub(super) fn requested<M: Memory>(memory: &M, at: usize) -> u32 {
    memory.load(at + NUMBER, Ordering::Acquire) as u32
}

/// Helps with a request, if there is still something to do: `write` copies a slice. False when it
/// did not work, and is not worth another try.
pub(super) fn help<M: Memory>(
    memory: &M,
    at: usize,
    number: u32,
    mut write: impl FnMut(&CopyRequest, Range<usize>) -> bool,
) -> bool {
    let request = CopyRequest {
        source: memory.load(at + SOURCE, Ordering::Relaxed),
        target: memory.load(at + TARGET, Ordering::Relaxed),
        length: memory.load(at + LENGTH, Ordering::Relaxed) as usize,
        slice: memory.load(at + SLICE, Ordering::Relaxed) as usize,
    };
    if request.slice == 0 || request.length > isize::MAX as usize || request.slices() > MOST {
        return true;
    }
    let slices = request.slices();
    loop {
        let claimed = memory.load(at + CLAIMED, Ordering::Relaxed);
        let (front, back) = (usize::from((claimed >> 16) as u16), usize::from(claimed as u16));
        if claimed >> 32 != u64::from(number) || front + back >= slices {
            return true;
        }
        // That this works says that the request is the one that was read above: it is not over
        // while there are slices to claim, and its words change only after.
        if memory.swap_if(at + CLAIMED, claimed, claimed + 1).is_err() {
            continue;
        }
        let works = write(&request, request.bytes(slices - 1 - back));
        let written = memory.load(at + WRITTEN, Ordering::Relaxed) + 1;
        let failed = if works { 0 } else { FAILED };
        memory.store(at + WRITTEN, written | failed, Ordering::Release);
        if !works {
            return false;
        }
    }
}
