//! Copies of one message by its sender and receiver at the same time.
//!
//! 1. The receiver of a long message publishes a [`CopyRequest`] in the shared segment.
//! 2. The receiver copies slices from the front with `process_vm_readv`, while the sender, when
//!    idle, copies slices from the back with `process_vm_writev`. Before either end copies a slice,
//!    it claims the slice by a compare-and-swap of one word. Both go on until the claims meet.
//! 3. The receiver closes the request and waits until the sender has written all slices that the
//!    sender claimed, because until then the sender may still write into the receiver's buffer.
//!
//! If the sender never helps, the receiver copies everything.

use super::memory::Memory;
use super::ring::LINE;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Offsets of the words of a request in a ring's area for copy requests, in bytes. The words are
/// the number of the request, or 0 while there is none, and the fields of [`CopyRequest`].
const NUMBER: usize = 0;
const SOURCE: usize = 8;
const TARGET: usize = 16;
const LENGTH: usize = 24;
const SLICE: usize = 32;
/// Offset of the count of exposures that the sender has revoked. The count has no cache line of its
/// own, because the sender rarely changes it.
const REVOKED: usize = 40;
/// Offset of the claim word: the request's number (upper 32 bits), the number of slices claimed
/// from the front (16 bits), and the number claimed from the back (lower 16 bits). The word has a
/// cache line of its own because both ends write it.
const CLAIMED: usize = LINE;
/// Offset of the progress word: the request's number (upper 32 bits), the [`FAILED`] bit, and the
/// number of slices that the sender has written.
const WRITTEN: usize = LINE + 8;
const FAILED: u64 = 1 << 31;

/// Size of a ring's area for copy requests, in bytes.
pub(super) const SIZE: usize = 2 * LINE;
/// Maximum number of slices of a message, for which the claim word has enough bits.
const MAX_SLICES: usize = 1 << 12;

/// Request to copy a message from the sender's address to the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyRequest {
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) length: usize,
    /// Length in bytes of every slice but the last, which may be shorter.
    pub(super) slice: usize,
}

impl CopyRequest {
    /// Makes a request whose slices have `slice` bytes, rounded up to whole cache lines. Slices are
    /// longer if there would be more than [`MAX_SLICES`].
    pub(super) fn new(source: u64, target: u64, length: usize, slice: usize) -> CopyRequest {
        let slice = slice.max(length.div_ceil(MAX_SLICES)).next_multiple_of(LINE).max(LINE);
        CopyRequest { source, target, length, slice }
    }

    pub(super) fn slices(&self) -> usize {
        self.length.div_ceil(self.slice)
    }

    /// Returns the byte range in the message of the slice with this index.
    pub(super) fn bytes(&self, slice: usize) -> Range<usize> {
        let end = (slice + 1).saturating_mul(self.slice);
        slice * self.slice..self.length.min(end)
    }
}

/// Counts a revoked exposure. The sender calls this before it changes the exposed memory, so that a
/// receiver that could have read changed bytes sees the new count.
pub(super) fn revoke<M: Memory>(memory: &M, at: usize) {
    let revoked = memory.load(at + REVOKED, Ordering::Relaxed);
    memory.store(at + REVOKED, revoked.wrapping_add(1), Ordering::Relaxed);
    memory.fence();
}

/// Returns how often the sender has revoked the receiver's permission to read a message from the
/// sender's memory. If this is still the number that the receiver knew of when it began to fetch a
/// message, the bytes fetched before this call are intact.
#[inline(always)]
pub(super) fn revoked<M: Memory>(memory: &M, at: usize) -> u32 {
    memory.acquire();
    memory.load(at + REVOKED, Ordering::Relaxed) as u32
}

/// Publishes a request for the sender's help with a copy. Only the receiver publishes requests, one
/// at a time.
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

/// Claims the next slice from the front, and returns its index; `None` if all slices are claimed.
pub(super) fn claim_front<M: Memory>(memory: &M, at: usize, slices: usize) -> Option<usize> {
    let mut claimed = memory.load(at + CLAIMED, Ordering::Relaxed);
    loop {
        let (front, back) = ((claimed >> 16) as u16, claimed as u16);
        if usize::from(front) + usize::from(back) >= slices {
            return None;
        }
        match memory.compare_exchange(at + CLAIMED, claimed, claimed + (1 << 16)) {
            Ok(_) => return Some(usize::from(front)),
            Err(found) => claimed = found,
        }
    }
}

/// Closes the request, and returns the number of slices that the sender has claimed.
pub(super) fn close<M: Memory>(memory: &M, at: usize) -> usize {
    memory.store(at + NUMBER, 0, Ordering::Relaxed);
    usize::from(memory.load(at + CLAIMED, Ordering::Relaxed) as u16)
}

/// Returns whether the sender has handled all `slices` slices that it has claimed; `None` if it
/// has, but failed to write one of them.
pub(super) fn written<M: Memory>(memory: &M, at: usize, slices: usize) -> Option<bool> {
    let written = memory.load(at + WRITTEN, Ordering::Acquire) & u64::from(u32::MAX);
    if written & !FAILED < slices as u64 {
        return Some(false);
    }
    if written & FAILED == 0 { Some(true) } else { None }
}

/// Returns the number of the receiver's current request, or 0 if there is none.
#[inline(always)]
pub(super) fn requested<M: Memory>(memory: &M, at: usize) -> u32 {
    memory.load(at + NUMBER, Ordering::Acquire) as u32
}

/// Claims slices of the request `number` from the back, and copies each by a call of `write`, until
/// all slices are claimed. Returns `false` once `write` fails, because further help is useless
/// then.
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
    if request.slice == 0 || request.length > isize::MAX as usize || request.slices() > MAX_SLICES {
        return true;
    }
    let slices = request.slices();
    loop {
        let claimed = memory.load(at + CLAIMED, Ordering::Relaxed);
        let (front, back) = (usize::from((claimed >> 16) as u16), usize::from(claimed as u16));
        if claimed >> 32 != u64::from(number) || front + back >= slices {
            return true;
        }
        // If this succeeds, the request is still the one that was read above: the receiver does not
        // close it while slices remain unclaimed, and changes its words only after that.
        if memory.compare_exchange(at + CLAIMED, claimed, claimed + 1).is_err() {
            continue;
        }
        let is_written = write(&request, request.bytes(slices - 1 - back));
        let written = memory.load(at + WRITTEN, Ordering::Relaxed) + 1;
        let failed = if is_written { 0 } else { FAILED };
        memory.store(at + WRITTEN, written | failed, Ordering::Release);
        if !is_written {
            return false;
        }
    }
}
