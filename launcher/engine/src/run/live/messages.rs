//! Messages on the socket of a running job, in frames of [`rlaunch_bootstrap::frame`].
//!
//! The launcher sends a [`Greeting`]. Then the client sends one [`Request`] after another, and the launcher
//! answers each with [`Reply`]s, the last of which is [`Reply::Status`], [`Reply::Output`], [`Reply::Complete`],
//! [`Reply::Ending`] or [`Reply::Refused`]. A connection that has begun a session carries the messages of that session, in both
//! directions, until it is over ([`rlaunch_bootstrap::protocol::session`]).

use super::speed::PrintedSpeed;
use crate::run::output::OutputPart;
use rlaunch_bootstrap::protocol::inspection::{Inspection, InspectionResult};
use rlaunch_bootstrap::protocol::session::{FromSession, ToSession};
use rlaunch_plan::map::HostRanks;
use serde::{Deserialize, Serialize};

/// Version of these messages. Every change of a message needs a new number.
pub(crate) const SOCKET_VERSION: u16 = 6;

/// First message of the launcher.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// [`SOCKET_VERSION`] of the launcher.
    pub(crate) socket_version: u16,
    /// Version of rlaunch that runs the job.
    pub rlaunch: String,
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// State of the job. It is answered in every phase.
    Status,
    /// Output of the ranks from this position on. It is answered in every phase.
    Output { position: u64 },
    /// Question to the agents of all nodes. It is answered while ranks run.
    Inspect(Inspection),
    /// Request to end the job, as SIGTERM of the user does. It is answered while ranks run.
    End,
    /// Message for the session beside a rank that this connection has begun, or begins.
    Session(ToSession),
}

/// Answer of the launcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Answer to [`Request::Status`].
    Status(Box<JobStatus>),
    /// Answer to [`Request::Output`].
    Output(OutputPart),
    /// Answer of one node to [`Request::Inspect`].
    Node {
        /// Host as the user named it.
        host: String,
        /// The node's answer.
        result: InspectionResult,
    },
    /// Every node has answered [`Request::Inspect`], or its time is up.
    Complete {
        /// Hosts that have not answered in time.
        missing: Vec<String>,
    },
    /// Message of the connection's session.
    Session(FromSession),
    /// The job is suspended, and the connection's session with it.
    Suspended,
    /// The job goes on, and the connection's session with it.
    Resumed,
    /// The request cannot be answered, or the session is over, for this reason.
    Refused(String),
    /// Answer to [`Request::End`]: the ranks are being ended.
    Ending,
}

/// State of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Id of the job, 32 hexadecimal digits.
    pub job: String,
    /// Name of the job.
    pub name: String,
    /// Process id of the launcher.
    pub pid: u32,
    /// Words of the ranks' programs; those whose names suggest a secret are replaced.
    pub program: Vec<String>,
    /// Start, in seconds since 1970.
    pub started: f64,
    /// Time since the start, in seconds.
    pub seconds: f64,
    /// Phase of the job.
    pub phase: JobPhase,
    /// Hosts with their ranks, in the order of nodes; empty until ranks are mapped to hosts.
    pub hosts: Vec<HostRanks>,
    /// Number of ranks of the job.
    pub ranks: u32,
    /// Number of ranks whose processes have started.
    pub ranks_started: u32,
    /// Number of ranks whose processes have ended.
    pub ranks_ended: u32,
    /// Last output of a rank; `None` if no rank has printed anything.
    pub last_output: Option<LastOutput>,
    /// Last speeds that ranks have printed, by rank.
    pub speeds: Vec<RankSpeed>,
}

/// Last speed that a rank has printed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankSpeed {
    /// Rank that printed it.
    pub rank: u32,
    /// Number and unit.
    pub speed: PrintedSpeed,
    /// Time since it was printed, in seconds.
    pub seconds_ago: f64,
}

/// Last output of the job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LastOutput {
    /// Rank that printed it.
    pub rank: u32,
    /// Time since it was printed, in seconds.
    pub seconds_ago: f64,
}

/// Phase of a job, in the order in which a job goes through them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// Hosts are being connected.
    #[default]
    Connecting,
    /// Nodes check that they can run their part of the job.
    Preparing,
    /// Agents join the tree, and RDMA paths are proved.
    Joining,
    /// Ranks run.
    Running,
    /// Ranks are being ended.
    Ending,
    /// The launcher is stopped. No launcher says so of itself.
    Stopped,
}

impl JobPhase {
    /// Returns the word that users read.
    pub fn word(self) -> &'static str {
        match self {
            JobPhase::Connecting => "connecting",
            JobPhase::Preparing => "preparing",
            JobPhase::Joining => "joining",
            JobPhase::Running => "running",
            JobPhase::Ending => "ending",
            JobPhase::Stopped => "stopped",
        }
    }
}
