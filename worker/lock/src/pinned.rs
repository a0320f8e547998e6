//! Memory that an RDMA device reads and writes without the processor.

use std::sync::Arc;

/// Memory of a buffer, passed to the closure that registers the memory with a device (see
/// [`BufferTable::with_attachment`](crate::BufferTable::with_attachment)). The memory stays in
/// place until this value is dropped.
///
/// The registration that the closure returns must own this value, and drop it only after the device
/// has given up the memory. If this value still exists after the registration was dropped, the
/// process aborts, because the device could write to memory that the program uses again.
#[derive(Debug)]
pub struct PinnedBuffer {
    first: *mut u8,
    length: usize,
    writable: bool,
    _alive: Arc<()>,
}

// SAFETY: an address of bytes that any thread may use while this exists; `PinnedBuffer` itself
// never follows it.
unsafe impl Send for PinnedBuffer {}

impl PinnedBuffer {
    pub(crate) fn new(
        first: *mut u8,
        length: usize,
        writable: bool,
        alive: Arc<()>,
    ) -> PinnedBuffer {
        PinnedBuffer { first, length, writable, _alive: alive }
    }

    /// Returns the address of the first byte. If the buffer is empty, the address is not valid.
    pub fn as_ptr(&self) -> *mut u8 {
        self.first
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Tells whether the memory may be written to.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}
