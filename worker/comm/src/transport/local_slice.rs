//! Byte ranges of lent buffers. A lent buffer is memory of the program that the communicator may
//! access until an operation on it ends.

use rlaunch_lock::{BufferId, BufferTable};
use std::ops::Range;

/// Byte range of a lent buffer, to send from or to receive into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalSlice {
    pub(crate) buffer: BufferId,
    pub(crate) start: usize,
    pub(crate) length: usize,
}

impl LocalSlice {
    pub(crate) fn all(buffer: BufferId, length: usize) -> LocalSlice {
        LocalSlice { buffer, start: 0, length }
    }

    /// Returns the part of this slice that begins `offset` bytes after its start and is `length`
    /// bytes long. The slice must contain the whole part.
    pub(crate) fn part(self, offset: usize, length: usize) -> LocalSlice {
        LocalSlice { start: self.start + offset, length, ..self }
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start..self.start + self.length
    }

    pub(crate) fn read<R>(self, buffers: &BufferTable, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        buffers.read(self.buffer, self.range(), f)
    }

    pub(crate) fn write<R>(
        self,
        buffers: &BufferTable,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        buffers.write(self.buffer, self.range(), f)
    }
}
