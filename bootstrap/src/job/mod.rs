//! Description of a job for one node: programs, environment, ranks, and conditions to check before
//! anything starts; and the node's answers.

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

/// Everything that an agent needs to prepare and start its ranks. It travels inside the control
/// channel, never on a command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Identifier of the job.
    pub id: JobId,
    /// Number of the node that receives this.
    pub node: NodeId,
    /// Host as the user typed it, for tags and messages.
    pub host: String,
    /// Whether the node's own environment is read from the user's login shell there.
    pub login: bool,
    /// Programs that ranks of this node run, at least one.
    pub applications: Vec<Application>,
    /// Ranks of this node, by local rank.
    pub ranks: Vec<RankSpec>,
    /// Files that follow as [`crate::protocol::control::ToAgent::File`] frames.
    pub preload: Vec<PreloadFile>,
    /// Time between SIGTERM and SIGKILL when ranks are ended, in milliseconds.
    pub kill_after_ms: u32,
    /// Silence after which the other end of a connection is considered lost, in milliseconds.
    pub silence_ms: u32,
    /// Output that the agent may send before the launcher grants credit, in bytes.
    pub output_window: u32,
    /// Whether output carries the time at which the agent read it.
    pub stamp_output: bool,
    /// Whether stderr of ranks is merged into their stdout, in the order of the writes.
    pub merge_stderr: bool,
    /// Number of ranks in the job, on all nodes.
    pub world_size: u32,
    /// Reaction to ranks that run MPI without a process manager.
    pub singleton: SingletonPolicy,
    /// Whether the inventory must list the hardware threads of each core.
    pub wants_cores: bool,
    /// NCCL network plugin that must exist on the node.
    #[serde(with = "crate::serde_path::optional")]
    pub nccl_net_plugin: Option<PathBuf>,
    /// Library for ranks; `None` if the launcher has none.
    pub library: Option<LibrarySource>,
    /// Number of free TCP ports that the node holds until just before ranks start. A node with GPUs
    /// tries to hold one more, for NCCL's status service.
    pub held_ports: u32,
    /// MASTER_PORT as the user chose it, only on rank 0's node. It is the first of the held ports.
    pub master_port: Option<u16>,
    /// The node's configuration in the tree of agents.
    pub oob: OobConfig,
    /// Secret with which this node's ranks authenticate to the agent.
    pub token: Token,
}

impl Job {
    /// Returns the silence after which the other end of a connection is considered lost.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.silence_ms.into())
    }
}

/// Program of the job, with what its ranks have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// Number of the program in the job, from 0.
    pub index: u32,
    /// Program and arguments, at least one element.
    pub argv: Vec<OsString>,
    /// Working directory of its ranks.
    pub wdir: WorkingDir,
    /// Variables forwarded from the launching shell or set by `-x`, and PATH and PYTHONPATH.
    pub env: Vec<EnvVar>,
    /// Script that the program will read, whose presence is checked before any rank starts.
    pub script: Option<ScriptCheck>,
    /// Indices into [`Job::preload`] of the files that its arguments may name.
    pub preload: Vec<u32>,
    /// Whether its ranks start only with [`crate::protocol::control::ToAgent::StartApplication`].
    pub waits: bool,
}

/// Reaction to several ranks that run MPI without a process manager, so that each believes to be
/// rank 0 of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SingletonPolicy {
    /// End the job if the program itself is linked with MPI; warn if an MPI library was loaded
    /// later.
    #[default]
    Error,
    /// Warn.
    Warn,
    /// Do not look for MPI.
    Ignore,
}

/// Working directory of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkingDir {
    /// The launcher's directory if the node has it, otherwise the user's home directory.
    SameAsLauncher(#[serde(with = "crate::serde_path")] PathBuf),
    /// Directory that the user asked for. It must exist.
    Required(#[serde(with = "crate::serde_path")] PathBuf),
}

/// Environment variable of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    /// Name of the variable.
    pub name: OsString,
    /// Value of the variable.
    pub value: OsString,
    /// Rule for combining it with the node's own value.
    pub rule: EnvRule,
}

/// Rule for combining a variable with the node's own value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnvRule {
    /// Replace the node's value.
    Set,
    /// Search path: put these entries before the node's own.
    PathBefore,
    /// Search path: put these entries after the node's own.
    PathAfter,
    /// Set the variable only if the node has no value.
    Default,
}

/// Rank, with the parts of its description that differ from rank to rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSpec {
    /// Number of the rank.
    pub rank: Rank,
    /// Number of the rank on this node.
    pub local_rank: LocalRank,
    /// Index of its program in [`Job::applications`].
    pub application: u32,
    /// Variables of this rank only, without names that the user set by `-x`.
    pub env: Vec<(String, String)>,
    /// Whether it reads standard input; otherwise its stdin is empty.
    pub stdin: bool,
}

/// Settings of a rank that are decided only after every node has reported its inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSetup {
    /// CPUs that the rank may use; `None` for those of the agent.
    pub cpus: Option<CpuSet>,
    /// NUMA node whose memory the rank prefers.
    pub memory_node: Option<u32>,
    /// Variables that the rank gets unless the user or the host has set them.
    pub defaults: Vec<(String, String)>,
    /// Arguments that were unknown before, with their indices; 0 is the program.
    pub words: Vec<(u32, OsString)>,
    /// Variables set by the user whose values were unknown before. They replace all others.
    pub env: Vec<(OsString, OsString)>,
    /// Files to create before the rank starts.
    pub files: Vec<RankFile>,
}

