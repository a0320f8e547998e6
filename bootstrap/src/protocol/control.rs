//! What crosses a control channel, and how it is framed.
//!
//! A channel is a byte stream in each direction: the SSH channel's own stdin and stdout. The agent
//! speaks first. Whatever its shell printed before (banners, `echo` in a profile) is skipped up to
//! [`HELLO_MAGIC`]; from there on both directions carry frames:
//!
//! ```text
//! length: u32, little endian, at most MAX_FRAME    body: `length` bytes of postcard
//! ```
//!
//! The first frame is [`FromAgent::Hello`] with the protocol version. The life of a channel:
//!
//! ```text
//! agent                         launcher
//!   Hello             ──────▶
//!                     ◀──────   Job, File…
//!   Prepared | Refused ─────▶                       every node has answered before any goes on
//!                     ◀──────   Prover              where it has RDMA
//!   WantsProver       ──────▶   ◀── ProverPart…     where that file is not there yet
//!                     ◀──────   Join                the tree of agents, see [`crate::rendezvous`]
//!                     ◀──────   LibraryPart…        where it is not there yet, see [`crate::job::library`]
//!   Edge              ──────▶
//!                     ◀──────   Prove               those with RDMA, see [`crate::protocol::mesh`]
//!   Proved            ──────▶
//!                     ◀──────   Table               to the root, which passes it down the tree
//!   TableEverywhere   ──────▶                       from the root
//!                     ◀──────   Start
//!   Started, Output…  ──────▶   ◀── Credit, Signal
//!   StdinCredit       ──────▶   ◀── Stdin…        where ranks of the node read standard input
//!   PortOpen          ──────▶                       an application waits for it
//!                     ◀──────   StartApplication    one whose ranks have waited
//!   Exited            ──────▶
//!                     ◀──────   News                for the ranks: who failed, which link is down
//!                     ◀──────   End                 when a rank failed or the user asked
//!   Done              ──────▶                       nothing of the job is left on the node
//!                     ◀──────   End                 nor on any other: who still carries the tree leaves
//! ```
//!
//! `Relay` goes both ways whenever an edge of the tree has to go through the launcher.
//!
//! Output needs credit ([`Job::output_window`], [`ToAgent::Credit`]), and so does standard input
//! ([`FromAgent::StdinCredit`]); nothing else does, and everything else goes first.

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

/// Changes whenever a frame changes. Launcher and agent travel together, so they always match
/// unless someone points `--agent` at another build.
pub const PROTOCOL_VERSION: u16 = 12;

/// Ends the noise a login shell may print. No shell prints this by accident.
pub const HELLO_MAGIC: &[u8] = b"\n\x02rlaunch-agent-speaks\x03\n";

/// The most output one frame carries, in bytes: a control frame never waits for more than this.
pub const MAX_OUTPUT: usize = 32 << 10;

/// The most standard input one frame carries, in bytes.
pub const MAX_STDIN: usize = 32 << 10;

/// How much standard input may be on its way to a node and inside its agent, in bytes.
pub const STDIN_WINDOW: u32 = 256 << 10;

/// What so many bytes of standard input take of [`STDIN_WINDOW`]: many small parts cost more memory
/// than they have bytes.
pub fn stdin_cost(length: usize) -> u32 {
    const LEAST: usize = 1 << 10;
    u32::try_from(length.max(LEAST)).unwrap_or(u32::MAX)
}

/// The most of a file one frame carries, in bytes.
pub const MAX_FILE_CHUNK: usize = 256 << 10;

/// Both ends say something at least this often.
pub const BEAT: Duration = Duration::from_secs(2);

/// Silence for this long means the other end is gone, where the user has not said otherwise: three
/// missed beats.
pub const BEATS_LOST: Duration = Duration::from_secs(6);

