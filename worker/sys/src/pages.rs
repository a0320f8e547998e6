//! Memory that consists of whole pages.
//!
//! NUMA memory policy.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::{io, slice};

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

/// Makes this thread, and the programs it executes, prefer memory of a NUMA node
/// (`MPOL_PREFERRED`). Fails with `ENOSYS` or `EPERM` where that is not permitted, and with
/// `EINVAL` if the machine does not have the node.
pub fn prefer_numa_node(node: u32) -> io::Result<()> {
    const BITS: u32 = libc::c_ulong::BITS;
    /// Largest number of nodes that a kernel can be built for (MAX_NUMNODES).
    const NODES: u32 = 1024;
    if node >= NODES {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask: [libc::c_ulong; (NODES / BITS) as usize] = [0; (NODES / BITS) as usize];
    mask[(node / BITS) as usize] = 1 << (node % BITS);
    // One more than the number of bits, because the kernel subtracts one.
    let length = libc::c_ulong::from(NODES) + 1;
    let policy = libc::c_long::from(libc::MPOL_PREFERRED);
    // SAFETY: set_mempolicy(2) reads `length` - 1 bits at `mask`, which is that long and lives
    // until the call returns; it changes nothing that this process could observe in memory.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, mask.as_ptr(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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

    #[test]
    fn a_node_that_no_machine_has_is_refused() {
        let error = prefer_numa_node(4096).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
