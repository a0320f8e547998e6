//! Types that all folders use: element types of messages, operations of reductions, and errors of links
//! and of communicator calls. The text of a [`LinkError`] follows the name of the peer, which a
//! [`CommError`] adds, as in "rank 3 on n2 is lost: it closed the connection …".

use half::{bf16, f16};
use rlaunch_bootstrap::job::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

/// Element type as a run-time value, for callers in C and Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ElementType {
    /// IEEE 754 half precision.
    F16 = 0,
    /// bfloat16: the upper 16 bits of an [`ElementType::F32`].
    Bf16 = 1,
    /// IEEE 754 single precision.
    F32 = 2,
    /// IEEE 754 double precision.
    F64 = 3,
    /// Signed 32-bit integer.
    I32 = 4,
    /// Signed 64-bit integer.
    I64 = 5,
    /// Unsigned 8-bit integer, also used for raw bytes.
    U8 = 6,
    /// Unsigned 64-bit integer.
    U64 = 7,
}

impl ElementType {
    /// All element types, each at the index of its discriminant.
    pub const ALL: [ElementType; 8] = [
        ElementType::F16,
        ElementType::Bf16,
        ElementType::F32,
        ElementType::F64,
        ElementType::I32,
        ElementType::I64,
        ElementType::U8,
        ElementType::U64,
    ];

    /// Returns the size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            ElementType::U8 => 1,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 | ElementType::I32 => 4,
            ElementType::F64 | ElementType::I64 | ElementType::U64 => 8,
        }
    }

    /// Returns the short name that errors and `rlaunch bench` use, such as `f32`.
    pub fn name(self) -> &'static str {
        match self {
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::F32 => "f32",
            ElementType::F64 => "f64",
            ElementType::I32 => "i32",
            ElementType::I64 => "i64",
            ElementType::U8 => "u8",
            ElementType::U64 => "u64",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reduction operation. All operations are commutative, and integers wrap around on overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Sum.
    Sum = 0,
    /// Product.
    Product = 1,
    /// Minimum; NaN if either operand is NaN.
    Min = 2,
    /// Maximum; NaN if either operand is NaN.
    Max = 3,
}

impl Op {
    /// All operations, each at the index of its discriminant.
    pub const ALL: [Op; 4] = [Op::Sum, Op::Product, Op::Min, Op::Max];

    /// Returns the name that the Python interface uses, such as `sum`.
    pub fn name(self) -> &'static str {
        match self {
            Op::Sum => "sum",
            Op::Product => "prod",
            Op::Min => "min",
            Op::Max => "max",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Rust type of the elements that messages and collectives transfer.
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + 'static {
    /// Run-time value that stands for this type.
    const TYPE: ElementType;
}

macro_rules! elements {
    ($($rust:ty => $name:ident),*) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const TYPE: ElementType = ElementType::$name;
            }
        )*
    };
}

elements!(f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64, i32 => I32, i64 => I64, u8 => U8, u64 => U64);

/// Failure of the link to one other rank.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer's process or its end of the connection ended without a goodbye packet.
    #[error("it closed the connection without saying goodbye")]
    Gone,
    /// A system call failed.
    #[error("{operation}: {source}")]
    System {
        /// Attempted operation.
        operation: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
    /// An RDMA operation failed; the text names the device.
    #[error("{0}")]
    Rdma(String),
    /// A packet header has this kind, which rlaunch does not define.
    #[error("it sent a packet of unknown kind {0}")]
    UnknownPacket(u8),
    /// A packet violates the protocol; the text says how.
    #[error("it broke the protocol: {0}")]
    Protocol(&'static str),
    /// This rank could not connect to the peer when the connection was first needed; the text is
    /// the reason.
    #[error("{0}")]
    NotConnected(Arc<str>),
    /// Another rank reported in its goodbye packet that it had lost the peer. The field is the
    /// number of the reporting rank in the job.
    #[error("rank {0} reported it lost")]
    ReportedLost(usize),
    /// The launcher reported that the peer's process has ended with this status.
    #[error("it {0}")]
    Exited(ExitStatus),
    /// The launcher lost contact with the peer's node; the text is the symptom.
    #[error("its node is lost: {0}")]
    NodeLost(String),
    /// The launcher reported that the RDMA path to the peer's node is broken; the text describes
    /// the path and the symptom.
    #[error("{0}")]
    LinkDown(String),
    /// The peer's host has answered nothing for this long.
    #[error("its host has not answered for {} s: it is down, or the network to it is cut", .0.as_secs())]
    Silent(Duration),
    /// The peer's host has acknowledged no data for this long, although it answers a new connection.
    #[error(
        "its host answers, but data has not reached it for {} s: the network between drops full packets ({segment} bytes \
         of data each), or a firewall drops this connection; `rlaunch doctor -H A,B` with both hosts shows which",
        silent.as_secs()
    )]
    Unacknowledged {
        /// Time without any acknowledgement.
        silent: Duration,
        /// Bytes of data in a full packet.
        segment: u32,
    },
    /// This rank cancelled a message to or from the peer while the message was being transferred.
    #[error("a message to it was cancelled after part of it had been sent")]
    PartlySent,
}

