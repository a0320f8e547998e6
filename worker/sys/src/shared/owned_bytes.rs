//! Bytes of shared memory that have one owner in this process.

use super::SharedMemory;
use std::cell::Cell;
use std::ops::Range;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a [`SharedMemory`] that no other lane of it has. Offsets are the memory's.
///
/// It can be sent to another thread, not shared with one, and refuses to write while
/// [`OwnedBytes::with`] has lent its bytes: so this process never writes to what it has a reference to.
#[derive(Debug)]
pub struct OwnedBytes {
    memory: SharedMemory,
    bytes: Range<usize>,
    /// References to its bytes are in use.
    lent: Cell<bool>,
}

// SAFETY: it is the only one that reaches its bytes, and no thread's more than another's.
unsafe impl Send for OwnedBytes {}

impl OwnedBytes {
    /// The bytes that the memory has noted for this lane alone.
    pub(super) fn new(memory: SharedMemory, bytes: Range<usize>) -> OwnedBytes {
        OwnedBytes { memory, bytes, lent: Cell::new(false) }
    }

    /// Loads a word: one of the lane's, or of the memory's.
    ///
    /// # Panics
    /// If the offset is not a multiple of 8, or neither has a word there.
    #[inline(always)]
    pub fn load(&self, word: usize, order: Ordering) -> u64 {
        match self.own_word(word) {
            Some(own) => own.load(order),
            None => self.memory.word(word).load(order),
        }
    }

    /// Stores a word: one of the lane's, or of the memory's.
    ///
    /// # Panics
    /// Panics as [`OwnedBytes::load`] does, and if it is the lane's while its bytes are lent.
    #[inline(always)]
    pub fn store(&self, word: usize, value: u64, order: Ordering) {
        match self.own_word(word) {
            Some(own) => {
                self.is_to_write();
                own.store(value, order);
            }
            None => self.memory.word(word).store(value, order),
        }
    }

    /// The memory that it is of, for its words.
    #[inline(always)]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit into the lane, or its bytes are lent.
    #[inline(always)]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.is_to_write();
        let to = self.at(offset, bytes.len());
        // SAFETY: `to` is the start of as many bytes of the lane, which nothing in this process refers
        // to: the lane has them alone, and has not lent them. So `bytes` is none of them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Lends bytes to `look`, where they are. The peer process has handed them over by a word, and
    /// is handed them back by another after this.
    ///
    /// # Panics
    /// If they are not in the lane.
    #[inline(always)]
    pub fn with<T>(&self, offset: usize, length: usize, look: impl FnOnce(&[u8]) -> T) -> T {
        let from = self.at(offset, length);
        let _lent = Lent { lent: &self.lent, before: self.lent.replace(true) };
        // SAFETY: `from` is the start of as many initialised bytes of the lane, which outlives the
        // slice; nothing of this process writes to them until `_lent` is dropped, and the peer
        // process does not, as the type says. Every byte is a valid u8.
        look(unsafe { slice::from_raw_parts(from, length) })
    }

    /// One of its words; `None` elsewhere. It does not leave this module: what may be stored is
    /// decided here.
    #[inline(always)]
    fn own_word(&self, offset: usize) -> Option<&AtomicU64> {
        if offset < self.bytes.start || offset >= self.bytes.end {
            return None;
        }
        assert!(offset.is_multiple_of(8), "a word at {offset}");
        let at = self.at(offset, 8).cast();
        // SAFETY: it lies in the lane, by the line above, and is aligned, as the mapping begins at a
        // page. Another thread has no part in it; other processes use it atomically.
        Some(unsafe { AtomicU64::from_ptr(at) })
    }

    #[inline(always)]
    fn is_to_write(&self) {
        assert!(!self.lent.get(), "bytes of a lane are written to while they are looked at");
    }

    #[inline(always)]
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let Range { start, end } = self.bytes;
        assert!(
            start <= offset && offset <= end && length <= end - offset,
            "{length} bytes at {offset}"
        );
        // SAFETY: the line above has checked that it lies in the lane, or at its end, and the lane in
        // the mapping.
        unsafe { self.memory.base.as_ptr().add(offset) }
    }
}

/// Gives the bytes back to the memory, so that another lane may have them.
impl Drop for OwnedBytes {
    fn drop(&mut self) {
        self.memory.mapping.lanes().retain(|bytes| *bytes != self.bytes);
    }
}

/// References are in use until this is dropped.
struct Lent<'l> {
    lent: &'l Cell<bool>,
    before: bool,
}

/// Ends the loan: unless an outer one goes on, the bytes may be written to again.
impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.lent.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn lane() -> OwnedBytes {
        let (memory, _) = SharedMemory::pair(4096, 8192).unwrap();
        memory.claim(4096..4160).unwrap()
    }

    #[test]
    fn what_is_looked_at_is_not_written_to() {
        let lane = lane();
        lane.write(4096, b"abc");
        lane.with(4096, 3, |bytes| {
            assert!(catch_unwind(AssertUnwindSafe(|| lane.write(4096, b"x"))).is_err());
            let stores = || lane.store(4104, 1, Ordering::Relaxed);
            assert!(catch_unwind(AssertUnwindSafe(stores)).is_err());
            assert_eq!(lane.with(4097, 2, <[u8]>::to_vec), b"bc");
            let nested = catch_unwind(AssertUnwindSafe(|| lane.write(4096, b"x")));
            assert!(nested.is_err(), "the outer look goes on");
            lane.store(0, 7, Ordering::Relaxed);
            assert_eq!(bytes, b"abc");
        });
        lane.write(4096, b"x");
        assert_eq!(lane.load(0, Ordering::Relaxed), 7);
    }

    #[test]
    fn a_look_that_panics_is_over() {
        let lane = lane();
        let panicked =
            catch_unwind(AssertUnwindSafe(|| lane.with(4096, 1, |_| panic!("on purpose"))));
        assert!(panicked.is_err());
        lane.write(4096, b"x");
    }

    #[test]
    fn words_are_the_lanes_or_the_memorys() {
        let lane = lane();
        lane.store(4104, 5, Ordering::Release);
        lane.store(8, 6, Ordering::Release);
        assert_eq!(lane.with(4104, 8, <[u8]>::to_vec), 5_u64.to_ne_bytes());
        assert_eq!(lane.memory().word(8).load(Ordering::Acquire), 6);
        for outside in [4097, 4160, 8184] {
            let loaded = catch_unwind(AssertUnwindSafe(|| lane.load(outside, Ordering::Relaxed)));
            assert!(loaded.is_err(), "{outside}");
        }
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4159")]
    fn bytes_behind_the_end_are_not_given() {
        lane().with(4159, 2, |_| ());
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095")]
    fn bytes_before_the_beginning_are_not_given() {
        lane().write(4095, b"ab");
    }

    #[test]
    #[should_panic(expected = "bytes at 18446744073709551615")]
    fn an_offset_that_overflows_is_no_way_in() {
        lane().write(usize::MAX, b"ab");
    }
}
