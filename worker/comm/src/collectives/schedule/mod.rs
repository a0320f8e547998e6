//! Who sends what to whom in which step: collectives as data, without a network.
//!
//! A schedule is one rank's part. It is a pure function of the collective, the rank, how many
//! ranks there are and how many elements; tests run the schedules of all ranks against each other.
//!
//! What the algorithms have in common:
//!
//! * Ranks and roots are less than the number of ranks.
//! * [`Buffer::Input`] is never written. In place, schedules name [`Buffer::Output`] for what is both.
//! * Of no elements there is nothing to do; one rank alone copies at most.
//! * Messages do not depend on who works in place, so ranks may differ in that.
//! * An element is reduced by the same tree of operations for all who get it: results are equal to
//!   the bit where the operation is commutative to the bit.

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

/// One rank's part in a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// One after the other.
    pub steps: Vec<Step>,
    /// How many elements of scratch memory it needs.
    pub scratch: usize,
}

/// What happens together. First the local actions, in order; then all that is sent and received,
/// at once. It ends when all of it is done. What is written by the exchange overlaps nothing else
/// of the exchange, but for what [`Exchange::ReceiveFold`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Within the rank.
    pub local: Vec<Local>,
    /// With other ranks. What goes from one rank to another in several exchanges or steps arrives
    /// in that order.
    pub exchange: Vec<Exchange>,
}

/// Something a rank does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// Copies; the lengths are equal, the spans apart.
    Copy {
        /// What.
        from: Span,
        /// Where to.
        to: Span,
    },
    /// Reduces two spans to a third: into = from ∘ with. `from` and `into` are apart, `with` is
    /// `into` itself or apart from it.
    Fold {
        /// What.
        from: Span,
        /// With what.
        with: Span,
        /// Where to.
        into: Span,
    },
}

/// Something between two ranks. Never of no elements: both ends know that there is nothing to say.
/// A barrier sends [`Exchange::Signal`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Sends a span.
    Send {
        /// The rank.
        to: usize,
        /// What.
        span: Span,
    },
    /// Receives a span of the same length.
    Receive {
        /// The rank.
        from: usize,
        /// Where to.
        span: Span,
    },
    /// Receives, and reduces that with what is here: span = received ∘ with. `with` is `span`
    /// itself or apart from it, and may be sent in the same exchange in the latter case.
    ReceiveFold {
        /// The rank.
        from: usize,
        /// With what.
        with: Span,
        /// Where to.
        span: Span,
    },
    /// Sends nothing, which is something.
    Signal {
        /// The rank.
        to: usize,
    },
    /// Waits for a signal.
    Await {
        /// The rank.
        from: usize,
    },
}

/// Where elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// What the caller gives. In place, it is the same memory as [`Buffer::Output`].
    Input,
    /// What the caller gets.
    Output,
    /// Memory of the schedule's own.
    Scratch,
}

/// Some elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Of what.
    pub place: Buffer,
    /// The first.
    pub start: usize,
    /// How many.
    pub length: usize,
}

impl Span {
    /// `length` elements of `place` from `start` on.
    pub fn new(place: Buffer, start: usize, length: usize) -> Span {
        Span { place, start, length }
    }

    /// The first `length` elements of `place`.
    pub fn first(place: Buffer, length: usize) -> Span {
        Span::new(place, 0, length)
    }
}
