//! What a job is to one node: the program, its environment, the node's ranks, and what must be
//! true there before anything starts.

pub mod library;

pub use crate::exit_status::ExitStatus;
pub use crate::rendezvous::oob::PortRange;

use crate::id::{JobId, LocalRank, NodeId, Rank};
use crate::inventory::CpuSet;
use crate::job::library::LibrarySource;
use crate::rendezvous::oob::OobConfig;
use crate::security::handshake::Token;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Everything an agent needs to prepare and start its ranks. Travels inside the control channel,
/// never on a command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The job's id.
    pub id: JobId,
    /// This node.
    pub node: NodeId,
    /// The host as the user typed it, for tags and messages.
    pub host: String,
    /// The node's own environment is what a login shell of the user's has there.
    pub login: bool,
    /// The programs that ranks of this node run, at least one.
    pub applications: Vec<Application>,
    /// The ranks of this node, by local rank.
    pub ranks: Vec<RankSpec>,
    /// Files that follow as [`crate::protocol::control::ToAgent::File`] frames.
    pub preload: Vec<PreloadFile>,
    /// How long ranks may take between TERM and KILL, in milliseconds.
    pub kill_after_ms: u32,
    /// An end of a connection that is silent for this long is gone, in milliseconds.
    pub silence_ms: u32,
    /// Bytes of output the agent may send before the launcher grants more.
    pub output_window: u32,
    /// Output says when it was read.
    pub stamp_output: bool,
    /// Ranks' stderr goes where their stdout goes, in the order in which they wrote.
    pub merge_stderr: bool,
    /// How many ranks the job has on all nodes.
    pub world_size: u32,
    /// What to do about ranks that run MPI.
    pub singleton: SingletonPolicy,
    /// To be told which processors are threads of one core.
    pub wants_cores: bool,
    /// NCCL's network plugin, which has to be there.
    #[serde(with = "crate::serde_path::optional")]
    pub nccl_net_plugin: Option<PathBuf>,
    /// What ranks link and import; `None` where the launcher has none.
    pub library: Option<LibrarySource>,
    /// So many free ports the node holds until just before the start, and one more, if there is any,
    /// where it has GPUs: NCCL answers questions about a job there.
    pub held_ports: u32,
    /// MASTER_PORT as the user chose it, on the node of rank 0: the first of those that it holds.
    pub master_port: Option<u16>,
    /// This node's place in the tree of agents.
    pub oob: OobConfig,
    /// By which this node's ranks show that they belong to the job.
    pub token: Token,
}

impl Job {
    /// How long an end of a connection may be silent before it is given up.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.silence_ms.into())
    }
}

/// One of the job's programs, and what its ranks have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// Its number in the job, from 0.
    pub index: u32,
    /// The program and its arguments, at least one.
    pub argv: Vec<OsString>,
    /// Where its ranks run.
    pub wdir: WorkingDir,
    /// Variables forwarded from the launching shell, or set by `-x`, and PATH and PYTHONPATH.
    pub env: Vec<EnvVar>,
    /// A script the program will read, to be looked for before any rank starts.
    pub script: Option<ScriptCheck>,
    /// Which of [`Job::preload`] its arguments may name.
    pub preload: Vec<u32>,
    /// Its ranks start when [`crate::protocol::control::ToAgent::StartApplication`] says so.
    pub waits: bool,
}

/// What happens when several ranks run MPI and nobody serves it, so that each would take itself for
/// rank 0 of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SingletonPolicy {
    /// The job ends when the program itself is linked with MPI; a library that was loaded later is
    /// warned of.
    #[default]
    Error,
    /// A warning.
    Warn,
    /// Nobody looks.
    Ignore,
}

/// Where ranks run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkingDir {
    /// The launcher's directory where the node has it, else the user's home there.
    SameAsLauncher(#[serde(with = "crate::serde_path")] PathBuf),
    /// Asked for by name: it must be there.
    Required(#[serde(with = "crate::serde_path")] PathBuf),
}

/// One variable of the ranks' environment and how it meets what the node already has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    /// The variable's name.
    pub name: OsString,
    /// Its value.
    pub value: OsString,
    /// How it is applied.
    pub rule: EnvRule,
}

