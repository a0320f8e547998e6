//! Memory that a device reaches by itself, beside the processor.

use std::sync::Arc;

/// Memory that [`Loans::attached`](crate::Loans::attached) gives to whoever tells a device of it.
/// It stays where it is until this is dropped; and this is to be dropped with what it was attached
/// to: a process that takes the memory back while somebody still has this is aborted.
#[derive(Debug)]
pub struct Held {
    first: *mut u8,
    length: usize,
    writable: bool,
    _alive: Arc<()>,
}

// SAFETY: an address of bytes, which any thread may use as long as this lives; `Held` itself does
// nothing with it.
unsafe impl Send for Held {}

impl Held {
    pub(crate) fn new(first: *mut u8, length: usize, writable: bool, alive: Arc<()>) -> Held {
        Held { first, length, writable, _alive: alive }
    }

    /// Where it begins; dangling where it is of no length.
    pub fn as_ptr(&self) -> *mut u8 {
        self.first
    }

    /// In bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether anybody may write to it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}
