//! Messages between the launcher and an agent on their control channel.
//!
//! The channel is a byte stream in each direction, usually stdin and stdout of an SSH session. The
//! agent sends first. Anything that its login shell printed before (banners, `echo` in a profile)
//! is skipped up to [`HELLO_MAGIC`]; after that, both directions carry frames of [`crate::frame`].
//!
//! The first frame is [`FromAgent::Hello`] with the protocol version. A job goes through these
//! steps:
//!
//! ```text
//! agent                         launcher
//!   Hello             ──────▶
//!                     ◀──────   Job, File…
//!   Prepared | Refused ─────▶                     the launcher waits for every node
//!                     ◀──────   Prover            nodes with RDMA
//!   NeedsProver       ──────▶   ◀── ProverPart…   if the node has no copy of the prover
//!                     ◀──────   Join              join the tree of agents ([`crate::rendezvous`])
//!                     ◀──────   LibraryPart…      if the node has no copy ([`crate::job::library`])
//!   Edge              ──────▶
//!                     ◀──────   Prove             nodes with RDMA ([`crate::protocol::mesh`])
//!   RoundDone         ──────▶
//!                     ◀──────   Table             to the root, which sends it down the tree
//!   TableEverywhere   ──────▶                     from the root
//!                     ◀──────   Start
//!   Started, Output…  ──────▶   ◀── Credit, Signal
//!   StdinCredit       ──────▶   ◀── Stdin…        if ranks of the node read standard input
//!   PortOpen          ──────▶                     if an application waits for the port
//!                     ◀──────   StartApplication  for an application that has waited
//!   Exited            ──────▶
//!                     ◀──────   JobEvent          failures of ranks, nodes and links, for the ranks
//!                     ◀──────   End               after a failure, or when the user asks for it
//!   Done              ──────▶                     nothing of the job is left on the node
//!                     ◀──────   End               nor on any other: agents that relay may exit
//! ```
//!
//! `Relay` is used in both directions for edges of the tree that go through the launcher.
//!
//! Output requires credit ([`Job::output_window`], [`ToAgent::Credit`]), and so does standard input
//! ([`FromAgent::StdinCredit`]). All other messages require none and are sent before them.

pub use crate::frame::{FrameError, FrameReader, MAX_FRAME, MAX_NOISE, encode};

use crate::client::events::JobEvent;
use crate::id::{NodeId, Rank};
use crate::inventory::Inventory;
use crate::job::library::NodeLibrary;
use crate::job::{AwaitedPort, ExitStatus, Job, NodeFacts, Notice, Problem, RankSetup};
use crate::protocol::mesh::{PathEvent, PathOutcome, ProverFile, Round, RoundCost};
use crate::rendezvous::message::MissingRanks;
use crate::rendezvous::oob::{EdgeReport, ParentPeer};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Version of the messages, which changes with every change of a message. Launcher and agent are
/// normally of one build; they differ only if `--agent` names another.
pub const PROTOCOL_VERSION: u16 = 12;

/// Bytes that precede the agent's first frame and end the output of its login shell. No shell
/// prints them by accident.
pub const HELLO_MAGIC: &[u8] = b"\n\x02rlaunch-agent-speaks\x03\n";

/// Most output in one frame, in bytes. A control frame never waits for more than this.
pub const MAX_OUTPUT: usize = 32 << 10;

/// Most standard input in one frame, in bytes.
pub const MAX_STDIN: usize = 32 << 10;

/// Most standard input on its way to a node or buffered in its agent, in bytes.
pub const STDIN_WINDOW: u32 = 256 << 10;

/// Returns how much of [`STDIN_WINDOW`] a frame with `length` bytes of standard input uses: at
/// least 1 KiB, because a small frame costs more memory than its bytes.
pub fn stdin_cost(length: usize) -> u32 {
    const LEAST: usize = 1 << 10;
    u32::try_from(length.max(LEAST)).unwrap_or(u32::MAX)
}

/// Longest part of a file in one frame, in bytes.
pub const MAX_FILE_CHUNK: usize = 256 << 10;

/// Splits a file into the parts that frames carry: parts of at most [`MAX_FILE_CHUNK`] bytes, then an
/// empty one, which ends the file.
pub fn file_parts(content: &[u8]) -> impl Iterator<Item = &[u8]> {
    content.chunks(MAX_FILE_CHUNK).chain(std::iter::once(&[][..]))
}

/// Longest time between two frames from either end.
pub const BEAT: Duration = Duration::from_secs(2);

/// Default silence after which the other end is considered lost: three beats.
pub const BEATS_LOST: Duration = Duration::from_secs(6);

