//! Elements in one block for each rank.

use super::{Buffer, Span};

/// How elements are divided: as evenly as can be, the larger blocks first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// How many blocks.
    size: usize,
    /// Elements of a block, at least.
    each: usize,
    /// So many blocks have one more.
    larger: usize,
}

impl Blocks {
    /// `count` elements for `size` ranks.
    pub(super) fn divide(count: usize, size: usize) -> Blocks {
        Blocks { size, each: count / size, larger: count % size }
    }

    /// `each` elements for each of `size` ranks.
    pub(super) fn equal(each: usize, size: usize) -> Blocks {
        Blocks { size, each, larger: 0 }
    }

    /// All elements.
    pub(super) fn count(&self) -> usize {
        self.start(self.size)
    }

    /// A block, where all of them lie one after the other from the front of `place`.
    pub(super) fn one(&self, place: Buffer, block: usize) -> Span {
        self.run(place, block, 1)
    }

    /// Blocks that follow each other.
    pub(super) fn run(&self, place: Buffer, first: usize, blocks: usize) -> Span {
        let start = self.start(first);
        Span::new(place, start, self.start(first + blocks) - start)
    }

    /// Blocks that follow each other in a circle.
    pub(super) fn arc(&self, place: Buffer, first: usize, blocks: usize) -> [Span; 2] {
        let first = first % self.size;
        let ahead = blocks.min(self.size - first);
        [self.run(place, first, ahead), self.run(place, 0, blocks - ahead)]
    }

    fn start(&self, block: usize) -> usize {
        block * self.each + block.min(self.larger)
    }
}
