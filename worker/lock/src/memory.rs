//! Memory as callers lend it, and as the buffer table keeps it.

/// Memory that a caller lends.
#[derive(Debug)]
pub enum Memory<'a> {
    /// Bytes that the engine only reads.
    Shared(&'a [u8]),
    /// Bytes that the engine reads and writes.
    Exclusive(&'a mut [u8]),
}

impl Memory<'_> {
    pub(crate) fn raw(&mut self) -> RawBuffer {
        match self {
            Memory::Shared(bytes) => {
                RawBuffer { first: bytes.as_ptr().cast_mut(), length: bytes.len(), writable: false }
            }
            Memory::Exclusive(bytes) => {
                RawBuffer { first: bytes.as_mut_ptr(), length: bytes.len(), writable: true }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBuffer {
    pub(crate) first: *mut u8,
    pub(crate) length: usize,
    pub(crate) writable: bool,
}

impl RawBuffer {
    const EMPTY: RawBuffer = RawBuffer { first: std::ptr::null_mut(), length: 0, writable: false };

    pub(crate) fn new(first: *mut u8, length: usize, writable: bool) -> RawBuffer {
        match length {
            0 => RawBuffer { writable, ..RawBuffer::EMPTY },
            _ => RawBuffer { first, length, writable },
        }
    }

    /// Tells whether all of `other` is inside this buffer, and this buffer is writable if `other`
    /// is writable. Returns `false` if `other` is empty.
    pub(crate) fn contains(self, other: RawBuffer) -> bool {
        let offset = other.first.addr().checked_sub(self.first.addr());
        let fits = offset
            .is_some_and(|offset| offset <= self.length && other.length <= self.length - offset);
        fits && other.length > 0 && (self.writable || !other.writable)
    }
}
