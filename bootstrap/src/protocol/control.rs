//! Messages between the launcher and an agent on their control channel.
//!
//! The channel is a byte stream in each direction, usually stdin and stdout of an SSH session. The
//! agent sends first. The launcher skips anything that the login shell printed before (banners,
//! `echo` in a profile), up to [`HELLO_MAGIC`]. After that, both directions carry frames of
//! [`crate::frame`].
//!
//! The first frame is [`FromAgent::Hello`] with the protocol version. A job goes through these
//! steps:
//!
//! ```text
//! agent                         launcher
//!   Hello             ──────▶
//!                     ◀──────   CheckCopy         if the job has a working tree
//!   CopyChecked       ──────▶
//!                     ◀──────   PatchCopy         if little of it has changed
//!   CopyPatched       ──────▶
//!                     ◀──────   Job, File…
//!   Prepared | Refused ─────▶                     the launcher waits for every node
//!                     ◀──────   Helper            nodes with RDMA: the prover
//!   NeedsHelper       ──────▶   ◀── HelperPart…   if the node has no copy of the prover
//!                     ◀──────   Join              join the tree of agents ([`crate::rendezvous`])
//!                     ◀──────   LibraryPart…      if the node has no copy ([`crate::job::library`])
//!   Edge              ──────▶
//!                     ◀──────   Prove             nodes with RDMA ([`crate::protocol::mesh`])
//!   RoundDone         ──────▶
//!                     ◀──────   Table             to the root, which sends it down the tree
//!   TableEverywhere   ──────▶                     from the root
//!                     ◀──────   Start
//!   Started, Output…  ──────▶   ◀── Credit, Signal, Resize
//!   StdinCredit       ──────▶   ◀── Stdin…        if ranks of the node read standard input
//!   PortOpen          ──────▶                     if an application waits for the port
//!                     ◀──────   StartApplication  for an application that has waited
//!   RankError, Exited ──────▶
//!                     ◀──────   Inspect           on request: usage, stacks
//!   Inspected         ──────▶
//!   Session           ──────▶   ◀── Session       on request: a command beside a rank
//!                     ◀──────   JobEvent          failures of ranks, nodes and links, for the ranks
//!                     ◀──────   End               after a failure, or when the user asks for it
//!   Done              ──────▶                     nothing of the job is left on the node
//!                     ◀──────   End               nor on any other: agents with children in the tree exit
//! ```
//!
//! `Relay` is used in both directions, for edges of the tree that are relayed through the launcher.
//!
//! An agent may send output only with credit ([`Job::output_window`], [`ToAgent::Credit`]), and the
//! launcher may send standard input only with credit ([`FromAgent::StdinCredit`]). All other
//! messages need no credit and overtake output and input that wait for credit.

pub use crate::frame::{FrameError, FrameReader, MAX_FRAME, MAX_NOISE, encode};
pub use crate::protocol::session::Stream;

use crate::id::{JobId, NodeId, Rank};
use crate::inventory::Inventory;
use crate::job::library::NodeLibrary;
use crate::job::{
    AwaitedPort, ExitStatus, Job, NodeFacts, Notice, Problem, RankSetup, TerminalSize,
};
use crate::protocol::inspection::{Inspection, InspectionResult};
use crate::protocol::mesh::{PathEvent, PathOutcome, ProofRound, RoundCost};
use crate::protocol::rank::JobEvent;
use crate::protocol::session::{FromSession, ToSession};
use crate::rendezvous::message::MissingRanks;
use crate::rendezvous::oob::{EdgeReport, ParentPeer};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Version of these messages. Every change of a message needs a new number. Launcher and agent are
/// normally of the same build; they differ only if `--agent` names another agent.
pub const PROTOCOL_VERSION: u16 = 32;

/// Words with which an agent ends where it has no /proc. It could find neither its own file nor its ranks.
pub const NO_PROC: &str = "/proc is not mounted on this host";

/// Bytes that separate the output of the login shell from the agent's first frame. No shell prints
/// them by accident.
pub const HELLO_MAGIC: &[u8] = b"\n\x02rlaunch-agent-speaks\x03\n";

