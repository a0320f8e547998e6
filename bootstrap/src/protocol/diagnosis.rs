//! Messages between `rlaunch doctor` and an agent that was started as `rlaunch-worker diagnose`.
//!
//! ```text
//! agent                         launcher
//!   Diagnosis         ──────▶                     the launcher waits for every host
//!                     ◀──────   Inquiry
//!   InquiryAnswer     ──────▶
//! ```
//!
//! Both directions carry frames of [`crate::frame`], the agent's first one after
//! [`HELLO_MAGIC`](super::control::HELLO_MAGIC). The agent ends when its stdin ends, or
//! [`INQUIRY_TIMEOUT`] after its diagnosis. Some shells give it no stdin; then there is no inquiry.

use crate::inventory::Inventory;
use crate::inventory::diagnostics::{Counter, Diagnostics};
use crate::job::{LauncherDir, NodeFacts, PortRange};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Time for which an agent waits for the inquiry. The logins to other hosts may take that long, as
/// one may wait for the user's passphrase.
pub const INQUIRY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for all probes of an agent.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Ports of which an agent takes one for probes: the default ports of jobs, which users open in their
/// packet filters.
pub const PROBE_PORTS: PortRange = PortRange::DEFAULT;

/// First message of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Facts that the agent of a job sends in its hello.
    pub facts: NodeFacts,
    /// Hardware and system software.
    pub inventory: Inventory,
    /// State of the host.
    pub diagnostics: Diagnostics,
    /// Port on which the agent accepts probes by TCP and by UDP, on all addresses; `None` if it
    /// does not, as for a recorded host.
    pub probe_port: Option<u16>,
}

/// Question of the launcher, after all hosts have answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inquiry {
    /// Random bytes of this diagnosis. Agents answer only packets and connections that begin with
    /// them.
    pub token: [u8; 16],
    /// Probes of this host to others.
    pub probes: Vec<ProbeRequest>,
    pub program: Option<ProgramInquiry>,
    /// Time after the diagnosis at which counters are to be read again, in milliseconds.
    pub interval_ms: u32,
}

/// Probe of one host to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeRequest {
    /// Connect to an agent, send the token and read it back; then send as much as fills packets.
    Tcp {
        /// Address and port of the agent.
        to: SocketAddr,
    },
    /// Send datagrams from one address of this host, without fragmentation, and wait for their
    /// echoes: a short one, and one whose IP packet is as large as `packet`.
    Udp {
        /// Own address.
        from: IpAddr,
        /// Own interface, to which the packets are bound.
        netdev: String,
        /// Address and port of the agent.
        to: SocketAddr,
        /// Size of the large IP packet, in bytes.
        packet: u32,
    },
}

/// Program whose files and libraries the agent is to look for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramInquiry {
    /// Words of its command line.
    pub words: Vec<String>,
    /// Working directory of the launcher; the agent uses it if it exists.
    pub directory: LauncherDir,
}

/// Answer to an [`Inquiry`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InquiryAnswer {
    /// Outcome of each probe, in the order of the request.
    pub probes: Vec<ProbeResult>,
    /// Files and libraries of the program on the host; `None` if none was asked for.
    pub program: Option<ProgramReport>,
    /// Counters of interfaces and RDMA ports, read again: name of the interface or
    /// `device/port`, and its counters. Those of the whole host have an empty name.
    pub counters: Vec<(String, Vec<Counter>)>,
    /// Time between the two readings, in milliseconds.
    pub interval_ms: u32,
}

/// Outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeResult {
    /// All echoes arrived.
    Worked {
        /// Round-trip time of the short datagram, or of the token over TCP, in microseconds.
        micros: u64,
    },
    /// The short echo arrived, the long one did not; or over TCP, the token arrived and full
    /// packets did not.
    OnlyShort {
        /// Path MTU that the kernel reports, in bytes; `None` if it knows none.
        known_mtu: Option<u32>,
    },
    /// Nothing arrived in time.
    Silent,
    /// The kernel refused the probe; this is the text of its error.
    Failed(String),
}

/// Files and libraries of a program on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReport {
    /// Path of the program; `None` if it was not found.
    pub program: Option<PathBuf>,
    /// Files among the words of the command line: the word, and the SHA-256 of the contents in
    /// hexadecimal digits, or `None` if the file does not exist on this host. Words that look like
    /// options are left out, and files over 64 MiB have the digest of their size.
    pub files: Vec<(String, Option<String>)>,
    /// MPI library with which the program is linked, or that the interpreter's mpi4py loads.
    pub mpi_library: Option<String>,
    /// Interface that the library needs, if rlaunch does not serve it.
    pub unserved_mpi: Option<String>,
    /// Whether the interpreter's Horovod is built with MPI alone; `None` if it has none.
    pub horovod_mpi_only: Option<bool>,
    /// Limit of locked memory that a rank would have, in bytes; `None` if unlimited.
    pub locked_memory: Option<u64>,
}
