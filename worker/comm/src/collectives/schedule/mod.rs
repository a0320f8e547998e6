//! Schedules: collective algorithms as data, without a network.
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
//! * With no elements a schedule is empty, and with one rank it copies at most.
//! * Messages do not depend on whether a rank works in place, so ranks may differ in that.
//! * Every rank that receives a reduced element reduces it in the same tree of operations, so
//!   results are bitwise equal if the operation is bitwise commutative.

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

/// Step of a schedule: local operations in order, then all exchanges at the same time. It ends when
/// all exchanges are complete. Spans that an exchange writes do not overlap any other span of the
/// step's exchanges, except as [`Exchange::ReceiveFold`] permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Operations within the rank.
    pub local: Vec<Local>,
    /// Messages to and from other ranks. Those between two ranks arrive in the order of exchanges
    /// and steps.
    pub exchange: Vec<Exchange>,
}

/// Operation within a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Copies a span to another of the same length; they do not overlap.
    Copy {
        /// Source.
        from: Span,
        /// Destination.
        to: Span,
    },
    /// Reduces two spans into a third: `into = from ∘ with`. `from` and `into` do not overlap;
    /// `with` is `into` itself or does not overlap it.
    Fold {
        /// First operand.
        from: Span,
        /// Second operand.
        with: Span,
        /// Result.
        into: Span,
    },
}

/// Message between two ranks. It has at least one element, since both ranks know when there is
/// nothing to send; barriers use [`Exchange::Signal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Sends a span.
    Send {
        /// Destination rank.
        to: usize,
        /// Elements to send.
        span: Span,
    },
    /// Receives a message of the same length as the span.
    Receive {
        /// Source rank.
        from: usize,
        /// Destination of the elements.
        span: Span,
    },
    /// Receives a message and reduces it with local elements: `span = received ∘ with`. `with` is
    /// `span` itself or does not overlap it; in the latter case it may be sent in the same step.
    ReceiveFold {
        /// Source rank.
        from: usize,
        /// Local operand.
        with: Span,
        /// Result.
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
    /// The caller's input. In place it is the same memory as [`Buffer::Output`].
    Input,
    /// The caller's output.
    Output,
    /// Memory that exists only during the collective.
    Scratch,
}

/// Consecutive elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Buffer that contains them.
    pub place: Buffer,
    /// Index of the first element.
    pub start: usize,
    /// Number of elements.
    pub length: usize,
}

impl Span {
    /// Returns the span of `length` elements from `start`.
    pub fn new(place: Buffer, start: usize, length: usize) -> Span {
        Span { place, start, length }
    }

    /// Returns the span of the first `length` elements.
    pub fn first(place: Buffer, length: usize) -> Span {
        Span::new(place, 0, length)
    }
}
