//! Memory that a device may write to at any time, so Rust references to it are not allowed.
//!
//! Registered memory that this crate allocates.

use super::{MrSlice, ProtectionDomain, Registration};
use crate::error::{Verb, VerbsError};
use rdma_sys::ibv_access_flags;
use std::alloc::{Layout, LayoutError, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Alignment and granularity of allocations, in bytes. Registering memory pins whole pages, which
/// must not contain other data.
const PAGE: usize = 4096;
/// Unit of copies, in bytes.
const WORD: usize = size_of::<u64>();

/// Initially zeroed memory that is accessed mostly by volatile copies: in words of 8 bytes where
/// they are aligned, in bytes elsewhere. A copy that races with a write of a device, or of another
/// thread, may see some words and bytes of that write and miss others.
#[derive(Debug)]
pub(crate) struct VolatileBuffer {
    first: NonNull<u8>,
    /// Requested length, in bytes. The allocation is rounded up to whole pages.
    size: usize,
    layout: Layout,
}

// SAFETY: the buffer owns the memory, and accesses it only by copies through raw pointers.
unsafe impl Send for VolatileBuffer {}

// SAFETY: as above; concurrent copies may be torn, which callers have to expect from devices
// anyway.
unsafe impl Sync for VolatileBuffer {}

impl VolatileBuffer {
    /// Allocates `size` bytes, or 1 if `size` is 0, page-aligned. Fails if `size` exceeds the
    /// address space.
    pub(crate) fn allocate(size: usize) -> Result<VolatileBuffer, LayoutError> {
        let size = size.max(1);
        // `from_size_align` checks that the size, rounded up to whole pages, does not overflow.
        let layout = Layout::from_size_align(size, PAGE)?.pad_to_align();
        // SAFETY: the layout's size is not zero.
        let first = unsafe { alloc_zeroed(layout) };
        let first = NonNull::new(first).unwrap_or_else(|| handle_alloc_error(layout));
        Ok(VolatileBuffer { first, size, layout })
    }

    /// Returns the requested size, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// Copies as many of `bytes` into the buffer at `offset` as fit. Returns the number of bytes
    /// copied.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        let length = self.clamp_length(offset, bytes.len());
        let (head, rest) = bytes[..length].split_at(head_length(offset, length));
        let (words, tail) = rest.as_chunks::<WORD>();
        let middle = offset + head.len();
        self.write_bytes(offset, head);
        for (index, word) in words.iter().enumerate() {
            // SAFETY: aligned, because the head ends at a word; inside, because `words` ends before
            // `length`.
            let pointer = unsafe { self.word(middle + index * WORD) };
            // SAFETY: as above; volatile, because devices read the memory.
            unsafe { pointer.write_volatile(u64::from_ne_bytes(*word)) };
        }
        self.write_bytes(offset + length - tail.len(), tail);
        length
    }

    /// Copies into `bytes` from the buffer at `offset`, up to the end of the buffer; the rest of
    /// `bytes` stays unchanged. Returns the number of bytes copied.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        let length = self.clamp_length(offset, bytes.len());
        let (head, rest) = bytes[..length].split_at_mut(head_length(offset, length));
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        let middle = offset + head.len();
        self.read_bytes(offset, head);
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: aligned, because the head ends at a word; inside, because `words` ends before
            // `length`.
            let pointer = unsafe { self.word(middle + index * WORD) };
            // SAFETY: as above; volatile, because devices write to the memory.
            *word = unsafe { pointer.read_volatile() }.to_ne_bytes();
        }
        self.read_bytes(offset + length - tail.len(), tail);
        length
    }

    /// Sets up to `length` bytes at `offset` to `byte`, up to the end of the buffer. Returns the
    /// number of bytes set.
    pub(crate) fn fill(&self, offset: usize, length: usize, byte: u8) -> usize {
        let length = self.clamp_length(offset, length);
        let block = [byte; 64 * WORD];
        let mut done = 0;
        // The first piece ends where an aligned word begins, so that all later pieces are copied in
        // words.
        let mut next = head_length(offset, length);
        while done < length {
            let piece = if next > 0 { next } else { (length - done).min(block.len()) };
            done += self.write(offset + done, &block[..piece]);
            next = 0;
        }
        length
    }

    /// Reads the word at `offset` in one access, with acquire ordering. Returns `None` unless
    /// `offset` is a multiple of 8 and the word is in the buffer.
    pub(crate) fn read_u64(&self, offset: usize) -> Option<u64> {
        if !self.is_word(offset) {
            return None;
        }
        // SAFETY: `is_word` holds.
        let pointer = unsafe { self.word(offset) };
        // SAFETY: as above; volatile, because devices write to the memory.
        let value = unsafe { pointer.read_volatile() };
        fence(Ordering::Acquire);
        Some(value)
    }

    /// Writes the word at `offset` in one access, with release ordering. Returns `false`, and
    /// writes nothing, unless `offset` is a multiple of 8 and the word is in the buffer.
    pub(crate) fn write_u64(&self, offset: usize, value: u64) -> bool {
        if !self.is_word(offset) {
            return false;
        }
        fence(Ordering::Release);
        // SAFETY: `is_word` holds.
        let pointer = unsafe { self.word(offset) };
        // SAFETY: as above; volatile, because devices read the memory.
        unsafe { pointer.write_volatile(value) };
        true
    }

    /// Returns a reference to a range; `None` if the range exceeds the buffer.
    ///
    /// # Safety
    ///
    /// No thread and no device may write to the range while the reference exists.
    pub(crate) unsafe fn bytes(&self, offset: usize, length: usize) -> Option<&[u8]> {
        if self.clamp_length(offset, length) < length {
            return None;
        }
        // SAFETY: the range is inside the buffer, as checked above.
        let first = unsafe { self.first.add(offset) };
        // SAFETY: the bytes are initialised, because the allocation was zeroed; the caller
        // guarantees the rest.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), length) })
    }

    /// Copies `bytes` into the buffer at `offset` by memcpy, which is faster than volatile copies.
    /// Returns `false`, and copies nothing, if `bytes` does not fit.
    ///
    /// # Safety
    ///
    /// No other thread may access the range meanwhile, no device may write to it, and no reference
    /// to it may exist.
    pub(crate) unsafe fn copy_from(&self, offset: usize, bytes: &[u8]) -> bool {
        if self.clamp_length(offset, bytes.len()) < bytes.len() {
            return false;
        }
        // SAFETY: the range is inside the buffer, as checked above.
        let to = unsafe { self.first.add(offset) };
        // SAFETY: `bytes` does not overlap the range: no reference to the range exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        true
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: callers have clamped the range to the buffer.
            let pointer = unsafe { self.first.add(offset + index) };
            // SAFETY: as above; volatile, because devices read the memory.
            unsafe { pointer.write_volatile(*byte) };
        }
    }

    fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: callers have clamped the range to the buffer.
            let pointer = unsafe { self.first.add(offset + index) };
            // SAFETY: as above, and initialised; volatile, because devices write to the memory.
            *byte = unsafe { pointer.read_volatile() };
        }
    }

    /// Returns the number of bytes from `offset` on that are in the buffer, at most `length`.
    fn clamp_length(&self, offset: usize, length: usize) -> usize {
        length.min(self.size().saturating_sub(offset))
    }

    fn is_word(&self, offset: usize) -> bool {
        offset.is_multiple_of(WORD) && self.clamp_length(offset, WORD) == WORD
    }

    /// # Safety
    ///
    /// `offset` must be a multiple of 8, with at least 8 bytes of the buffer behind it.
    unsafe fn word(&self, offset: usize) -> NonNull<u64> {
        // SAFETY: the caller guarantees it.
        unsafe { self.first.add(offset) }.cast()
    }
}

