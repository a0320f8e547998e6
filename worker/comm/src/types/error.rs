//! Why something did not work, each in a sentence that names the peer.

use rlaunch_bootstrap::job::ExitStatus;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What goes wrong on a link to one other rank.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer's process has ended, or its end of the link.
    #[error("it has ended without a word")]
    Gone,
    /// The system's reason.
    #[error("{operation}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// What the device said, which is named.
    #[error("{0}")]
    Rdma(String),
    /// Bytes that no rlaunch has sent.
    #[error("it sent a packet of unknown kind {0}")]
    UnknownPacket(u8),
    /// Packets that make no sense after each other.
    #[error("it sent a packet out of turn: {0}")]
    Protocol(&'static str),
    /// It was not met when it was needed.
    #[error("{0}")]
    NotConnected(Arc<str>),
    /// Another rank has lost it.
    #[error("rank {0} has lost it")]
    ReportedLost(usize),
    /// The launcher has seen how it ended.
    #[error("it {0}")]
    Exited(ExitStatus),
    /// The launcher hears nothing of its node any more.
    #[error("its node is lost: {0}")]
    NodeLost(String),
    /// The fabric watch found the RDMA to its node dead.
    #[error("{0}")]
    LinkDown(String),
    /// What was sent to it is not acknowledged, not even by its kernel.
    #[error("its host has not answered for {} s: the network between is cut, or it is down", .0.as_secs())]
    Silent(Duration),
    /// This rank gave up a message of which a part was sent.
    #[error("a message to it was given up when half of it was sent")]
    PartlySent,
}

/// A rank, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// Its number in the job.
    pub rank: u32,
    /// Its host as the user typed it; empty in a world of one.
    pub host: Arc<str>,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.host {
            "" => write!(f, "rank {}", self.rank),
            host => write!(f, "rank {} on {host}", self.rank),
        }
    }
}

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sending to a rank, with a tag.
    Send {
        /// In the communicator.
        to: usize,
        /// The message's.
        tag: u32,
    },
    /// Receiving, from any rank where none is named.
    Receive {
        /// In the communicator.
        from: Option<usize>,
        /// The message's.
        tag: u32,
    },
    /// A collective.
    Collective(&'static str),
    /// Becoming ready.
    Start,
    /// Ending the job.
    Abort,
    /// Telling devices of memory.
    Register,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Send { to, tag } => write!(f, "send to rank {to} (tag {tag})"),
            Operation::Receive { from: Some(from), tag } => {
                write!(f, "receive from rank {from} (tag {tag})")
            }
            Operation::Receive { from: None, tag } => {
                write!(f, "receive from any rank (tag {tag})")
            }
            Operation::Collective(name) => f.write_str(name),
            Operation::Start => f.write_str("start"),
            Operation::Abort => f.write_str("abort"),
            Operation::Register => f.write_str("register"),
        }
    }
}

/// Why a call of the communicator failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation}: {cause}")]
pub struct CommError {
    /// What was being done.
    pub operation: Operation,
    /// Why it failed.
    pub cause: Cause,
}

/// Why.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// A rank is dead, or the way to it is.
    #[error("{peer} is lost: {why}")]
    Lost {
        /// Which.
        peer: PeerName,
        /// What was seen of it.
        why: Arc<LinkError>,
    },
    /// A rank has given up its communicator, and will never answer.
    #[error("{0} has left")]
    Left(PeerName),
    /// The job is at its end.
    #[error("{0}")]
    Aborted(Arc<str>),
    /// `RLAUNCH_COMM_TIMEOUT` has passed.
    #[error("not within {} s: {}", after.as_secs_f64(), missing(.waiting_for))]
    TimedOut {
        /// How long it was.
        after: Duration,
        /// Who has not answered, as far as that is known.
        waiting_for: Vec<PeerName>,
    },
    /// The message is longer than the memory for it.
    #[error("a message of {length} bytes from {peer}, and room for {room}")]
    Truncated {
        /// Who sent it.
        peer: PeerName,
        /// Of the message.
        length: u64,
        /// In bytes.
        room: usize,
    },
    /// Ranks have called a collective with different counts.
    #[error(
        "{peer} has called it with another count: its message has {length} bytes, and {expected} \
         were expected"
    )]
    CountMismatch {
        /// Which.
        peer: PeerName,
        /// Of its message, in bytes.
        length: u64,
        /// In bytes.
        expected: usize,
    },
    /// No such rank.
    #[error("there is no rank {rank} among {size}")]
    NoSuchRank {
        /// As it was given.
        rank: usize,
        /// Of the communicator.
        size: usize,
    },
    /// A buffer that does not fit.
    #[error("{what} has {length} elements, and should have {expected}")]
    BufferLength {
        /// `input` or `output`.
        what: &'static str,
        /// In elements.
        length: usize,
        /// In elements.
        expected: usize,
    },
    /// The sender gave up the message while this rank waited for it, or before.
    #[error("{0} gave up the message before it was received")]
    Withdrawn(PeerName),
    /// A rank gave up a collective of the communicator, so that its ranks wait for each other in
    /// vain from there on.
    #[error(
        "{by} gave up {collective} on this communicator, whose ranks are at different calls since: \
         use another"
    )]
    OutOfStep {
        /// The rank.
        by: PeerName,
        /// The collective.
        collective: &'static str,
    },
    /// A message that is no whole number of the elements that were wanted.
    #[error("a message of {length} bytes, which is no whole number of elements of {size}")]
    PartialElement {
        /// In bytes.
        length: usize,
        /// Of an element, in bytes.
        size: usize,
    },
    /// What [`Communicator::set_interrupt_check`](crate::Communicator::end_waits_by) was given said so.
    #[error("interrupted")]
    Interrupted,
    /// The request was given up before it was done.
    #[error("given up")]
    Cancelled,
    /// A process was forked, and called into its parent's communicator.
    #[error("the communicator belongs to the process that forked this one")]
    Forked,
    /// The process could not join the others.
    #[error("{0}")]
    Start(Arc<str>),
}

fn missing(ranks: &[PeerName]) -> String {
    if ranks.is_empty() {
        return "nobody in particular is missing".to_owned();
    }
    let names: Vec<String> = ranks.iter().take(8).map(ToString::to_string).collect();
    let more = ranks.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("waiting for {}{more}", names.join(", "))
}
