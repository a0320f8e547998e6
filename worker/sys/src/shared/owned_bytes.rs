//! Ranges of shared memory, each of which has one owner in this process.

use super::SharedMemory;
use std::cell::Cell;
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

/// Claimed range of a [`SharedMemory`]. Offsets count from the beginning of the memory, in bytes.
///
/// The range can be sent to another thread but not shared with one. Writing to it panics while
/// [`OwnedBytes::with`] lends its bytes, so this process never writes to bytes that it has a
/// reference to.
#[derive(Debug)]
pub struct OwnedBytes {
    memory: SharedMemory,
    bytes: Range<usize>,
    /// Whether references to the range's bytes exist.
    lent: Cell<bool>,
}

// SAFETY: no other value accesses its bytes, and they do not belong to a particular thread.
unsafe impl Send for OwnedBytes {}

impl OwnedBytes {
    /// Creates the owner of a range that the memory has recorded as claimed.
    pub(super) fn new(memory: SharedMemory, bytes: Range<usize>) -> OwnedBytes {
        OwnedBytes { memory, bytes, lent: Cell::new(false) }
    }

    /// Loads a word of this range, or one of the memory's words.
    ///
    /// # Panics
    ///
    /// Panics if the offset is not a multiple of 8, or no word of either kind is there.
    #[inline(always)]
    pub fn load(&self, word: usize, order: Ordering) -> u64 {
        match self.own_word(word) {
            Some(own) => own.load(order),
            None => self.memory.word(word).load(order),
        }
    }

    /// Stores a word of this range, or one of the memory's words.
    ///
    /// # Panics
    ///
    /// Panics as [`OwnedBytes::load`] does, and for a word of this range while its bytes are lent.
    #[inline(always)]
    pub fn store(&self, word: usize, value: u64, order: Ordering) {
        match self.own_word(word) {
            Some(own) => {
                self.assert_not_lent();
                own.store(value, order);
            }
            None => self.memory.word(word).store(value, order),
        }
    }

    /// Returns the memory that the range belongs to.
    #[inline(always)]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Copies bytes into the range, to `offset`.
    ///
    /// # Panics
    ///
    /// Panics if the bytes would not be inside the range, or while the range's bytes are lent.
    #[inline(always)]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.assert_not_lent();
        let to = self.at(offset, bytes.len());
        // SAFETY: `to` begins as many bytes of the range, to which nothing in this process refers:
        // no other range has them, and they are not lent. So `bytes` does not overlap them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Lends bytes in place to `look`. The peer process must have handed the bytes over through a
    /// word, and may write to them again only after another word permits it.
    ///
    /// # Panics
    ///
    /// Panics if the bytes are not inside the range.
    #[inline(always)]
    pub fn with<T>(&self, offset: usize, length: usize, look: impl FnOnce(&[u8]) -> T) -> T {
        let from = self.at(offset, length);
        let _lent = Loan { lent: &self.lent, before: self.lent.replace(true) };
        // SAFETY: `from` begins as many initialised bytes of the range, which outlives the slice.
        // This process does not write to them until `_lent` is dropped, and the peer process does
        // not, as documented for the type. Every byte is a valid u8.
        look(unsafe { slice::from_raw_parts(from, length) })
    }

    /// Returns a word of this range, or `None` for an offset outside of it. Private to this module,
    /// because a store must check first that the bytes are not lent.
    #[inline(always)]
    fn own_word(&self, offset: usize) -> Option<&AtomicU64> {
        if offset < self.bytes.start || offset >= self.bytes.end {
            return None;
        }
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        let at = self.at(offset, 8).cast();
        // SAFETY: it is inside the range, by the line above, and aligned, since the mapping begins
        // at a page. No other thread accesses it; other processes do so atomically.
        Some(unsafe { AtomicU64::from_ptr(at) })
    }

    #[inline(always)]
    fn assert_not_lent(&self) {
        assert!(!self.lent.get(), "bytes are written to while they are lent");
    }

    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let Range { start, end } = self.bytes;
        assert!(
            start <= offset && offset <= end && length <= end - offset,
            "{length} bytes at {offset}"
        );
        // SAFETY: the line above has checked that it is inside the range or at its end, and the
        // range is inside the mapping.
        unsafe { self.memory.base.as_ptr().add(offset) }
    }
}

/// Returns the bytes to the memory, so that they can be claimed again.
impl Drop for OwnedBytes {
    fn drop(&mut self) {
        self.memory.mapping.claimed().retain(|bytes| *bytes != self.bytes);
    }
}

/// Loan of the bytes, which lasts until this value is dropped.
struct Loan<'l> {
    lent: &'l Cell<bool>,
    before: bool,
}

/// Restores the previous state. After a nested loan, the bytes are still lent.
impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.lent.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn range() -> OwnedBytes {
        let (memory, _) = SharedMemory::pair(4096, 8192).unwrap();
        memory.claim(4096..4160).unwrap()
    }

    #[test]
    fn what_is_looked_at_is_not_written_to() {
        let range = range();
        range.write(4096, b"abc");
        range.with(4096, 3, |bytes| {
            assert!(catch_unwind(AssertUnwindSafe(|| range.write(4096, b"x"))).is_err());
            let stores = || range.store(4104, 1, Ordering::Relaxed);
            assert!(catch_unwind(AssertUnwindSafe(stores)).is_err());
            assert_eq!(range.with(4097, 2, <[u8]>::to_vec), b"bc");
            let nested = catch_unwind(AssertUnwindSafe(|| range.write(4096, b"x")));
            assert!(nested.is_err(), "the outer loan continues");
            range.store(0, 7, Ordering::Relaxed);
            assert_eq!(bytes, b"abc");
        });
        range.write(4096, b"x");
        assert_eq!(range.load(0, Ordering::Relaxed), 7);
    }

    #[test]
    fn a_look_that_panics_is_over() {
        let range = range();
        let panicked =
            catch_unwind(AssertUnwindSafe(|| range.with(4096, 1, |_| panic!("on purpose"))));
        assert!(panicked.is_err());
        range.write(4096, b"x");
    }

    #[test]
    fn words_are_the_lanes_or_the_memorys() {
        let range = range();
        range.store(4104, 5, Ordering::Release);
        range.store(8, 6, Ordering::Release);
        assert_eq!(range.with(4104, 8, <[u8]>::to_vec), 5_u64.to_ne_bytes());
        assert_eq!(range.memory().word(8).load(Ordering::Acquire), 6);
        for outside in [4097, 4160, 8184] {
            let loaded = catch_unwind(AssertUnwindSafe(|| range.load(outside, Ordering::Relaxed)));
            assert!(loaded.is_err(), "{outside}");
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4159")]
    fn bytes_behind_the_end_are_not_given() {
        range().with(4159, 2, |_| ());
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095")]
    fn bytes_before_the_beginning_are_not_given() {
        range().write(4095, b"ab");
    }

    #[test]
    #[should_panic(expected = "bytes at 18446744073709551615")]
    fn an_offset_that_overflows_is_no_way_in() {
        range().write(usize::MAX, b"ab");
    }
}
