//! Construction of schedules, operation by operation, and the arithmetic that algorithms share: rank
//! numbers in a group of ranks, and the division of a buffer's elements into blocks, usually one for
//! each rank. The builder leaves out operations on no elements and empty steps.
//!
//! Binomial tree of ranks. Ranks are numbered relative to the root, so that the root is rank 0.
//! Each subtree consists of consecutive ranks.

use super::{Buffer, Exchange, Local, Schedule, Span, Step};

#[derive(Debug, Default)]
pub(super) struct ScheduleBuilder {
    schedule: Schedule,
    step: Step,
}

impl ScheduleBuilder {
    /// Starts a new step: operations that are added later wait for the exchanges that were added
    /// before.
    pub(super) fn begin_step(&mut self) {
        if !self.step.local.is_empty() || !self.step.exchange.is_empty() {
            self.schedule.steps.push(std::mem::take(&mut self.step));
        }
    }

    /// Reserves `length` elements of scratch memory.
    pub(super) fn scratch(&mut self, length: usize) -> Span {
        let span = Span::new(Buffer::Scratch, self.schedule.scratch, length);
        self.schedule.scratch += length;
        span
    }

    pub(super) fn copy(&mut self, from: Span, to: Span) {
        debug_assert_eq!(from.length, to.length, "{from:?} {to:?}");
        if from.length == 0 || from == to {
            return;
        }
        self.before_exchange();
        // Merge this copy into the previous one if source and destination continue where those of
        // the previous copy end.
        if let Some(Local::Copy { from: f, to: t }) = self.step.local.last_mut()
            && follows(*f, from)
            && follows(*t, to)
        {
            f.length += from.length;
            t.length += to.length;
            return;
        }
        self.step.local.push(Local::Copy { from, to });
    }

    pub(super) fn reduce(&mut self, from: Span, with: Span, into: Span) {
        if into.length > 0 {
            self.before_exchange();
            self.step.local.push(Local::Reduce { from, with, into });
        }
    }

    pub(super) fn send(&mut self, to: usize, span: Span) {
        if span.length > 0 {
            self.step.exchange.push(Exchange::Send { to, span });
        }
    }

    pub(super) fn receive(&mut self, from: usize, span: Span) {
        if span.length > 0 {
            self.step.exchange.push(Exchange::Receive { from, span });
        }
    }

    pub(super) fn receive_reduce(&mut self, from: usize, with: Span, span: Span) {
        debug_assert_eq!(with.length, span.length, "{with:?} {span:?}");
        if span.length > 0 {
            let receive = Exchange::ReceiveReduce { from, with, span };
            self.step.exchange.push(receive);
        }
    }

    pub(super) fn signal(&mut self, to: usize) {
        self.step.exchange.push(Exchange::Signal { to });
    }

    pub(super) fn await_signal(&mut self, from: usize) {
        self.step.exchange.push(Exchange::Await { from });
    }

    /// Appends the steps of the schedule `part`. The functions `rank` and `span` translate the rank
    /// numbers and spans of `part` to those of this schedule.
    pub(super) fn append(
        &mut self,
        part: Schedule,
        rank: impl Fn(usize) -> usize,
        span: impl Fn(Span) -> Span,
    ) {
        self.begin_step();
        for mut step in part.steps {
            for local in &mut step.local {
                *local = translate_local(*local, &span);
            }
            for exchange in &mut step.exchange {
                *exchange = translate_exchange(*exchange, &rank, &span);
            }
            self.schedule.steps.push(step);
        }
        let scratch = span(Span::new(Buffer::Scratch, part.scratch, 0)).start;
        self.schedule.scratch = self.schedule.scratch.max(scratch);
    }

    pub(super) fn finish(mut self) -> Schedule {
        self.begin_step();
        self.schedule
    }

    /// Begins a new step if the current step has exchanges, because local operations come first in
    /// a step.
    fn before_exchange(&mut self) {
        if !self.step.exchange.is_empty() {
            self.begin_step();
        }
    }
}

fn follows(first: Span, second: Span) -> bool {
    first.buffer == second.buffer && first.start + first.length == second.start
}

fn translate_local(local: Local, span: impl Fn(Span) -> Span) -> Local {
    match local {
        Local::Copy { from, to } => Local::Copy { from: span(from), to: span(to) },
        Local::Reduce { from, with, into } => {
            Local::Reduce { from: span(from), with: span(with), into: span(into) }
        }
    }
}

fn translate_exchange(
    exchange: Exchange,
    rank: impl Fn(usize) -> usize,
    translate: impl Fn(Span) -> Span,
) -> Exchange {
    match exchange {
        Exchange::Send { to, span } => Exchange::Send { to: rank(to), span: translate(span) },
        Exchange::Receive { from, span } => {
            Exchange::Receive { from: rank(from), span: translate(span) }
        }
        Exchange::ReceiveReduce { from, with, span } => Exchange::ReceiveReduce {
            from: rank(from),
            with: translate(with),
            span: translate(span),
        },
        Exchange::Signal { to } => Exchange::Signal { to: rank(to) },
        Exchange::Await { from } => Exchange::Await { from: rank(from) },
    }
}

/// Returns the parent of `rank`, or `None` for the root.
pub(super) fn tree_parent(rank: usize) -> Option<usize> {
    (rank != 0).then(|| rank & (rank - 1))
}

/// Returns the number of ranks in the subtree whose top is `rank`, `rank` included, in a tree of
/// `size` ranks.
pub(super) fn subtree_size(rank: usize, size: usize) -> usize {
    tree_limit(rank, size).min(size - rank)
}

/// Returns the children of `rank` in a tree of `size` ranks, the child with the largest subtree
/// first.
pub(super) fn tree_children(rank: usize, size: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..tree_limit(rank, size).trailing_zeros())
        .rev()
        .map(move |bit| rank + (1 << bit))
        .filter(move |child| *child < size)
}

fn tree_limit(rank: usize, size: usize) -> usize {
    if rank == 0 { size.next_power_of_two() } else { 1 << rank.trailing_zeros() }
}

/// Rank in a group, with the size of the group: all ranks of a collective, the ranks of one node,
/// or the leaders of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of the rank in the group, less than `size`.
    pub rank: usize,
    /// Number of ranks in the group.
    pub size: usize,
}

impl Member {
    /// Returns the rank `steps` after this one, modulo `size`; `steps` is at most `size`.
    pub(super) fn ahead(self, steps: usize) -> usize {
        (self.rank + steps) % self.size
    }

    /// Returns the rank `steps` before this one, modulo `size`; `steps` is at most `size`.
    pub(super) fn behind(self, steps: usize) -> usize {
        (self.rank + self.size - steps) % self.size
    }

    /// Returns this rank renumbered relative to `root`, so that the root becomes rank 0.
    pub(super) fn relative_to(self, root: usize) -> Member {
        Member { rank: self.behind(root), size: self.size }
    }

    /// Returns ⌈log₂ size⌉, the number of rounds of an algorithm that doubles or halves the number
    /// of blocks in each round.
    pub(super) fn rounds(self) -> u32 {
        self.size.next_power_of_two().trailing_zeros()
    }
}

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
