//! What a ring needs of the memory it lies in: shared memory, or a model of it in tests.

use rlaunch_sys::SharedMemory;
use std::sync::atomic::{self, Ordering};

/// Offsets are in bytes; those of words are multiples of 8.
pub(super) trait Memory {
    fn load(&self, word: usize, order: Ordering) -> u64;

    fn store(&self, word: usize, value: u64, order: Ordering);

    /// Stores if it is what it is thought to be; what it was.
    fn swap_if(&self, word: usize, was: u64, value: u64) -> Result<u64, u64>;

    fn write(&self, offset: usize, bytes: &[u8]);

    fn with<T>(&self, offset: usize, length: usize, look: impl FnOnce(&[u8]) -> T) -> T;

    /// A full barrier.
    fn fence(&self);
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

    fn swap_if(&self, word: usize, was: u64, value: u64) -> Result<u64, u64> {
        self.word(word).compare_exchange(was, value, Ordering::SeqCst, Ordering::SeqCst)
    }

    #[inline(always)]
    fn write(&self, offset: usize, bytes: &[u8]) {
        SharedMemory::write(self, offset, bytes);
    }

    #[inline(always)]
    fn with<T>(&self, offset: usize, length: usize, look: impl FnOnce(&[u8]) -> T) -> T {
        SharedMemory::with(self, offset, length, look)
    }

    #[inline(always)]
    fn fence(&self) {
        atomic::fence(Ordering::SeqCst);
    }
}
