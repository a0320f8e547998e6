//! Schedules: collective algorithms as data, independent of the network.
//!
//! A schedule is one rank's part of a collective: which elements the rank sends to and receives
//! from which other rank, in which step. A schedule is a pure function of the collective, the rank,
//! the number of ranks and the number of elements. Tests run the schedules of all ranks against
//! each other, with messages in a model instead of a network.
//!
//! | word | meaning |
//! |---|---|
//! | member | rank in the group for which a schedule is built: all ranks, those of a node, or leaders |
//! | leader | the rank of a node that exchanges messages with other nodes in a hierarchical algorithm |
//! | block | part of a buffer that belongs to one rank, such as the part that a scatter sends to it |
//! | span | consecutive elements of a buffer |
//! | round | step in which ranks exchange messages |
//! | in place | without a separate input: the caller passes one buffer as input and output |
//!
//! Rules that all algorithms keep:
//!
//! * Numbers of ranks and roots are less than the number of ranks.
//! * [`Buffer::Input`] is never written. In place, the input is in [`Buffer::Output`]; only a
//!   scatter's root in place has an Input and no Output.
//! * A schedule for no elements is empty, and a schedule for one rank has no exchanges.
//! * A rank sends and receives the same messages whether or not it works in place, so some ranks
//!   may work in place while others do not.
//! * All ranks that obtain an element of the result compute it by the same tree of operations, so
//!   their results are bitwise equal if the operation is bitwise commutative.

pub mod all_reduce;
mod builder;
pub mod by_node;
pub mod exchange;
#[cfg(test)]
mod model;
pub mod rooted;
#[cfg(test)]
mod tests;
pub use builder::Member;

/// Schedule of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Steps, executed one after the other.
    pub steps: Vec<Step>,
    /// Length of the scratch buffer in elements.
    pub scratch: usize,
}

/// Step of a schedule: local operations in order, then all exchanges at the same time. The step
/// ends when all exchanges are complete. A span that an exchange writes does not overlap any other
/// span of the step's exchanges, except as [`Exchange::ReceiveReduce`] permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Copies and reductions in the rank's own buffers.
    pub local: Vec<Local>,
    /// Messages to and from other ranks. Messages from one rank to another arrive in the order in
    /// which the sender's schedule lists them.
    pub exchange: Vec<Exchange>,
}

/// Operation on the rank's own buffers, without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Copies a span to another span of the same length; the spans do not overlap.
    Copy {
        /// Elements to copy.
        from: Span,
        /// Elements that the copy overwrites.
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

/// Message that the rank sends to or receives from another rank. Messages that carry data have at
/// least one element; only those of barriers, [`Exchange::Signal`] and [`Exchange::Await`], are
/// empty.
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
    /// Receives a message and reduces it with local elements: `span = received ∘ with`, where ∘ is
    /// the collective's operation. `with` is `span` itself or does not overlap it. If `with` does
    /// not overlap `span`, the same step may also send `with`.
    ReceiveReduce {
        /// Source rank.
        from: usize,
        /// Local elements, the second operand.
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

/// Buffer that a schedule reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Caller's input. In place, a schedule reads the input from [`Buffer::Output`] instead.
    Input,
    /// Caller's output.
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
