//! Inspection of a running job: what its processes use, and where they are.
//!
//! The launcher sends [`ToAgent::Inspect`](super::control::ToAgent::Inspect) at the request of a
//! user (`rlaunch jobs`, `rlaunch stack`, `rlaunch monitor`) or of the hang watch, and every agent
//! answers with one [`FromAgent::Inspected`](super::control::FromAgent::Inspected). A job that is
//! not inspected pays nothing.

use crate::id::Rank;
use crate::inventory::traffic::HostCounters;
use serde::{Deserialize, Serialize};

/// Question about a node or its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inspection {
    /// CPU time, memory and waits of every rank.
    Usage,
    /// Stacks of every thread of these ranks; an empty list means all ranks of the node.
    Stacks {
        /// Ranks of the node to look at.
        ranks: Vec<Rank>,
        /// Whether to read native frames too, not only those of interpreters.
        native: bool,
    },
    /// Counters of the whole host.
    Counters,
    /// Positions of all ranks of the node in the collective operations of their libraries.
    Collectives,
}

/// Answer of a node to an [`Inspection`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InspectionResult {
    /// Answer to [`Inspection::Usage`], by rank.
    Usage(Vec<RankUsage>),
    /// Answer to [`Inspection::Stacks`], by rank.
    Stacks(Vec<RankStacks>),
    /// The node cannot answer, for this reason.
    Failed(String),
    /// Answer to [`Inspection::Counters`].
    Counters(HostCounters),
    /// Answer to [`Inspection::Collectives`], a position for each rank and group.
    Collectives(Vec<GroupPosition>),
}

/// Resources that the processes of a rank use: those of the rank's own process and of its
/// descendants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankUsage {
    /// Rank that the processes belong to.
    pub rank: Rank,
    /// Process id of the rank on its node.
    pub pid: u32,
    pub processes: u32,
    /// CPU time in user code since the start, in milliseconds.
    pub user_ms: u64,
    /// CPU time in the kernel since the start, in milliseconds.
    pub system_ms: u64,
    /// Part of both times that main threads have used, and children that have ended, in microseconds.
    pub main_us: u64,
    /// Number of times that the kernel has let a main thread run; 0 if it does not count them.
    pub main_runs: u64,
    /// Resident memory, in bytes. Pages that several processes share are counted in each.
    pub resident: u64,
    /// State of the rank's own process, as in `/proc/PID/stat`: `R`, `S`, `D`, `T`, `Z`, …
    pub state: char,
    /// Time for which the rank has waited for others in calls of rlaunch's communicator, in milliseconds; `None` if it
    /// has not used the communicator.
    pub waited_ms: Option<u64>,
}

/// Stacks of the processes of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStacks {
    /// Rank that the processes belong to.
    pub rank: Rank,
    /// The rank's own process first, then its descendants.
    pub processes: Vec<ProcessStacks>,
}

/// Stacks of the threads of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStacks {
    /// Process id on the node.
    pub pid: u32,
    /// Name of the program, from `/proc/PID/comm`.
    pub program: String,
    /// Reason why frames could not be read, such as missing permission; the threads then have
    /// states and waits, but no frames.
    pub problem: Option<String>,
    /// Threads; the main thread first.
    pub threads: Vec<ThreadStack>,
}

/// Stack of a thread, and what the thread waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStack {
    /// Thread id on the node.
    pub tid: u32,
    /// Name of the thread, from the interpreter or from `/proc/PID/task/TID/comm`.
    pub name: String,
    /// State, as in `/proc/PID/task/TID/stat`.
    pub state: char,
    /// Whether the thread holds the interpreter's lock; `None` if the process is no interpreter.
    pub holds_gil: Option<bool>,
    /// Event that the thread waits for; `None` if it runs.
    pub waits_for: Option<Wait>,
    /// Frames, innermost first.
    pub frames: Vec<StackFrame>,
}

/// Event that a blocked thread waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// Lock or condition variable of the process, by the futex system call.
    Futex,
    /// Data from, or room at, the other end of a socket.
    Socket {
        /// Other end of the connection, such as `10.0.0.2:4711`; `None` if it is not connected.
        peer: Option<String>,
        /// Rank or host that has this address, such as `rank 3 on b`; added by the launcher, if it
        /// is an address of the job's nodes.
        owner: Option<String>,
    },
    /// Data from, or room in, a pipe or FIFO.
    Pipe {
        /// Path of a FIFO, or `pipe:[INODE]`.
        name: String,
    },
    /// File on a disk or of a network file system.
    File { path: String },
    /// Completion of an RDMA operation.
    Rdma,
    /// One of several descriptors, by poll, select or epoll.
    Descriptors,
    /// Passing of time.
    Sleep,
    /// Exit of a child process.
    Child,
    /// Signal that continues the stopped process.
    Stopped,
    /// Something in the kernel, by the name of its wait channel or system call.
    Kernel {
        /// Wait channel (`/proc/PID/wchan`), or name of the system call.
        channel: String,
    },
    /// Data from the standard input of the rank, which is the launcher's if the rank reads that.
    Stdin,
}

/// Frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StackFrame {
    pub function: String,
    /// Source file of an interpreter's frame, or the library of a native frame.
    pub file: String,
    /// Line number; 0 if unknown.
    pub line: u32,
    /// Whether the frame is native code rather than an interpreter's.
    pub native: bool,
}

/// Position of a rank in the collective operations of a group of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPosition {
    pub rank: Rank,
    /// Number of the process among those that ranks have started, as torchrun does; `None` for the rank's own.
    pub started: Option<u32>,
    /// Name of the group: the hash of an NCCL communicator, or the name of a process group of torch.
    pub group: String,
    /// Number of ranks in the group.
    pub size: u32,
    /// How far the rank is.
    pub progress: GroupProgress,
}

/// Progress of a rank in a group, as far as a library tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupProgress {
    /// Numbers of operations that the rank has launched, by kind, such as `AllReduce`; kinds that it
    /// has not used are left out. NCCL's RAS service counts them.
    Launched(Vec<(String, u64)>),
    /// Operation that the rank entered last, from torch's flight recorder.
    Entered(EnteredOperation),
    /// NCCL's RAS service has had no answer from the rank's process.
    Missing {
        /// Whether NCCL takes the process for dead.
        is_dead: bool,
    },
}

/// Collective operation that a rank has entered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnteredOperation {
    /// Number of the operation in its group, from 1.
    pub number: u64,
    /// Name, such as `all_reduce`.
    pub name: String,
    pub is_complete: bool,
    /// Function, file and line that called it, such as `backward train.py:88`; empty if unknown.
    pub caller: String,
}

/// Order to the program that looks into processes, `rlaunch-stack`, on its stdin. It answers on its
/// stdout and exits. Both are frames of [`crate::frame`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackOrder {
    /// Ranks, each with its processes: the rank's own first.
    pub processes: Vec<(Rank, Vec<u32>)>,
    /// Subject, which decides the type of the answer.
    pub subject: StackSubject,
    /// Time after which the program answers with what it has read, in milliseconds.
    pub limit_ms: u32,
}

/// Subject of a [`StackOrder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StackSubject {
    /// Stacks; the answer is a `Vec<RankStacks>`.
    Stacks {
        /// Whether to read native frames too.
        native: bool,
    },
    /// Positions in collective operations; the answer is a `Vec<GroupPosition>`.
    Collectives,
}

/// Maximum number of processes of a rank whose stacks are read.
pub const MAX_STACK_PROCESSES: usize = 32;