/// Returns the number of bytes from `offset` to the first aligned word, at most `length`. Buffers
/// are page-aligned, so an address is aligned if its offset in the buffer is.
fn head_length(offset: usize, length: usize) -> usize {
    (offset.wrapping_neg() % WORD).min(length)
}

impl Drop for VolatileBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout in `allocate`, and is freed only here.
        unsafe { dealloc(self.first.as_ptr(), self.layout) };
    }
}

/// Page-aligned, zeroed memory that is registered with a device until the value is dropped.
///
/// A peer may write to the memory at any time, so no references to it are returned:
/// [`MemoryRegion::read`] and [`MemoryRegion::write`] copy, in aligned words of 8 bytes where
/// possible. A copy that races with a peer's write may see part of that write; aligned words are
/// never torn.
#[derive(Debug)]
pub struct MemoryRegion(Registration<VolatileBuffer>);

impl MemoryRegion {
    /// Allocates `size` bytes, or 1 if `size` is 0, and registers them for local use and for RDMA
    /// reads and writes of peers. Fails with EINVAL if `size` exceeds the address space, and with
    /// ENOMEM if it exceeds the limit on locked memory (`ulimit -l`).
    pub fn register(
        domain: &Arc<ProtectionDomain>,
        size: usize,
    ) -> Result<MemoryRegion, VerbsError> {
        // iWARP requires remote write access also for the local target of an RDMA read.
        let remote =
            ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        MemoryRegion::with_access(domain, size, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | remote)
    }