/// File that is created for ranks of this node and removed when the job ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFile {
    /// Path of the file, relative to the rank's working directory unless it is absolute.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// Content of the file.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
}

/// TCP port that must accept a connection before an application may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedPort {
    /// Identifier chosen by the launcher.
    pub id: u32,
    /// Names or addresses of one host. The first that accepts a connection counts.
    pub hosts: Vec<String>,
    /// Port number.
    pub port: u16,
}

/// First argument of an interpreter that is not an option, if the launcher has a file of that name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptCheck {
    /// Path as typed, relative to the working directory.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// SHA-256 of the launcher's copy, if that is at most 1 MiB.
    pub sha256: Option<[u8; 32]>,
}

/// File that is copied to the node for this job. Arguments equal to `name` or `typed` are replaced
/// with the path of the copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreloadFile {
    /// Path as the user typed it.
    #[serde(with = "crate::serde_path")]
    pub typed: PathBuf,
    /// File name of the copy, without a directory.
    pub name: OsString,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits, at most `0o777`.
    pub mode: u32,
}

/// Description of a node that its agent sends first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Host name in the kernel.
    pub hostname: String,
    /// Architecture, `x86_64` or `aarch64`.
    pub arch: String,
    /// Process id of the agent.
    pub pid: u32,
    /// Process id of the guardian, the agent's parent, which cleans up if the agent dies.
    pub guardian: u32,
    /// Effective user id of the ranks.
    pub uid: u32,
    /// Addresses of interfaces that are up, without loopback and link-local ones.
    pub addresses: Vec<InterfaceAddress>,
    /// Address of this node to which the SSH connection was made; `None` if it was not started by
    /// SSH.
    pub ssh_address: Option<IpAddr>,
    /// Number of GPUs that programs can use.
    pub gpus: u32,
    /// Identity of this boot of the kernel and of the container. It is equal for two agents of one
    /// host, and different for two containers on one. Empty if the system does not provide it.
    pub machine: String,
}

impl NodeFacts {
    /// Tells whether two descriptions are of the same host. Virtual machines that were cloned while
    /// running share the boot identity, so host names and addresses are compared, too.
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

/// Address of an interface, with its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAddress {
    /// Name of the interface, such as `eth0`.
    pub interface: String,
    /// IP address.
    pub address: IpAddr,
    /// Length of the network prefix, at most 32 for IPv4 and 128 for IPv6.
    pub prefix: u8,
}

impl InterfaceAddress {
    /// Tells whether `other` is in the network of this address.
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

/// Reason why a node cannot run the job. All of them are found before any rank starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Problem {
    /// The program is not on the node's search path, or its path does not exist.
    NoProgram {
        /// Program as typed.
        program: OsString,
        /// Existing program with a similar name, such as `python3` for `python`.
        instead: Option<String>,
    },
    /// The program exists but is not executable.
    NotExecutable {
        /// Path of the program.
        #[serde(with = "crate::serde_path")]
        program: PathBuf,
    },
    /// The script that an interpreter is to run does not exist.
    NoScript {
        /// Script as typed.
        #[serde(with = "crate::serde_path")]
        script: PathBuf,
    },
    /// The directory given by `--wdir` does not exist.
    NoDirectory {
        /// Directory as typed.
        #[serde(with = "crate::serde_path")]
        directory: PathBuf,
    },
    /// A file given to an option does not exist.
    NoFile {
        /// Option, with its dashes.
        option: String,
        /// Path as typed.
        #[serde(with = "crate::serde_path")]
        path: PathBuf,
    },
    /// A preloaded file could not be stored.
    Preload {
        /// Operation that failed, with its path.
        operation: String,
        /// Error of the operating system.
        cause: String,
    },
    /// No port of the range is free.
    NoPort {
        /// Range of ports.
        range: PortRange,
    },
    /// The port that the user chose for MASTER_PORT is in use.
    PortTaken {
        /// Port number.
        port: u16,
    },
    /// The program is linked with MPI, and there is no process manager for it.
    Singleton {
        /// Path of the program.
        #[serde(with = "crate::serde_path")]
        program: PathBuf,
        /// File name of the MPI library, such as `libmpi.so.40`.
        library: String,
        /// Process management interface that the library needs: `PMI` or `PMIx`.
        needs: String,
    },
    /// The operating system refused something else that the job needs.
    System {
        /// Operation that failed.
        operation: String,
        /// Error of the operating system.
        cause: String,
    },
}

/// Something that the user should know, but that does not prevent the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The launcher's directory does not exist on the node; ranks run in the user's home directory.
    RunsInHome {
        /// Home directory.
        #[serde(with = "crate::serde_path")]
        home: PathBuf,
    },
    /// The node's copy of the script differs from the launcher's.
    ScriptDiffers {
        /// Script as typed.
        #[serde(with = "crate::serde_path")]
        script: PathBuf,
    },
    /// The job's own directory could not be created; ranks run without the files in it.
    NoWorkspace {
        /// Directories that were tried, with the errors of the operating system.
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