/// Maximum amount of output in one frame, in bytes. A frame of another kind waits until at most
/// this much output has been sent.
pub const MAX_OUTPUT: usize = 32 << 10;

/// Maximum amount of standard input in one frame, in bytes.
pub const MAX_STDIN: usize = 32 << 10;

/// Maximum amount of standard input that is on its way to a node or buffered in its agent, in
/// bytes.
pub const STDIN_WINDOW: u32 = 256 << 10;

/// Returns how many bytes of [`STDIN_WINDOW`] a frame with `length` bytes of standard input uses.
/// It is at least 1 KiB, because a small frame occupies more memory than its bytes.
pub fn stdin_cost(length: usize) -> u32 {
    const LEAST: usize = 1 << 10;
    u32::try_from(length.max(LEAST)).unwrap_or(u32::MAX)
}

/// Maximum size of a part of a file in one frame, in bytes.
pub const MAX_FILE_CHUNK: usize = 256 << 10;

/// Maximum size of a file in which a rank has left its error, in bytes. A longer one is ignored.
pub const MAX_ERROR_FILE: usize = 64 << 10;

/// Splits a file into the parts that frames carry: parts of at most [`MAX_FILE_CHUNK`] bytes, then
/// an empty part that marks the end of the file.
pub fn file_parts(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    content.chunks(MAX_FILE_CHUNK).chain(std::iter::once(&[][..]))
}

/// Maximum time that either end may let pass without sending a frame. An end that has nothing else
/// to send sends a beat.
pub const BEAT: Duration = Duration::from_secs(2);

