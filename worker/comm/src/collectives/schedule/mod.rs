//! Schedules: collective algorithms as data, independent of the network.
//!
//! A schedule is one rank's part of a collective: which elements it sends to and receives from
//! which rank, in which step. It is a pure function of the collective, the rank, the number of
//! ranks and the number of elements. Tests run the schedules of all ranks against each other in a
//! model.
//!
//! Rules that all algorithms keep:
//!
//! * Ranks and roots are less than the number of ranks.
//! * [`Buffer::Input`] is never written. In place, schedules use [`Buffer::Output`] for both
//!   buffers.
//! * A schedule for no elements is empty, and a schedule for one rank has no exchanges.
//! * Messages do not depend on whether a rank works in place, so some ranks may work in place while
//!   others do not.
//! * All ranks that obtain an element of the result compute it by the same tree of operations, so
//!   their results are bitwise equal if the operation is bitwise commutative.

pub mod all_gather;
pub mod all_reduce;
pub mod all_to_all;
pub mod barrier;
mod blocks;
pub mod broadcast;
mod builder;
pub mod by_node;
pub mod gather;
mod member;
#[cfg(test)]
mod model;
pub mod reduce;
pub mod reduce_scatter;
pub mod scatter;
#[cfg(test)]
mod tests;
mod tree;

pub use member::Member;

/// Schedule of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Steps, executed one after the other.
    pub steps: Vec<Step>,
    /// Length of the scratch buffer in elements.
    pub scratch: usize,
}

/// Step of a schedule: local operations in order, then all exchanges at the same time. The step
/// ends when all exchanges are complete. Spans that an exchange writes do not overlap any other
/// span of the step's exchanges, except as [`Exchange::ReceiveReduce`] permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Operations within the rank.
    pub local: Vec<Local>,
    /// Messages to and from other ranks. Messages between two ranks arrive in the order of the
    /// exchanges and steps that send them.
    pub exchange: Vec<Exchange>,
}

/// Operation within a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Copies a span to another span of the same length; the spans do not overlap.
    Copy {
        /// Source.
        from: Span,
        /// Destination.
        to: Span,
    },
    /// Reduces two spans into a third: `into = from ∘ with`, where ∘ is the collective's operation.
    /// `from` and `into` do not overlap; `with` is `into` itself or does not overlap it.
    Reduce {
        /// First operand.
        from: Span,
        /// Second operand.
        with: Span,
        /// Destination of the result.
        into: Span,
    },
}

/// Message between two ranks, as one of them sees it. A message has at least one element, since
/// both ranks know when there is nothing to send; barriers use [`Exchange::Signal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Sends a span.
    Send {
        /// Destination rank.
        to: usize,
        /// Elements to send.
        span: Span,
    },
    /// Receives a message that is as long as the span.
    Receive {
        /// Source rank.
        from: usize,
        /// Destination of the elements.
        span: Span,
    },
    /// Receives a message and reduces it with local elements: `span = received ∘ with`. `with` is
    /// `span` itself or does not overlap it; in the latter case `with` may be sent in the same
    /// step.
    ReceiveReduce {
        /// Source rank.
        from: usize,
        /// Local operand.
        with: Span,
        /// Destination of the result.
        span: Span,
    },
    /// Sends an empty message.
    Signal {
        /// Destination rank.
        to: usize,
    },
    /// Waits for an empty message.
    Await {
        /// Source rank.
        from: usize,
    },
}

/// Buffer of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// The caller's input. In place, this is the same memory as [`Buffer::Output`].
    Input,
    /// The caller's output.
    Output,
    /// Memory that exists only during the collective.
    Scratch,
}

/// Consecutive elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Buffer that contains the elements.
    pub buffer: Buffer,
    /// Index of the first element in the buffer.
    pub start: usize,
    /// Number of elements.
    pub length: usize,
}

impl Span {
    /// Returns the span of `length` elements of `buffer`, beginning at index `start`.
    pub fn new(buffer: Buffer, start: usize, length: usize) -> Span {
        Span { buffer, start, length }
    }

    /// Returns the span of the first `length` elements of `buffer`.
    pub fn first(buffer: Buffer, length: usize) -> Span {
        Span::new(buffer, 0, length)
    }
}