/// From the launcher to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// What this node is to run.
    Job(Box<Job>),
    /// The next part of a preloaded file; an empty part ends it.
    File {
        /// Which of [`Job::preload`].
        index: u32,
        /// At most [`MAX_FILE_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// The node has RDMA and will need this to prove it.
    Prover(ProverFile),
    /// The next part of that file, where it was asked for; an empty part ends it.
    ProverPart(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The next part of the library for ranks, where the node lacks it; an empty part ends it.
    LibraryPart(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Every node is prepared: join the tree.
    Join {
        /// `None` for the root.
        parent: Option<ParentPeer>,
    },
    /// Every node has joined: prove these paths, together with every other node.
    Prove(Round),
    /// Nothing more will be proved: close the queue pairs but for those of these paths, and report
    /// what becomes of them.
    WatchPaths {
        /// [`crate::protocol::mesh::MeshPath::id`], of the last round.
        ids: Vec<u32>,
        /// How often each end lets the other know, in milliseconds.
        beat_ms: u32,
    },
    /// The other end of a path that is proved anew has come as far as this one: what it gives.
    PeerEndpoints(Vec<Vec<u8>>),
    /// To the root: the rank table, for every node.
    Table(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Part of what a neighbour in the tree has to say, where the two have no edge.
    Relay {
        /// The neighbour.
        from: NodeId,
        /// At most [`MAX_FILE_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// Every node has the rank table: start the ranks.
    Start {
        /// Variables that were known only now, MASTER_ADDR and MASTER_PORT, for every rank.
        env: Vec<(String, String)>,
        /// What each rank of the node is given, by local rank.
        ranks: Vec<RankSetup>,
        /// Let Horovod's ranks reach their store at this port of loopback.
        horovod: Option<u16>,
        /// To look for until they accept connections.
        ports: Vec<AwaitedPort>,
    },
    /// What an application has waited for is there: start its ranks.
    StartApplication {
        /// [`crate::job::Application::index`].
        index: u32,
    },
    /// This many more bytes of output may be sent.
    Credit(u32),
    /// The next part of standard input, at most [`MAX_STDIN`] bytes, for every rank of the node that
    /// reads it; an empty part ends it.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Tell the ranks, who may wait for what will not come.
    JobEvent(JobEvent),
    /// Pass this signal on to every rank.
    Signal(i32),
    /// End every rank: TERM and KILL after the grace, or KILL at once.
    End {
        /// Do not wait for the grace.
        now: bool,
    },
    /// The launcher is about to be stopped: stop the ranks, and expect no beats.
    Suspend,
    /// The launcher runs again.
    Resume,
    /// The launcher is alive.
    Beat,
}

/// From an agent to the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromAgent {
    /// The first frame.
    Hello {
        /// [`PROTOCOL_VERSION`] of the agent.
        version: u16,
        /// What the node is.
        facts: NodeFacts,
    },
    /// Everything the job needs is here.
    Prepared {
        /// What the user should know.
        notices: Vec<Notice>,
        /// The ports it holds, as many as it was asked to.
        ports: Vec<u16>,
        /// Where its children in the tree can find it.
        listeners: Vec<SocketAddr>,
        /// What the node has.
        inventory: Box<Inventory>,
        /// Where its ranks will find the library that was named.
        library: Option<NodeLibrary>,
    },
    /// The library did not come to its place; ranks run without it.
    NoLibrary {
        /// Why.
        cause: String,
    },
    /// The node has an edge to its parent, or has to have it relayed.
    Edge(EdgeReport),
    /// The edge to a neighbour broke; what it carried is relayed from now on.
    EdgeBroke {
        /// The neighbour.
        peer: NodeId,
        /// How that was noticed.
        how: String,
    },
    /// The file that [`ToAgent::Prover`] names is not here.
    NeedsProver,
    /// How a round ended here.
    RoundDone {
        /// [`Round::number`].
        round: u32,
        /// Of every path of the node.
        outcomes: Vec<PathOutcome>,
        /// What it took.
        cost: RoundCost,
    },
    /// Of a path that is proved anew: this end has come so far, and gives this to the other.
    PathEndpoints {
        /// [`Round::number`].
        round: u32,
        /// Its endpoints, encoded; nothing once it has connected.
        given: Vec<Vec<u8>>,
    },
    /// What became of a watched path.
    PathEvent(PathEvent),
    /// From the root: every node has the rank table.
    TableEverywhere,
    /// Part of what is to be said to a neighbour in the tree with whom there is no edge.
    Relay {
        /// The neighbour.
        to: NodeId,
        /// At most [`MAX_FILE_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// From the root: ranks wait for others, and have for a while.
    Waiting {
        /// `barrier "x"`.
        what: String,
        /// How long, in milliseconds.
        waited_ms: u64,
        /// For whom.
        missing: MissingRanks,
    },
    /// From the root: ranks wait for a key that nobody has put.
    WaitingForKey {
        /// The key, as it is shown.
        key: String,
        /// How long, in milliseconds.
        waited_ms: u64,
    },
    /// A rank wants the job to end.
    Aborted {
        /// The rank.
        by: Option<Rank>,
        /// Why.
        text: String,
    },
    /// A rank has something for the events.
    RankEvent {
        /// The rank.
        rank: Rank,
        /// What.
        text: String,
    },
    /// The job cannot run here. No rank was started.
    Refused {
        /// All that was found, at least one.
        problems: Vec<Problem>,
    },
    /// A rank's stub was spawned.
    Started {
        /// The rank.
        rank: Rank,
        /// Its process id on the node.
        pid: u32,
    },
    /// A port that was to be looked for accepts connections.
    PortOpen {
        /// [`AwaitedPort::id`].
        id: u32,
    },
    /// What a rank wrote; empty data ends the stream. Ends at the end of a line, unless the line
    /// is longer than a frame, has been left unfinished by a rank that ended, or stands unfinished
    /// for a while.
    Output {
        /// The rank.
        rank: Rank,
        /// Where it wrote.
        stream: Stream,
        /// When the agent read it, where [`Job::stamp_output`] asks for that: microseconds since
        /// 1970, by the node's clock.
        stamp: Option<u64>,
        /// At most [`MAX_OUTPUT`] bytes.
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
    },
    /// This much more standard input may be sent, as [`stdin_cost`] has it. The first is sent when
    /// the ranks that read it have started, and is [`STDIN_WINDOW`].
    StdinCredit(u32),
    /// None of the node's ranks reads standard input any more.
    StdinClosed,
    /// The ranks are stopped and no beats are expected.
    Suspended,
    /// The node stood still while its ranks were ending: their grace begins anew.
    GraceRestarted,
    /// A rank ended.
    Exited {
        /// The rank.
        rank: Rank,
        /// Its process id.
        pid: u32,
        /// How.
        status: ExitStatus,
        /// It was killed while the kernel's out-of-memory killer was at work on the node.
        out_of_memory: bool,
        /// Microseconds from the agent's hello to the end of the rank, by the agent's clock.
        at_us: u64,
    },
    /// A rank runs MPI that nobody serves: see [`crate::job::SingletonPolicy`].
    UnservedMpi {
        /// The process, a rank or started by one.
        pid: u32,
        /// What it runs.
        what: UnservedMpi,
    },
    /// Every rank of this node has ended and its output is sent; the agent leaves.
    Done(CleanupReceipt),
    /// The agent is alive.
    Beat,
    /// The agent cannot go on.
    Failed {
        /// What it tried.
        operation: String,
        /// The system's reason.
        cause: String,
    },
    /// Nothing came from the launcher for a while: the ranks are told to end.
    LauncherSilent {
        /// How long, in seconds.
        for_s: u32,
    },
}

/// An MPI library that found nobody to wire it up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnservedMpi {
    /// The library's file name, `libmpi.so.40`.
    pub library: String,
    /// What it needs to be served: `PMI` or `PMIx`.
    pub needs: String,
    /// The program's own file asks for the library, so it is certainly an MPI program.
    pub linked: bool,
}

/// What an agent verified when the job had ended on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanupReceipt {
    /// Processes that outlived their rank and were ended (helpers, daemons).
    pub leftovers_ended: u32,
    /// Processes that could not be ended, `pid name state`.
    pub left: Vec<String>,
    /// Shared-memory files of dead processes that were removed.
    pub segments_removed: u32,
    /// Shared-memory files of a known kind, made during the job, that name no process.
    pub segments_unclaimed: Vec<String>,
}

/// Which of a rank's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Skips what a login shell prints before the agent speaks.
#[derive(Debug, Default)]
pub struct HelloScanner {
    seen: Vec<u8>,
}

impl HelloScanner {
    /// Adds what was read; once the hello is found, returns the bytes behind it.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, FrameError> {
        let from = self.seen.len().saturating_sub(HELLO_MAGIC.len() - 1);
        self.seen.extend_from_slice(bytes);
        let found = self.seen[from..].windows(HELLO_MAGIC.len()).position(|w| w == HELLO_MAGIC);
        if let Some(at) = found {
            let rest = self.seen.split_off(from + at + HELLO_MAGIC.len());
            self.seen.truncate(from + at);
            return Ok(Some(rest));
        }
        if self.seen.len() > MAX_NOISE { Err(FrameError::NoHello) } else { Ok(None) }
    }

    /// What came before the hello, or instead of it.
    pub fn noise(&self) -> String {
        String::from_utf8_lossy(&self.seen).trim().to_owned()
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