/// Message from the launcher to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Question what the copy of a working tree contains, before the job. It is the first message of all, so that agents
    /// look while other hosts are being reached.
    CheckCopy {
        /// Directory of the copy, with a seal beside it ([`crate::job::seal`]). `~/` is the home directory.
        #[serde(with = "crate::serde_path")]
        copy: PathBuf,
        /// The job, and the node's number in it.
        job: JobId,
        node: NodeId,
    },
    /// Encoded patch (`rlaunch_copy::Patch`) that makes the copy which the agent has found what it has to be. Sent to the
    /// node that holds it.
    PatchCopy(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Description of the job, to prepare for.
    Job(Box<Job>),
    /// Next part of a preloaded file; an empty part marks the end of the file.
    File {
        /// Index of the file in [`Job::preload`].
        index: u32,
        /// Content of the part, at most [`MAX_FILE_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Hash and size of a helper program's executable: the prover's for nodes with RDMA, that of
    /// the reader of stacks before the first question about stacks, that of the copier behind a job
    /// whose ranks run it ([`Job::runs_copier`]).
    Helper(Helper, HelperFile),
    /// Next part of a helper program's executable, after [`FromAgent::NeedsHelper`]; an empty part
    /// marks the end of the file.
    HelperPart(Helper, #[serde(with = "serde_bytes")] Vec<u8>),
    /// Next part of the library for ranks, sent if the node has no copy; an empty part marks the
    /// end.
    LibraryPart(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Request to join the tree of agents. Sent when every node is prepared.
    Join {
        /// Parent of this node in the tree; `None` for the root.
        parent: Option<ParentPeer>,
    },
    /// Request to prove these paths at the same time as the other nodes. Sent when every node has
    /// joined the tree.
    Prove(ProofRound),
    /// Request to keep only the queue pairs of these paths, close all others, and report failures
    /// of these paths. Sent after the last round.
    WatchPaths {
        /// Identifiers of the paths ([`crate::protocol::mesh::MeshPath::id`]).
        ids: Vec<u32>,
        /// Interval between beats on each path, in milliseconds.
        beat_ms: u32,
    },
    /// Encoded endpoints of the peer, while a path that has failed is proved again. The launcher
    /// forwards them when both nodes have sent [`FromAgent::PathEndpoints`] for the same step.
    /// Empty once the peer has connected its queue pair.
    PeerEndpoints(Vec<Vec<u8>>),
    /// Encoded rank table. Sent to the root of the tree, which passes it on to all nodes.
    Table(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Bytes from a neighbour in the tree, relayed because there is no TCP connection to the
    /// neighbour.
    Relay {
        /// Neighbour that sent the bytes.
        from: NodeId,
        /// Relayed bytes, at most [`MAX_FILE_CHUNK`].
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Request to start the ranks. Sent when every node has the rank table.
    Start {
        /// Settings of the node's ranks, indexed by local rank.
        ranks: Vec<RankSetup>,
        /// Loopback port at which the agent must serve the rendezvous store to Horovod's ranks;
        /// `None` if it need not.
        horovod: Option<u16>,
        /// TCP ports to try until they accept a connection; see [`FromAgent::PortOpen`].
        ports: Vec<AwaitedPort>,
    },
    /// Request to start the ranks of an application that has waited for another one.
    StartApplication {
        /// Number of the application ([`crate::job::Application::index`]).
        index: u32,
    },
    /// Permission to send this many more bytes of output.
    Credit(u32),
    /// Next part of standard input, at most [`MAX_STDIN`] bytes, for every rank of the node that
    /// reads it. An empty part marks the end of the input.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Event of the job, to be passed on to the ranks: they may be waiting for ranks that have
    /// ended.
    JobEvent(JobEvent),
    /// Request to send the signal with this number to every rank.
    Signal(i32),
    /// New size of the user's terminal, for ranks whose stdout is a pseudoterminal; all ranks are sent SIGWINCH.
    Resize(TerminalSize),
    /// Request to end every rank with SIGTERM, and with SIGKILL after the grace period.
    End {
        /// Whether to send SIGKILL immediately instead.
        now: bool,
    },
    /// Request to stop the ranks, because the user is stopping the launcher. The launcher sends no
    /// beats until it runs again.
    Suspend,
    /// Request to continue the stopped ranks, because the launcher runs again.
    Resume,
    /// Question about the ranks of the node, answered by [`FromAgent::Inspected`] once they run.
    Inspect {
        /// Number of the question, repeated in the answer.
        id: u32,
        what: Inspection,
    },
    /// Message for a session beside a rank ([`crate::protocol::session`]).
    Session {
        /// Number of the session; the launcher uses each number once.
        id: u32,
        what: ToSession,
    },
    /// Sign of life, without content.
    Beat,
}

/// Copy of a working tree that is what its seal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundCopy {
    /// Hash of what it contains.
    pub content: [u8; 32],
    /// First node of the job that has found the copy: another one if they share the directory, as that of a home on a file
    /// server.
    pub holder: NodeId,
}

/// Reason for which an agent ends the ranks of its node by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    /// Nothing was received from the launcher for longer than the node timeout, or the launcher timeout.
    LauncherSilent {
        /// Time for which nothing was received, in seconds.
        for_s: u32,
    },
    /// The agent or its guardian got this signal, or the guardian died.
    Signal(i32),
}

/// Message from an agent to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// First message on the channel.
    Hello {
        /// Version of the messages that the agent uses ([`PROTOCOL_VERSION`]).
        version: u16,
        facts: NodeFacts,
    },
    /// Answer to [`ToAgent::CheckCopy`]: `None` if there is no copy, or something in it is not what its seal says.
    CopyChecked(Option<FoundCopy>),
    /// Answer to [`ToAgent::PatchCopy`].
    CopyPatched {
        /// Reason why the copy is not what it has to be.
        failed: Option<String>,
    },
    /// Preparation is complete, and every condition of the job holds on this node.
    Prepared {
        /// Facts that the user should know.
        notices: Vec<Notice>,
        /// TCP ports that the agent has reserved for ranks: as many as [`Job::reserved_port_count`], and one
        /// more on a node with GPUs if possible.
        ports: Vec<u16>,
        /// Addresses at which the node's children in the tree can connect to its agent.
        listeners: Vec<SocketAddr>,
        /// Hardware and system software of the node.
        inventory: Box<Inventory>,
        /// Location of the library for ranks on this node; `None` if the job has none.
        library: Option<NodeLibrary>,
    },
    /// The library for ranks could not be installed. The ranks run without it.
    NoLibrary {
        /// Reason why the installation failed.
        cause: String,
    },
    /// Result of connecting to the parent in the tree: the edge, or the failed attempts if the edge
    /// must be relayed through the launcher.
    Edge(EdgeReport),
    /// The TCP connection of an edge broke; from now on the edge is relayed through the launcher.
    EdgeBroke {
        /// Neighbour in the tree at the other end of the edge.
        peer: NodeId,
        /// Symptom, such as the error of the socket.
        how: String,
    },
    /// The node has no copy of the program that [`ToAgent::Helper`] described, so the launcher must
    /// send it.
    NeedsHelper(Helper),
    /// Results of a round of proofs for the paths of this node.
    RoundDone {
        /// Number of the round ([`ProofRound::number`]).
        round: u32,
        /// Outcome of each path of this node in the round.
        outcomes: Vec<PathOutcome>,
        /// Resources that the round used on this node.
        cost: RoundCost,
    },
    /// Encoded endpoints of this node, while a path that has failed is proved again. The launcher
    /// forwards them to the peer as [`ToAgent::PeerEndpoints`].
    PathEndpoints {
        /// Number of the round ([`ProofRound::number`]).
        round: u32,
        /// Endpoints of this node; empty once this node has connected its queue pair.
        endpoints: Vec<Vec<u8>>,
    },
    /// Change of the state of a watched path.
    PathEvent(PathEvent),
    /// Every node has received the rank table. Sent by the root of the tree.
    TableEverywhere,
    /// Bytes to be relayed to a neighbour in the tree, because there is no TCP connection to the
    /// neighbour.
    Relay {
        /// Neighbour that must receive the bytes.
        to: NodeId,
        /// Relayed bytes, at most [`MAX_FILE_CHUNK`].
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Ranks have been waiting for other ranks for a while. Sent by the root of the tree.
    Waiting {
        /// Description of the operation in which they wait, such as `barrier "x"`.
        what: String,
        /// Time for which the first rank has waited, in milliseconds.
        waited_ms: u64,
        /// Ranks that have not arrived at the operation.
        missing: MissingRanks,
    },
    /// Ranks have been waiting for a key without a value for a while. Sent by the root of the tree.
    WaitingForKey {
        /// Namespace and name of the key, as text for the user.
        key: String,
        /// Time for which the first rank has waited, in milliseconds.
        waited_ms: u64,
    },
    /// A rank, or rlaunch itself, aborts the job.
    Aborted {
        /// Rank that called for the abort; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason given by the rank.
        text: String,
        /// Exit code that an MPI program passed to `MPI_Abort`; `None` for an abort by other means.
        code: Option<i32>,
    },
    /// A rank adds a text to the event log that `--events` writes.
    RankEvent {
        /// Rank that sent the text.
        rank: Rank,
        text: String,
    },
    /// The job cannot run on this node. The agent has not started any rank.
    Refused {
        /// All problems that were found, at least one.
        problems: Vec<Problem>,
    },
    /// The process of a rank was started.
    Started {
        rank: Rank,
        /// Process id of the rank on its node.
        pid: u32,
    },
    /// A port of [`ToAgent::Start`] has accepted a connection, so the application that waits for
    /// the port may start.
    PortOpen {
        /// Identifier of the port ([`AwaitedPort::id`]).
        id: u32,
    },
    /// Output of a rank. Empty data marks the end of the stream. The data ends with a line break,
    /// unless the line is longer than a frame, the rank ended in the middle of it, or no more of it
    /// has come for a while. Data without the line break has [`MAX_OUTPUT`] bytes in the first case
    /// alone.
    Output {
        rank: Rank,
        /// Stream that the rank wrote to.
        stream: Stream,
        /// Time at which the agent read the output, in microseconds since 1970 by the node's clock;
        /// `None` unless [`Job::stamp_output`] is set.
        stamp: Option<u64>,
        /// Bytes that the rank wrote, at most [`MAX_OUTPUT`].
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Permission to send more standard input, in bytes as counted by [`stdin_cost`]. The agent
    /// grants [`STDIN_WINDOW`] when all ranks that read the input have started, and later as many
    /// bytes as these ranks have taken.
    StdinCredit(u32),
    /// No rank of this node reads standard input any more.
    StdinClosed,
    /// The ranks are stopped. The agent sends no beats until they continue.
    Suspended,
    /// The node was suspended during the grace period in which its ranks end, so the grace period
    /// has been restarted.
    GraceRestarted,
    /// A rank has left a file with its error ([`crate::env::TORCHELASTIC_ERROR_FILE`]). Sent before its
    /// [`FromAgent::Exited`].
    RankError {
        rank: Rank,
        /// Content of the file, at most [`MAX_ERROR_FILE`] bytes.
        #[serde(with = "serde_bytes")]
        content: Vec<u8>,
    },
    /// The process of a rank ended, or could not be started.
    Exited {
        rank: Rank,
        /// Process id of the rank on its node; 0 if it could not be started.
        pid: u32,
        status: ExitStatus,
        /// Whether the rank died by SIGKILL, and the kernel's out-of-memory killer has killed a
        /// process on the node.
        out_of_memory: bool,
        /// Whether the rank had called `MPI_Init`, and ended without `MPI_Finalize`.
        unfinalized: bool,
        /// Whether the rank had begun to exit before the agent began to end the ranks of the node.
        by_itself: bool,
        /// Time from the agent's hello to the end of the rank, in microseconds by the node's clock.
        at_us: u64,
    },
    /// A rank runs MPI without a process manager; see [`crate::job::SingletonPolicy`].
    UnservedMpi {
        /// Process id of the rank, or of a process that the rank started.
        pid: u32,
        /// MPI library that the process has loaded.
        what: UnservedMpi,
    },
    /// Answer to [`ToAgent::Inspect`].
    Inspected {
        /// Number of the question.
        id: u32,
        result: InspectionResult,
    },
    /// Message of a session beside a rank.
    Session { id: u32, what: FromSession },
    /// Every rank of this node has ended, or none will start since the job ends. All output is sent, and the agent is
    /// about to exit.
    Done(CleanupReceipt),
    /// Sign of life, without content.
    Beat,
    /// The agent cannot continue the job.
    Failed {
        operation: String,
        /// Error of the operating system.
        cause: String,
    },
    /// The agent is ending the ranks of its node, without an order of the launcher.
    EndsRanks(EndCause),
}

/// MPI library that runs without the process manager it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnservedMpi {
    /// File name of the library, such as `libmpi.so.40`.
    pub library: String,
    /// Process management interface that the library needs: `PMI` or `PMIx`.
    pub needs: String,
    /// Whether the program's own file is linked with the library. Then it is certainly an MPI
    /// program.
    pub linked: bool,
}

/// Result of the clean-up on a node after its ranks have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanupReceipt {
    /// Number of leftovers that were ended: processes of the job that outlived their ranks.
    pub leftovers_ended: u32,
    /// Leftovers that could not be ended, each with pid, name and state.
    pub left: Vec<String>,
    /// Number of shared-memory files that were removed because their processes are dead.
    pub segments_removed: u32,
    /// Names of shared-memory files that look like those of a known library and were created during
    /// the job, but may belong to a living process. They were not removed.
    pub segments_unclaimed: Vec<String>,
    /// Files of ranks in the job's copy of a working tree.
    pub written: WrittenFiles,
}

/// Files that ranks of a node have written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFiles {
    pub files: u64,
    pub bytes: u64,
    /// Some of them, below the directory that was looked at.
    pub names: Vec<String>,
    /// Whether there may be more.
    pub is_part: bool,
}

/// Program that an agent runs beside the ranks or as ranks, and that the launcher sends to nodes that have no
/// copy. Each is needed by few jobs, or loads libraries that the agent must not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Helper {
    /// `rlaunch-prover`, which proves RDMA paths and watches them.
    Prover,
    /// `rlaunch-stack`, which reads the stacks of ranks and asks their libraries how far they are.
    Stack,
    /// `rlaunch-copier`, which copies files. It is the program of the ranks of a copy.
    Copier,
}