    /// Allocates and registers like [`MemoryRegion::register`], and lets the device write in any order
    /// (relaxed ordering of PCIe), which is faster on some machines. Only the completion of a request
    /// then tells that its data has arrived: a program must not wait for a byte to change. Where
    /// kernel or device do not know this, order is kept.
    pub fn register_relaxed(
        domain: &Arc<ProtectionDomain>,
        size: usize,
    ) -> Result<MemoryRegion, VerbsError> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        MemoryRegion::with_access(domain, size, access)
            .or_else(|_| MemoryRegion::register(domain, size))
    }

    /// Allocates `size` bytes, or 1 if `size` is 0, and registers them for local use only: as the
    /// source of sends and the target of receives.
    pub(crate) fn register_local(
        domain: &Arc<ProtectionDomain>,
        size: usize,
    ) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::with_access(domain, size, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)
    }

    fn with_access(
        domain: &Arc<ProtectionDomain>,
        size: usize,
        access: ibv_access_flags,
    ) -> Result<MemoryRegion, VerbsError> {
        let device = domain.context().name();
        let too_large = |_| VerbsError::from_errno(Verb::RegMr, device, libc::EINVAL);
        let memory = VolatileBuffer::allocate(size).map_err(too_large)?;
        Registration::register(domain, memory, access).map(MemoryRegion)
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.memory().size()
    }

    pub(crate) fn memory(&self) -> &VolatileBuffer {
        self.0.memory()
    }

    /// Returns the address of the first byte, which peers need for RDMA reads and writes.
    pub fn address(&self) -> u64 {
        self.0.address()
    }

    /// Returns the remote key, which peers need for RDMA reads and writes.
    pub fn rkey(&self) -> u32 {
        self.0.rkey()
    }

    /// Returns a range of the region, for work requests. Fails with [`VerbsError::OutOfBounds`] if
    /// the range exceeds the region or is 4 GiB or longer.
    pub fn slice(&self, offset: usize, length: usize) -> Result<MrSlice<'_>, VerbsError> {
        self.0.slice(offset, length)
    }

    /// Copies as many of `bytes` into the region at `offset` as fit. Returns the number of bytes
    /// copied.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        self.memory().write(offset, bytes)
    }

    /// Copies into `bytes` from the region at `offset`, up to the end of the region; the rest of
    /// `bytes` stays unchanged. Returns the number of bytes copied.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        self.memory().read(offset, bytes)
    }

    /// Sets up to `length` bytes at `offset` to `byte`, up to the end of the region. Returns the
    /// number of bytes set.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) -> usize {
        self.memory().fill(offset, length, byte)
    }

    /// Reads the word at `offset` in one access, in native byte order, with acquire ordering: if
    /// the word is a flag that a peer has written after other data, later reads see that data.
    /// Returns `None` unless `offset` is a multiple of 8 and the word is in the region.
    pub fn read_u64(&self, offset: usize) -> Option<u64> {
        self.memory().read_u64(offset)
    }

    /// Writes the word at `offset` in one access, in native byte order, with release ordering.
    /// Returns `false`, and writes nothing, unless `offset` is a multiple of 8 and the word is in
    /// the region.
    pub fn write_u64(&self, offset: usize, value: u64) -> bool {
        self.memory().write_u64(offset, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares copies with those of a plain array, for lengths and offsets around words and around
    /// the end.
    #[test]
    fn copies_are_what_a_vector_would_hold() {
        const SIZE: usize = 100;
        let memory = VolatileBuffer::allocate(SIZE).unwrap();
        let mut model = [0; SIZE];
        for (round, offset) in (0..SIZE + 2).enumerate() {
            for length in [0, 1, 7, 8, 9, 16, 23, 64, 101] {
                let bytes: Vec<u8> = (0..length).map(|index| (index * 7 + round) as u8).collect();
                let copied = memory.write(offset, &bytes);
                assert_eq!(copied, length.min(SIZE.saturating_sub(offset)));
                if copied > 0 {
                    model[offset..offset + copied].copy_from_slice(&bytes[..copied]);
                }
                let (mut all, mut part) = ([0; SIZE], vec![0xee; length]);
                assert_eq!(memory.read(0, &mut all), SIZE);
                assert_eq!(all, model[..]);
                assert_eq!(memory.read(offset, &mut part), copied);
                assert_eq!(part[..copied], bytes[..copied]);
                assert!(part[copied..].iter().all(|byte| *byte == 0xee), "the rest is untouched");
            }
        }
    }

    #[test]
    fn fills_what_is_asked_for_and_nothing_else() {
        const SIZE: usize = 2000;
        let memory = VolatileBuffer::allocate(SIZE).unwrap();
        for (offset, length) in [(0, 0), (1, 3), (3, 600), (8, 1024), (1990, 100), (5000, 1)] {
            memory.fill(0, SIZE, 0);
            let filled = memory.fill(offset, length, 0xa5);
            assert_eq!(filled, length.min(SIZE.saturating_sub(offset)));
            let mut all = [0; SIZE];
            memory.read(0, &mut all);
            let is_filled = |index| (offset..offset + filled).contains(&index);
            assert!(all.iter().enumerate().all(|(at, byte)| (*byte == 0xa5) == is_filled(at)));
        }
    }

    #[test]
    fn words_are_whole_and_inside() {
        let memory = VolatileBuffer::allocate(20).unwrap();
        assert!(memory.write_u64(8, 0x0102_0304_0506_0708));
        assert_eq!(memory.read_u64(8), Some(0x0102_0304_0506_0708));
        for outside in [4, 16, 24, usize::MAX - 7, usize::MAX] {
            assert_eq!((memory.read_u64(outside), memory.write_u64(outside, 1)), (None, false));
        }
        let mut bytes = [0; 4];
        memory.read(16, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }
}
