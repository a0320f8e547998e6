//! Division of a buffer's elements into blocks, usually one for each rank.

use super::{Buffer, Span};

/// Division of consecutive elements into blocks. The lengths of the blocks differ by at most one
/// element, and the longer blocks come first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Number of blocks.
    size: usize,
    /// Minimum number of elements in a block.
    each: usize,
    /// Number of blocks with one element more than `each`.
    larger: usize,
}

impl Blocks {
    /// Divides `count` elements into `size` blocks.
    pub(super) fn divide(count: usize, size: usize) -> Blocks {
        Blocks { size, each: count / size, larger: count % size }
    }

    /// Creates a division into `size` blocks of `each` elements.
    pub(super) fn equal(each: usize, size: usize) -> Blocks {
        Blocks { size, each, larger: 0 }
    }

    /// Returns the total number of elements.
    pub(super) fn count(&self) -> usize {
        self.start(self.size)
    }

    /// Returns the span of block `block` in a buffer that stores all blocks one after the other.
    pub(super) fn one(&self, buffer: Buffer, block: usize) -> Span {
        self.run(buffer, block, 1)
    }

    /// Returns the span of the `blocks` consecutive blocks that begin with block `first`, in a
    /// buffer that stores all blocks one after the other.
    pub(super) fn run(&self, buffer: Buffer, first: usize, blocks: usize) -> Span {
        let start = self.start(first);
        Span::new(buffer, start, self.start(first + blocks) - start)
    }

    /// Works like [`Blocks::run`], but continues with block 0 after the last block. Returns the
    /// span up to the last block and the span from block 0; the second is empty without a
    /// wrap-around.
    pub(super) fn arc(&self, buffer: Buffer, first: usize, blocks: usize) -> [Span; 2] {
        let first = first % self.size;
        let ahead = blocks.min(self.size - first);
        [self.run(buffer, first, ahead), self.run(buffer, 0, blocks - ahead)]
    }

    fn start(&self, block: usize) -> usize {
        block * self.each + block.min(self.larger)
    }
}