/// Message from the launcher to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Job to prepare.
    Job(Box<Job>),
    /// Next part of a preloaded file; an empty part ends the file.
    File {
        /// Index into [`Job::preload`].
        index: u32,
        /// Content, at most [`MAX_FILE_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Hash and size of the prover. Sent to nodes with RDMA.
    Prover(ProverFile),
    /// Next part of the prover, in response to [`FromAgent::NeedsProver`]; an empty part ends the
    /// file.
    ProverPart(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Next part of the library for ranks, if the node lacks it; an empty part ends the archive.
    LibraryPart(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Request to join the tree of agents. Sent when every node is prepared.
    Join {
        /// Parent in the tree; `None` for the root.
        parent: Option<ParentPeer>,
    },
    /// Request to prove these paths together with the other nodes. Sent when every node has joined.
    Prove(Round),
    /// Request to close all queue pairs except those of these paths, and to report failures of
    /// these. Sent after the last round.
    WatchPaths {
        /// Identifiers of the paths in the last round ([`crate::protocol::mesh::MeshPath::id`]).
        ids: Vec<u32>,
        /// Interval between beats on each path, in milliseconds.
        beat_ms: u32,
    },
    /// Endpoints of the peer of a path that is proved again, once the peer has come as far as this
    /// end.
    PeerEndpoints(Vec<Vec<u8>>),
    /// Rank table, encoded. Sent to the root, for all nodes.
    Table(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Bytes from a neighbour in the tree with which this node has no TCP connection.
    Relay {
        /// Neighbour that sent them.
        from: NodeId,
        /// Bytes, at most [`MAX_FILE_CHUNK`].
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Request to start the ranks. Sent when every node has the rank table.
    Start {
        /// Variables for every rank that were unknown before: MASTER_ADDR and MASTER_PORT.
        env: Vec<(String, String)>,
        /// Settings of the node's ranks, by local rank.
        ranks: Vec<RankSetup>,
        /// Port of the loopback interface at which Horovod's ranks reach their store.
        horovod: Option<u16>,
        /// Ports to try until they accept connections.
        ports: Vec<AwaitedPort>,
    },
    /// Request to start the ranks of an application that has waited for other applications.
    StartApplication {
        /// Number of the application ([`crate::job::Application::index`]).
        index: u32,
    },
    /// Credit for this many more bytes of output.
    Credit(u32),
    /// Next part of standard input, at most [`MAX_STDIN`] bytes, for every rank of the node that
    /// reads it; an empty part ends it.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Event to pass on to the ranks, which may be waiting for ranks that are gone.
    JobEvent(JobEvent),
    /// Number of a signal to send to every rank.
    Signal(i32),
    /// Request to end every rank: with SIGTERM first and SIGKILL after the grace period, or with
    /// SIGKILL.
    End {
        /// Whether to send SIGKILL immediately.
        now: bool,
    },
    /// Request to stop the ranks because the launcher is about to be stopped. No beats follow.
    Suspend,
    /// Request to continue the ranks because the launcher runs again.
    Resume,
    /// Sign of life.
    Beat,
}

/// Message from an agent to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// First message.
    Hello {
        /// Version of the agent's messages ([`PROTOCOL_VERSION`]).
        version: u16,
        /// Description of the node.
        facts: NodeFacts,
    },
    /// Preparation is complete; every condition of the job holds on this node.
    Prepared {
        /// Notices for the user.
        notices: Vec<Notice>,
        /// Ports that the node holds, as many as the job asked for.
        ports: Vec<u16>,
        /// Addresses at which the node's children in the tree can connect.
        listeners: Vec<SocketAddr>,
        /// Hardware and system software of the node.
        inventory: Box<Inventory>,
        /// Location of the library for ranks on this node.
        library: Option<NodeLibrary>,
    },
    /// The library could not be installed; ranks run without it.
    NoLibrary {
        /// Reason.
        cause: String,
    },
    /// Result of connecting to the parent in the tree: an edge, or the reasons why it must be
    /// relayed.
    Edge(EdgeReport),
    /// The edge to a neighbour broke; from now on it is relayed.
    EdgeBroke {
        /// Neighbour at the other end.
        peer: NodeId,
        /// Symptom, such as the error of the socket.
        how: String,
    },
    /// The node has no copy of the prover that [`ToAgent::Prover`] describes.
    NeedsProver,
    /// Results of a round of proofs on this node.
    RoundDone {
        /// Number of the round ([`Round::number`]).
        round: u32,
        /// Outcome of each of the node's paths.
        outcomes: Vec<PathOutcome>,
        /// Resources that the round used.
        cost: RoundCost,
    },
    /// Endpoints of this end of a path that is proved again, for its peer.
    PathEndpoints {
        /// Number of the round ([`Round::number`]).
        round: u32,
        /// Endpoints, encoded; empty once this end has connected.
        given: Vec<Vec<u8>>,
    },
    /// Event on a watched path.
    PathEvent(PathEvent),
    /// Every node has the rank table. Sent by the root.
    TableEverywhere,
    /// Bytes for a neighbour in the tree with which this node has no TCP connection.
    Relay {
        /// Neighbour to send them to.
        to: NodeId,
        /// Bytes, at most [`MAX_FILE_CHUNK`].
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Ranks have been waiting for others for a while. Sent by the root.
    Waiting {
        /// Description of the operation, such as `barrier "x"`.
        what: String,
        /// Time that the first rank has waited, in milliseconds.
        waited_ms: u64,
        /// Ranks that have not arrived.
        missing: MissingRanks,
    },
    /// Ranks have been waiting for a key that no rank has put. Sent by the root.
    WaitingForKey {
        /// Key, formatted for people.
        key: String,
        /// Time that the first rank has waited, in milliseconds.
        waited_ms: u64,
    },
    /// A rank aborts the job.
    Aborted {
        /// Rank that asked for it; `None` if rlaunch itself did.
        by: Option<Rank>,
        /// Reason given by the rank.
        text: String,
    },
    /// A rank adds a text to the job's event log.
    RankEvent {
        /// Rank that sent it.
        rank: Rank,
        /// Text of the event.
        text: String,
    },
    /// The job cannot run on this node. No rank was started.
    Refused {
        /// All problems that were found, at least one.
        problems: Vec<Problem>,
    },
    /// The process of a rank was created.
    Started {
        /// Rank that was started.
        rank: Rank,
        /// Process id on the node.
        pid: u32,
    },
    /// An awaited port accepts connections.
    PortOpen {
        /// Identifier of the port ([`AwaitedPort::id`]).
        id: u32,
    },
    /// Output of a rank; empty data ends the stream. It ends with a line break unless the line is
    /// longer than a frame, the rank ended in the middle of it, or it has remained incomplete for a
    /// while.
    Output {
        /// Rank that wrote it.
        rank: Rank,
        /// Stream it was written to.
        stream: Stream,
        /// Time at which the agent read it, in microseconds since 1970 by the node's clock, if
        /// [`Job::stamp_output`] is set.
        stamp: Option<u64>,
        /// Bytes that were written, at most [`MAX_OUTPUT`].
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Credit for more standard input, in the units of [`stdin_cost`]. The first, [`STDIN_WINDOW`],
    /// is sent when the ranks that read it have started.
    StdinCredit(u32),
    /// No rank of the node reads standard input any more.
    StdinClosed,
    /// The ranks are stopped. No beats follow.
    Suspended,
    /// The node was suspended while its ranks were ending, so their grace period has been
    /// restarted.
    GraceRestarted,
    /// A rank ended.
    Exited {
        /// Rank that ended.
        rank: Rank,
        /// Process id of the rank.
        pid: u32,
        /// Exit status.
        status: ExitStatus,
        /// Whether the rank was killed while the kernel's out-of-memory killer was active on the
        /// node.
        out_of_memory: bool,
        /// Time from the agent's hello to the end of the rank, in microseconds by the agent's
        /// clock.
        at_us: u64,
    },
    /// A rank runs MPI without a process manager; see [`crate::job::SingletonPolicy`].
    UnservedMpi {
        /// Process id of the rank or of a process that it started.
        pid: u32,
        /// MPI library that the process uses.
        what: UnservedMpi,
    },
    /// Every rank of this node has ended, its output is sent, and the agent exits.
    Done(CleanupReceipt),
    /// Sign of life.
    Beat,
    /// The agent cannot continue.
    Failed {
        /// Operation that failed.
        operation: String,
        /// Error of the operating system.
        cause: String,
    },
    /// No message arrived from the launcher for too long, so the ranks are being ended.
    LauncherSilent {
        /// Duration of the silence, in seconds.
        for_s: u32,
    },
}

/// MPI library that found no process manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnservedMpi {
    /// File name of the library, such as `libmpi.so.40`.
    pub library: String,
    /// Process management interface that the library needs: `PMI` or `PMIx`.
    pub needs: String,
    /// Whether the program's own file links the library, which makes it an MPI program for certain.
    pub linked: bool,
}

/// Result of the clean-up on a node after the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanupReceipt {
    /// Number of processes that outlived their rank (helpers, daemons) and were ended.
    pub leftovers_ended: u32,
    /// Processes that could not be ended, each as `pid name state`.
    pub left: Vec<String>,
    /// Number of shared-memory files of dead processes that were removed.
    pub segments_removed: u32,
    /// Shared-memory files of a known kind that were created during the job but name no process.
    pub segments_unclaimed: Vec<String>,
}

/// Output stream of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Scanner that skips the output of a login shell before the agent's hello.
#[derive(Debug, Default)]
pub struct HelloScanner {
    received: Vec<u8>,
}

impl HelloScanner {
    /// Appends received bytes. Returns the bytes after the hello once it is found. Fails after
    /// [`MAX_NOISE`] bytes without a hello.
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

    /// Returns the output before the hello, or all output if there was no hello.
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
