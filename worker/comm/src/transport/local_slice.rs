//! Parts of buffers that are lent to the engine.

use rlaunch_lock::{BufferId, BufferTable};
use std::ops::Range;

/// A part of memory that is lent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalSlice {
    pub(crate) buffer: BufferId,
    /// In bytes.
    pub(crate) start: usize,
    /// In bytes.
    pub(crate) length: usize,
}

impl LocalSlice {
    pub(crate) fn all(buffer: BufferId, length: usize) -> LocalSlice {
        LocalSlice { buffer, start: 0, length }
    }

    /// `length` bytes from `offset`, both within it.
    pub(crate) fn part(self, offset: usize, length: usize) -> LocalSlice {
        LocalSlice { start: self.start + offset, length, ..self }
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start..self.start + self.length
    }

    pub(crate) fn read<R>(
        self,
        buffers: &BufferTable,
        reads: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        buffers.read(self.buffer, self.range(), reads)
    }

    pub(crate) fn write<R>(
        self,
        buffers: &BufferTable,
        writes: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        buffers.write(self.buffer, self.range(), writes)
    }
}
