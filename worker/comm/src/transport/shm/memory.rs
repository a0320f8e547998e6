//! Traits for accesses to the shared segment. Shared memory implements them and, in tests, a model
//! of shared memory.

use rlaunch_sys::{OwnedBytes, SharedMemory};
use std::sync::atomic::{self, Ordering};

/// Memory that consists of atomic words of 64 bits. A word is named by its offset in bytes, a
/// multiple of 8.
pub(super) trait Memory {
    fn load(&self, word: usize, order: Ordering) -> u64;

    fn store(&self, word: usize, value: u64, order: Ordering);

    /// Stores `value` if the word equals `current`. Returns the previous value: as `Ok` if it was
    /// equal to `current`, else as `Err`.
    fn compare_exchange(&self, word: usize, current: u64, value: u64) -> Result<u64, u64>;

    /// Executes a sequentially consistent fence.
    fn fence(&self);

    /// Executes an acquire fence: later loads are not moved before earlier loads.
    fn acquire(&self);

    /// Begins to fetch the cache line of a word that is going to be stored.
    #[inline(always)]
    fn prefetch_for_write(&self, word: usize) {
        let _ = word;
    }
}

/// Memory that has, besides atomic words, bytes that only one link of this process accesses.
/// Offsets are in bytes.
pub(super) trait Bytes: Memory {
    fn write(&self, offset: usize, bytes: &[u8]);

    fn with<T>(&self, offset: usize, length: usize, f: impl FnOnce(&[u8]) -> T) -> T;
}

impl Memory for SharedMemory {
    #[inline(always)]
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.word(word).load(order)
    }

    #[inline(always)]
    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.word(word).store(value, order);
    }

    fn compare_exchange(&self, word: usize, current: u64, value: u64) -> Result<u64, u64> {
        self.word(word).compare_exchange(current, value, Ordering::SeqCst, Ordering::SeqCst)
    }

    #[inline(always)]
    fn fence(&self) {
        rlaunch_sys::full_fence();
    }
    #[inline(always)]
    fn acquire(&self) {
        atomic::fence(Ordering::Acquire);
    }
}

impl Memory for OwnedBytes {
    #[inline(always)]
    fn load(&self, word: usize, order: Ordering) -> u64 {
        OwnedBytes::load(self, word, order)
    }

    #[inline(always)]
    fn store(&self, word: usize, value: u64, order: Ordering) {
        OwnedBytes::store(self, word, value, order);
    }

    fn compare_exchange(&self, word: usize, current: u64, value: u64) -> Result<u64, u64> {
        self.memory().compare_exchange(word, current, value)
    }

    #[inline(always)]
    fn prefetch_for_write(&self, word: usize) {
        OwnedBytes::prefetch_for_write(self, word);
    }

    #[inline(always)]
    fn fence(&self) {
        rlaunch_sys::full_fence();
    }

    #[inline(always)]
    fn acquire(&self) {
        atomic::fence(Ordering::Acquire);
    }
}

impl Bytes for OwnedBytes {
    #[inline(always)]
    fn write(&self, offset: usize, bytes: &[u8]) {
        OwnedBytes::write(self, offset, bytes);
    }

    #[inline(always)]
    fn with<T>(&self, offset: usize, length: usize, f: impl FnOnce(&[u8]) -> T) -> T {
        OwnedBytes::with(self, offset, length, f)
    }
}