/// How a variable meets the node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnvRule {
    /// Replaces the node's value.
    Set,
    /// A search path: these entries first, then the node's own that are not among them.
    PathBefore,
    /// A search path: the node's own entries first, then these.
    PathAfter,
    /// Only where the node has none.
    Default,
}

/// One rank and what only it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSpec {
    /// The rank.
    pub rank: Rank,
    /// Its place on this node.
    pub local_rank: LocalRank,
    /// What it runs: which of [`Job::applications`].
    pub application: u32,
    /// Its own variables. A name that the user set by `-x` is not among them.
    pub env: Vec<(String, String)>,
    /// It reads standard input; otherwise there is nothing to read.
    pub stdin: bool,
}

/// What a rank is given when it starts, once every node's inventory is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSetup {
    /// The processors it may use; `None` leaves it those of the agent.
    pub cpus: Option<CpuSet>,
    /// The NUMA node whose memory it takes as long as there is any.
    pub memory_node: Option<u32>,
    /// Variables that it gets unless the user or the host has set them.
    pub defaults: Vec<(String, String)>,
    /// Words of its command line that were known only now, and which ones: 0 is the program.
    pub words: Vec<(u32, OsString)>,
    /// Variables of the user's that were known only now; they replace all others.
    pub env: Vec<(OsString, OsString)>,
    /// Files that it finds when it starts.
    pub files: Vec<RankFile>,
}

/// A file that is made for ranks of this node, and goes when the job is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFile {
    /// Where; what is relative is below the working directory of the rank.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// What is in it.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
}

/// A TCP port that has to accept a connection before an application may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedPort {
    /// By which the launcher knows it.
    pub id: u32,
    /// Names or addresses of the host; any of them will do.
    pub hosts: Vec<String>,
    /// The port.
    pub port: u16,
}

/// The first non-option argument of an interpreter, when the launcher's directory has that file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptCheck {
    /// As typed, relative to the working directory.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// SHA-256 of the launcher's copy, when it is at most 1 MiB.
    pub sha256: Option<[u8; 32]>,
}

/// A file that is copied to the node for this job. An argument equal to `name` or to `typed`
/// becomes the path of the copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreloadFile {
    /// The path as the user typed it.
    #[serde(with = "crate::serde_path")]
    pub typed: PathBuf,
    /// The file name of the copy, without a directory.
    pub name: OsString,
    /// Its size in bytes.
    pub size: u64,
    /// Permission bits, `0o777` at most.
    pub mode: u32,
}

/// What an agent says of its node when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// The kernel's name for this host.
    pub hostname: String,
    /// The machine's architecture, `x86_64` or `aarch64`.
    pub arch: String,
    /// The agent's process id.
    pub pid: u32,
    /// Its parent's, which clears up after it.
    pub guardian: u32,
    /// The effective user id ranks will run with.
    pub uid: u32,
    /// Addresses of interfaces that are up, loopback and link-local left out.
    pub addresses: Vec<InterfaceAddress>,
    /// The address of this node that the SSH connection arrived at, when it came by SSH.
    pub ssh_address: Option<IpAddr>,
    /// How many GPUs there are that programs can use.
    pub gpus: u32,
    /// Identity of this boot of the kernel and of this part of the machine: equal for two agents of
    /// one host, and different for containers of one. Empty where the system does not say.
    pub machine: String,
}

impl NodeFacts {
    /// Whether the two were read on one host. Machines that were copied while they ran have one boot,
    /// but not one name and the same addresses.
    pub fn is_same_host(&self, other: &NodeFacts) -> bool {
        let has = |a: &NodeFacts, b: &NodeFacts| {
            a.addresses.iter().all(|own| b.addresses.iter().any(|other| other == own))
        };
        !self.machine.is_empty()
            && (&self.machine, &self.hostname) == (&other.machine, &other.hostname)
            && has(self, other)
            && has(other, self)
    }
}