/// Rank and host of a process, for error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerName {
    /// Rank in the job.
    pub rank: u32,
    /// Host as the user typed it; empty if the process was started without rlaunch.
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

/// Operation of a communicator, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Send to a rank.
    Send {
        /// Destination rank in the communicator.
        to: usize,
        /// Message tag.
        tag: u32,
    },
    /// Receive from one rank, or from any rank.
    Receive {
        /// Source rank in the communicator; any rank if `None`.
        from: Option<usize>,
        /// Message tag.
        tag: u32,
    },
    /// Collective with this name.
    Collective(&'static str),
    /// Creation of the communicator.
    Start,
    /// Abort of the job.
    Abort,
    /// Registration of memory with devices.
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

/// Failure of a communicator call.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation}: {cause}")]
pub struct CommError {
    /// Operation that failed.
    pub operation: Operation,
    /// Reason for the failure.
    pub cause: Cause,
}

/// Reason why a communicator call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// A rank has died, or the link to it has failed.
    #[error("{peer} is lost: {why}")]
    Lost {
        /// Rank that was lost.
        peer: PeerName,
        /// Failure that this rank or the launcher observed.
        why: Arc<LinkError>,
    },
    /// A rank has dropped its communicator and sends nothing more.
    #[error("{0} has left")]
    Left(PeerName),
    /// The job is ending; the text is the reason.
    #[error("{0}")]
    Aborted(Arc<str>),
    /// The wait exceeded `RLAUNCH_COMM_TIMEOUT`.
    #[error("timed out after {} s: {}", after.as_secs_f64(), missing(.waiting_for))]
    TimedOut {
        /// Timeout that was exceeded.
        after: Duration,
        /// Ranks that the call was still waiting for, as far as known.
        waiting_for: Vec<PeerName>,
    },
    /// The message is longer than the receive buffer.
    #[error("a message of {length} bytes from {peer} does not fit into a buffer of {room}")]
    Truncated {
        /// Sender of the message.
        peer: PeerName,
        /// Length of the message in bytes.
        length: u64,
        /// Length of the buffer in bytes.
        room: usize,
    },
    /// Ranks called a collective with different element counts.
    #[error(
        "{peer} called it with a different count: its message has {length} bytes, but {expected} \
         were expected"
    )]
    CountMismatch {
        /// Rank that gave a different element count than this rank.
        peer: PeerName,
        /// Length in bytes of the message from that rank.
        length: u64,
        /// Expected length in bytes.
        expected: usize,
    },
    /// The communicator has no such rank.
    #[error("there is no rank {rank} in a communicator of {size}")]
    NoSuchRank {
        /// Rank that was passed to the call.
        rank: usize,
        /// Number of ranks in the communicator.
        size: usize,
    },
    /// A buffer has the wrong length for the collective.
    #[error("{what} has {length} elements but should have {expected}")]
    BufferLength {
        /// Name of the buffer's parameter: `input`, `output` or `data`.
        what: &'static str,
        /// Length in elements.
        length: usize,
        /// Required length in elements.
        expected: usize,
    },
    /// The sender cancelled the message before it was received; the field names the sender.
    #[error("{0} cancelled the message before it was received")]
    Withdrawn(PeerName),
    /// A rank cancelled a collective. The communicator cannot run further collectives, because its
    /// ranks no longer agree on which call is next.
    #[error(
        "{by} cancelled {collective}, so the ranks of this communicator are at different calls: use \
         another communicator"
    )]
    OutOfStep {
        /// Rank that cancelled the collective.
        by: PeerName,
        /// Name of the cancelled collective.
        collective: &'static str,
    },
    /// The message length is not a multiple of the element size.
    #[error("a message of {length} bytes is not a whole number of {size}-byte elements")]
    PartialElement {
        /// Message length in bytes.
        length: usize,
        /// Element size in bytes.
        size: usize,
    },
    /// The callback of
    /// [`Communicator::set_interrupt_check`](crate::Communicator::set_interrupt_check) returned
    /// `true`.
    #[error("interrupted")]
    Interrupted,
    /// The request was cancelled before it completed.
    #[error("cancelled")]
    Cancelled,
    /// A forked child used a communicator that it inherited from its parent process.
    #[error("the communicator belongs to the process that forked this one")]
    Forked,
    /// A communicator or buffer could not be created; the text is the reason.
    #[error("{0}")]
    Start(Arc<str>),
}

fn missing(ranks: &[PeerName]) -> String {
    if ranks.is_empty() {
        return "no particular rank is missing".to_owned();
    }
    let names: Vec<String> = ranks.iter().take(8).map(ToString::to_string).collect();
    let more = ranks.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("waiting for {}{more}", names.join(", "))
}
