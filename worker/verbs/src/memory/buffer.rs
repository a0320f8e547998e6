//! Memory that somebody else may write to at any time, so there is never a reference to it.

use std::alloc::{Layout, LayoutError, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

/// Whole pages: what is pinned is never half of a page that something else lives on.
const PAGE: usize = 4096;
/// What is copied at once, in bytes.
const WORD: usize = size_of::<u64>();

/// Zeros at first, given back at the end. Reached by volatile copies, whole words of eight bytes
/// where they are aligned and bytes elsewhere; a copy beside another's write may be torn between
/// them.
#[derive(Debug)]
pub(crate) struct VolatileBuffer {
    first: NonNull<u8>,
    /// Length that was asked for, in bytes; what was allocated is whole pages.
    size: usize,
    layout: Layout,
}

// SAFETY: the memory is owned by this alone, and reached by copies through raw pointers.
unsafe impl Send for VolatileBuffer {}
// SAFETY: as above; copies from several threads may be torn, as copies beside a device's are.
unsafe impl Sync for VolatileBuffer {}

impl VolatileBuffer {
    /// `size` bytes, at least one, from the beginning of a page.
    pub(crate) fn allocate(size: usize) -> Result<VolatileBuffer, LayoutError> {
        let size = size.max(1);
        // Checked once as it is: with that, the whole pages are no longer than memory is either.
        let layout = Layout::from_size_align(size, PAGE)?.pad_to_align();
        // SAFETY: the layout's size is not zero.
        let first = unsafe { alloc_zeroed(layout) };
        let first = NonNull::new(first).unwrap_or_else(|| handle_alloc_error(layout));
        Ok(VolatileBuffer { first, size, layout })
    }

    /// In bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.first.as_ptr()
    }

    /// Copies `bytes` to `offset`; what would lie outside is left out. Returns how many were copied.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> usize {
        let length = self.inside(offset, bytes.len());
        let (head, rest) = bytes[..length].split_at(lead(offset, length));
        let (words, tail) = rest.as_chunks::<WORD>();
        let middle = offset + head.len();
        self.write_bytes(offset, head);
        for (index, word) in words.iter().enumerate() {
            // SAFETY: aligned, since `lead` ends at a word; below `length`, since `words` does.
            let place = unsafe { self.word(middle + index * WORD) };
            // SAFETY: as above; volatile, because devices read it.
            unsafe { place.write_volatile(u64::from_ne_bytes(*word)) };
        }
        self.write_bytes(offset + length - tail.len(), tail);
        length
    }

    /// Copies from `offset` to `bytes`; what would lie outside stays as it is. Returns how many were
    /// copied.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> usize {
        let length = self.inside(offset, bytes.len());
        let (head, rest) = bytes[..length].split_at_mut(lead(offset, length));
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        let middle = offset + head.len();
        self.read_bytes(offset, head);
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: aligned, since `lead` ends at a word; below `length`, since `words` does.
            let place = unsafe { self.word(middle + index * WORD) };
            // SAFETY: as above; volatile, because devices write to it.
            *word = unsafe { place.read_volatile() }.to_ne_bytes();
        }
        self.read_bytes(offset + length - tail.len(), tail);
        length
    }

    /// Sets bytes from `offset`; what would lie outside is left out. Returns how many were set.
    pub(crate) fn fill(&self, offset: usize, length: usize, byte: u8) -> usize {
        let length = self.inside(offset, length);
        let block = [byte; 64 * WORD];
        let mut done = 0;
        // Whole blocks from the first word on, so that they are copied by words.
        let mut next = lead(offset, length);
        while done < length {
            let piece = if next > 0 { next } else { (length - done).min(block.len()) };
            done += self.write(offset + done, &block[..piece]);
            next = 0;
        }
        length
    }

    /// The word at `offset`, in one access; nothing that is read later was read before it. `None`
    /// when `offset` is no multiple of eight or lies outside.
    pub(crate) fn read_u64(&self, offset: usize) -> Option<u64> {
        if !self.is_word(offset) {
            return None;
        }
        // SAFETY: by the line above.
        let place = unsafe { self.word(offset) };
        // SAFETY: as above; volatile, because devices write to it.
        let value = unsafe { place.read_volatile() };
        fence(Ordering::Acquire);
        Some(value)
    }

    /// Sets the word at `offset` in one access, after everything that was written before. False when
    /// `offset` is no multiple of eight or lies outside.
    pub(crate) fn write_u64(&self, offset: usize, value: u64) -> bool {
        if !self.is_word(offset) {
            return false;
        }
        fence(Ordering::Release);
        // SAFETY: by the test above.
        let place = unsafe { self.word(offset) };
        // SAFETY: as above; volatile, because devices read it.
        unsafe { place.write_volatile(value) };
        true
    }

    /// Some of its bytes, where they are; `None` when they lie outside.
    ///
    /// # Safety
    ///
    /// Nobody writes to them for as long as they are borrowed, no device either.
    pub(crate) unsafe fn bytes(&self, offset: usize, length: usize) -> Option<&[u8]> {
        if self.inside(offset, length) < length {
            return None;
        }
        // SAFETY: inside, by the line above.
        let first = unsafe { self.first.add(offset) };
        // SAFETY: initialised, since all of it was zeros; the caller promises the rest.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), length) })
    }

    /// Copies `bytes` to `offset`, as fast as can be; false, and nothing is copied, when they would
    /// lie outside.
    ///
    /// # Safety
    ///
    /// Nobody else touches these bytes meanwhile, but for devices that read them, and nobody has
    /// borrowed any of them.
    pub(crate) unsafe fn copy_from(&self, offset: usize, bytes: &[u8]) -> bool {
        if self.inside(offset, bytes.len()) < bytes.len() {
            return false;
        }
        // SAFETY: inside, by the line above.
        let to = unsafe { self.first.add(offset) };
        // SAFETY: `bytes` is none of this memory, of which nobody has borrowed what is written.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        true
    }

    fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            // SAFETY: callers pass what they have found to lie inside.
            let place = unsafe { self.first.add(offset + index) };
            // SAFETY: as above; volatile, because devices read it.
            unsafe { place.write_volatile(*byte) };
        }
    }

    fn read_bytes(&self, offset: usize, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: callers pass what they have found to lie inside.
            let place = unsafe { self.first.add(offset + index) };
            // SAFETY: as above, and initialised; volatile, because devices write to it.
            *byte = unsafe { place.read_volatile() };
        }
    }

    /// How many of `length` bytes at `offset` there are.
    fn inside(&self, offset: usize, length: usize) -> usize {
        length.min(self.size().saturating_sub(offset))
    }

    fn is_word(&self, offset: usize) -> bool {
        offset.is_multiple_of(WORD) && self.inside(offset, WORD) == WORD
    }

    /// # Safety
    ///
    /// `offset` is a multiple of eight, and eight bytes from there lie inside.
    unsafe fn word(&self, offset: usize) -> NonNull<u64> {
        // SAFETY: the caller's promise.
        unsafe { self.first.add(offset) }.cast()
    }
}

/// How many of `length` bytes from `offset` come before the first whole word. A page begins with
/// one.
fn lead(offset: usize, length: usize) -> usize {
    (offset.wrapping_neg() % WORD).min(length)
}

impl Drop for VolatileBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by this layout in `allocate`, and given back here alone.
        unsafe { dealloc(self.first.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths and offsets around words and around the end, against a vector.
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