/// An address and the network it is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAddress {
    /// The interface, `eth0`.
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// Leading bits that name the network, `0..=32` or `0..=128`.
    pub prefix: u8,
}

impl InterfaceAddress {
    /// Whether `other` is in this address's network.
    pub fn same_network(&self, other: IpAddr) -> bool {
        let prefix = u32::from(self.prefix);
        match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix)).unwrap_or(0);
                a.to_bits() & mask == b.to_bits() & mask
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix)).unwrap_or(0);
                a.to_bits() & mask == b.to_bits() & mask
            }
            _ => false,
        }
    }
}

/// Why a node cannot run the job. Each is found before any rank starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// The program is not on the node's search path, or not at its path.
    NoProgram {
        /// As typed.
        program: OsString,
        /// A program of nearly that name which is there (`python3` for `python`).
        instead: Option<String>,
    },
    /// The program is there and may not be executed.
    NotExecutable {
        /// Its path.
        #[serde(with = "crate::serde_path")]
        program: PathBuf,
    },
    /// The script an interpreter was given is not there.
    NoScript {
        /// As typed.
        #[serde(with = "crate::serde_path")]
        script: PathBuf,
    },
    /// The directory of `--wdir` is not there.
    NoDirectory {
        /// As typed.
        #[serde(with = "crate::serde_path")]
        directory: PathBuf,
    },
    /// A file that an option names is not there.
    NoFile {
        /// The option.
        option: String,
        /// As typed.
        #[serde(with = "crate::serde_path")]
        path: PathBuf,
    },
    /// A preloaded file could not be kept.
    Preload {
        /// What was tried, on which path.
        operation: String,
        /// The system's reason.
        cause: String,
    },
    /// No port of the range is free.
    NoPort {
        /// The range.
        range: PortRange,
    },
    /// The port that the user chose for MASTER_PORT is not free.
    PortTaken {
        /// The port.
        port: u16,
    },
    /// The program needs MPI, which nobody serves.
    Singleton {
        /// The program's path.
        #[serde(with = "crate::serde_path")]
        program: PathBuf,
        /// The library, and what it needs: `libmpi.so.40`, `PMIx`.
        library: String,
        /// What the library needs to be served.
        needs: String,
    },
    /// The system refused something else the job needs.
    System {
        /// What was tried.
        operation: String,
        /// The system's reason.
        cause: String,
    },
}

/// Something the user should know that stops nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The launcher's directory is not there; the ranks run in the user's home.
    RunsInHome {
        /// That home.
        #[serde(with = "crate::serde_path")]
        home: PathBuf,
    },
    /// The node's copy of the script differs from the launcher's.
    ScriptDiffers {
        /// As typed.
        #[serde(with = "crate::serde_path")]
        script: PathBuf,
    },
    /// There is no place for the job's own directory, and the ranks do without what is in it.
    NoWorkspace {
        /// The places that were tried, and the system's reasons.
        cause: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(address: &str, prefix: u8) -> InterfaceAddress {
        let address = address.parse().unwrap();
        InterfaceAddress { interface: "eth0".into(), address, prefix }
    }

    #[test]
    fn networks_are_compared_by_prefix() {
        assert!(net("10.1.2.3", 16).same_network("10.1.9.9".parse().unwrap()));
        assert!(!net("10.1.2.3", 24).same_network("10.1.9.9".parse().unwrap()));
        assert!(net("10.1.2.3", 0).same_network("192.0.2.1".parse().unwrap()));
        assert!(net("fd00::1", 64).same_network("fd00::2".parse().unwrap()));
        assert!(!net("fd00::1", 128).same_network("fd00::2".parse().unwrap()));
        assert!(!net("fd00::1", 64).same_network("10.1.9.9".parse().unwrap()));
    }
}
