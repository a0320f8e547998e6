//! Memory that consists of whole pages.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::slice;

/// Largest page size of any kernel for this architecture (some aarch64 kernels use 64 KiB); a
/// multiple of every smaller one.
const PAGE: usize = if cfg!(target_arch = "aarch64") { 64 << 10 } else { 4 << 10 };

/// Memory on pages that contain nothing else, initially zero. Registering memory with a device may
/// withhold whole pages from fork(2) children, so no other data may be on these pages.
#[derive(Debug)]
pub struct Pages {
    first: NonNull<u8>,
    length: usize,
    layout: Layout,
}

// SAFETY: the memory is owned by this value alone.
unsafe impl Send for Pages {}
// SAFETY: as above, and shared access only reads.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates `length` bytes. Returns `None` if that exceeds the address space.
    pub fn zeroed(length: usize) -> Option<Pages> {
        let whole = length.max(1).checked_next_multiple_of(PAGE)?;
        let layout = Layout::from_size_align(whole, PAGE).ok()?;
        // SAFETY: the layout's size is not zero.
        let first = unsafe { alloc_zeroed(layout) };
        let first = NonNull::new(first).unwrap_or_else(|| handle_alloc_error(layout));
        Some(Pages { first, length, layout })
    }

    /// Returns the address of the first byte, at which a page begins.
    pub fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// Returns the requested length, in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: at least this many bytes were allocated, as zeros, and live as long as `self`.
        unsafe { slice::from_raw_parts(self.first.as_ptr(), self.length) }
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.first.as_ptr(), self.length) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `zeroed`, and freed only here.
        unsafe { dealloc(self.first.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_and_zeros() {
        for length in [0, 1, PAGE, PAGE + 1] {
            let mut pages = Pages::zeroed(length).unwrap();
            assert!(pages.as_ptr().addr().is_multiple_of(PAGE));
            assert_eq!(pages.layout.size() % PAGE, 0);
            assert_eq!(pages.bytes(), vec![0; length]);
            pages.bytes_mut().fill(7);
        }
        assert!(Pages::zeroed(usize::MAX).is_none());
    }
}
