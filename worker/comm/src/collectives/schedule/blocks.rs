//! Division of elements into one block for each rank.

use super::{Buffer, Span};

/// Blocks of consecutive elements, as equal as possible, the larger ones first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Number of blocks.
    size: usize,
    /// Minimum number of elements in a block.
    each: usize,
    /// Number of blocks with one element more.
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

    /// Returns a block, if the blocks are stored consecutively from the start of `place`.
    pub(super) fn one(&self, place: Buffer, block: usize) -> Span {
        self.run(place, block, 1)
    }

    /// Returns consecutive blocks.
    pub(super) fn run(&self, place: Buffer, first: usize, blocks: usize) -> Span {
        let start = self.start(first);
        Span::new(place, start, self.start(first + blocks) - start)
    }

    /// Returns consecutive blocks with wrap-around after the last one, as two spans.
    pub(super) fn arc(&self, place: Buffer, first: usize, blocks: usize) -> [Span; 2] {
        let first = first % self.size;
        let ahead = blocks.min(self.size - first);
        [self.run(place, first, ahead), self.run(place, 0, blocks - ahead)]
    }

    fn start(&self, block: usize) -> usize {
        block * self.each + block.min(self.larger)
    }
}
