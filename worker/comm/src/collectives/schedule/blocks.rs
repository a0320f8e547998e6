//! Division of elements into one block for each rank.

use super::{Buffer, Span};

/// Blocks of consecutive elements. Their lengths are as equal as possible, with the longer blocks
/// first.
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

    /// Returns `size` blocks of `each` elements.
    pub(super) fn equal(each: usize, size: usize) -> Blocks {
        Blocks { size, each, larger: 0 }
    }

    /// Returns the total number of elements.
    pub(super) fn count(&self) -> usize {
        self.start(self.size)
    }

    /// Returns the span of one block in `buffer`, which stores the blocks one after the other
    /// from its start.
    pub(super) fn one(&self, buffer: Buffer, block: usize) -> Span {
        self.run(buffer, block, 1)
    }

    /// Returns the span of `blocks` consecutive blocks, beginning with block `first`. They are
    /// stored as for [`Blocks::one`].
    pub(super) fn run(&self, buffer: Buffer, first: usize, blocks: usize) -> Span {
        let start = self.start(first);
        Span::new(buffer, start, self.start(first + blocks) - start)
    }

    /// Returns the spans of `blocks` consecutive blocks, beginning with block `first`, where block
    /// 0 follows the last block. The second span is empty without such a wrap-around.
    pub(super) fn arc(&self, buffer: Buffer, first: usize, blocks: usize) -> [Span; 2] {
        let first = first % self.size;
        let ahead = blocks.min(self.size - first);
        [self.run(buffer, first, ahead), self.run(buffer, 0, blocks - ahead)]
    }

    fn start(&self, block: usize) -> usize {
        block * self.each + block.min(self.larger)
    }
}