impl Helper {
    /// Returns the name of the program's file.
    pub fn name(self) -> &'static str {
        match self {
            Helper::Prover => "rlaunch-prover",
            Helper::Stack => "rlaunch-stack",
            Helper::Copier => "rlaunch-copier",
        }
    }
}

/// Hash and size of a helper's executable, by which a node finds its copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperFile {
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Size of the file in bytes.
    pub size: u64,
}

/// Scanner that finds the agent's hello behind the output of a login shell.
#[derive(Debug, Default)]
pub struct HelloScanner {
    received: Vec<u8>,
}

impl HelloScanner {
    /// Appends received bytes. Once [`HELLO_MAGIC`] is found, returns the bytes after it. Fails if
    /// [`MAX_NOISE`] bytes do not contain it.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, FrameError> {
        let from = self.received.len().saturating_sub(HELLO_MAGIC.len() - 1);
        self.received.extend_from_slice(bytes);
        let found = self.received[from..].windows(HELLO_MAGIC.len()).position(|w| w == HELLO_MAGIC);
        if let Some(at) = found {
            let rest = self.received.split_off(from + at + HELLO_MAGIC.len());
            self.received.truncate(from + at);
            return Ok(Some(rest));
        }
        if self.received.len() > MAX_NOISE { Err(FrameError::NoHello) } else { Ok(None) }
    }

    /// Returns the shell's output before the hello, or all output if no hello was found.
    pub fn noise(&self) -> String {
        String::from_utf8_lossy(&self.received).trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(n: usize) -> FromAgent {
        let (rank, stream) = (Rank(3), Stream::Stderr);
        FromAgent::Output { rank, stream, stamp: Some(n as u64), data: vec![b'x'; n] }
    }

    #[test]
    fn frames_survive_any_cut() {
        let messages = [output(0), FromAgent::Beat, output(MAX_OUTPUT), output(1)];
        let bytes: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        for cut in [1, 2, 3, 5, 7, 4096, bytes.len()] {
            let mut reader = FrameReader::default();
            let mut got = Vec::new();
            for part in bytes.chunks(cut) {
                reader.push(part);
                while let Some(message) = reader.next_frame::<FromAgent>().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages, "cut at {cut}");
        }
    }

    #[test]
    fn a_hostile_length_is_refused_before_memory_is_taken() {
        let mut reader = FrameReader::default();
        reader.push(&u32::MAX.to_le_bytes());
        assert!(matches!(reader.next_frame::<FromAgent>(), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn an_unknown_message_is_an_error() {
        let mut reader = FrameReader::default();
        reader.push(&[1, 0, 0, 0, 250]);
        assert!(matches!(
            reader.next_frame::<FromAgent>(),
            Err(FrameError::Unreadable { length: 1, .. })
        ));
    }

    #[test]
    fn the_hello_is_found_behind_any_noise() {
        for noise in ["", "Welcome!\r\n", "\n\n\x02rlaunch-agent-spe", "\n\x02"] {
            let mut bytes = noise.as_bytes().to_vec();
            bytes.extend_from_slice(HELLO_MAGIC);
            bytes.extend_from_slice(b"frames");
            for cut in 1..bytes.len() {
                let mut scanner = HelloScanner::default();
                let mut rest = Vec::new();
                let mut found = false;
                for part in bytes.chunks(cut) {
                    if found {
                        rest.extend_from_slice(part);
                    } else if let Some(after) = scanner.push(part).unwrap() {
                        found = true;
                        rest = after;
                    }
                }
                assert!(found, "{noise:?} cut at {cut}");
                assert_eq!(rest, b"frames");
                assert_eq!(scanner.noise(), noise.trim());
            }
        }
    }

    #[test]
    fn endless_noise_is_refused() {
        let mut scanner = HelloScanner::default();
        assert!(scanner.push(&vec![b'.'; MAX_NOISE + 1]).is_err());
    }
}
