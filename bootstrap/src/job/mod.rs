//! Description of a job for one node: programs, environment, ranks, and conditions to check before
//! any rank starts. Also the types of the node's answers: [`NodeFacts`], [`Problem`] and
//! [`Notice`].

pub mod library;
mod problem;
pub mod seal;

pub use crate::id::ExitStatus;
pub use crate::rendezvous::oob::PortRange;
pub use problem::{FewFiles, HiddenBy, Notice, PathDefect, Problem, ProgramDefect};

use crate::id::{JobId, LocalRank, NodeId, Rank};
use crate::inventory::CpuSet;
use crate::job::library::LibrarySource;
use crate::rendezvous::oob::OobConfig;
use crate::security::Token;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything that an agent needs to prepare and start its ranks. It is sent over the control
/// channel, never on a command line, where other users could read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    /// Number of the node that receives this description.
    pub node: NodeId,
    /// Name of the host as the user typed it, for tags of output and for messages.
    pub host: String,
    /// Whether the node's own environment is read from the user's login shell on the node.
    pub login: bool,
    /// Programs that ranks of this node run, at least one.
    pub applications: Vec<Application>,
    /// Ranks of this node, indexed by local rank.
    pub ranks: Vec<RankSpec>,
    /// Files that the launcher sends next, as [`crate::protocol::control::ToAgent::File`] frames.
    pub preload: Vec<PreloadFile>,
    /// Whether ranks run the program that copies files. Its hash comes next; the node may have it already.
    pub runs_copier: bool,
    /// Copy of a working tree, of which the agent says in the end what ranks have written in it. `~/` is the home directory.
    #[serde(with = "crate::serde_path::optional")]
    pub tree: Option<PathBuf>,
    /// Grace period: time between SIGTERM and SIGKILL when ranks are ended, in milliseconds.
    pub kill_after_ms: u32,
    /// Node timeout: the peer on a connection is considered lost when nothing was received from it
    /// for this time, in milliseconds.
    pub node_timeout_ms: u32,
    /// Time after which the launcher is considered lost from which nothing was received although its machine acknowledges
    /// what it is sent, in milliseconds. Such a launcher is stopped, or gets no CPU.
    pub launcher_timeout_ms: u32,
    /// Credit for output, in bytes, that the agent has before the launcher grants more.
    pub output_window: u32,
    /// Whether output carries the time at which the agent read it.
    pub stamp_output: bool,
    /// Whether the stderr of each rank is merged into its stdout, in the order of the writes.
    pub merge_stderr: bool,
    pub pseudoterminals: Pseudoterminals,
    /// Number of ranks in the job, on all nodes.
    pub world_size: u32,
    /// Process management interfaces that the agent serves to MPI programs.
    pub mpi: MpiInterfaces,
    /// Reaction to ranks that run MPI without a process manager.
    pub singleton: SingletonPolicy,
    /// Whether the inventory must list the hardware threads of each core.
    pub wants_cores: bool,
    pub binding: Binding,
    /// Path of an NCCL network plugin that must exist on the node; `None` if the job uses none.
    #[serde(with = "crate::serde_path::optional")]
    pub nccl_net_plugin: Option<PathBuf>,
    /// Library for ranks; `None` if the launcher has none.
    pub library: Option<LibrarySource>,
    /// Number of free TCP ports that the agent reserves until just before the ranks start. If the
    /// node has GPUs, the agent tries to reserve one more, for NCCL's status service.
    pub reserved_port_count: u32,
    /// MASTER_PORT that the user chose, on rank 0's node only. It is the first of the reserved
    /// ports.
    pub master_port: Option<u16>,
    /// Configuration of the agent in the tree of agents.
    pub oob: OobConfig,
    /// Secret with which the job's ranks authenticate to their agents.
    pub token: Token,
}

impl Job {
    /// Returns the node timeout, [`Job::node_timeout_ms`].
    pub fn node_timeout(&self) -> Duration {
        Duration::from_millis(self.node_timeout_ms.into())
    }

    /// Returns [`Job::launcher_timeout_ms`].
    pub fn launcher_timeout(&self) -> Duration {
        Duration::from_millis(self.launcher_timeout_ms.into())
    }
}

/// Program of the job, with the settings that its ranks have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// Number of the program in the job, from 0.
    pub index: u32,
    /// Program and its arguments; has at least one element.
    pub argv: Vec<OsString>,
    /// Further names of the program. A node that does not have it under the first name runs the
    /// first of these that it has.
    pub other_names: Vec<OsString>,
    /// Working directory of the program's ranks.
    pub wdir: WorkingDir,
    /// Variables that are forwarded from the launching shell or were set by `-x`, and PATH and
    /// PYTHONPATH.
    pub env: Vec<EnvVar>,
    /// Script that the program is going to read. The agent checks that it exists before any rank
    /// starts.
    pub script: Option<ScriptCheck>,
    /// Path of the program in the launcher's virtual environment, if it is there. A node that runs
    /// another one says so.
    pub in_environment: Option<PathBuf>,
    /// Whether ranks are offered a process manager of MPI. A service is not: what it runs is no rank.
    pub offers_mpi: bool,
    /// Indices into [`Job::preload`] of the files that arguments of this program may name.
    pub preload: Vec<u32>,
    /// Whether the ranks start only after [`crate::protocol::control::ToAgent::StartApplication`].
    pub starts_on_request: bool,
}

/// Ranks whose stdout is a pseudoterminal, from whose other end the agent reads. To a terminal stdio of C and Perl
/// writes each line at once; to a pipe, which other ranks have, it writes blocks of some KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pseudoterminals {
    #[default]
    None,
    /// The only rank of a job, and ranks of MPI programs, as with mpirun. They get a pipe where no
    /// pseudoterminal can be opened.
    Usual(TerminalSize),
    /// All ranks. One for which no pseudoterminal can be opened does not start.
    All(TerminalSize),
}

impl Pseudoterminals {
    /// Returns the same choice with this size, if one is known.
    #[must_use]
    pub fn with_size(self, size: Option<TerminalSize>) -> Pseudoterminals {
        match (self, size) {
            (Pseudoterminals::Usual(_), Some(size)) => Pseudoterminals::Usual(size),
            (Pseudoterminals::All(_), Some(size)) => Pseudoterminals::All(size),
            (other, _) => other,
        }
    }
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// Process management interfaces that ranks are offered. An MPI library asks one of them for its
/// rank and for the addresses of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiInterfaces {
    /// The interface of the MPI library that the program is linked with; both if the program is not
    /// linked with a known one.
    #[default]
    Auto,
    /// PMIx, for Open MPI.
    Pmix,
    /// PMI-1, for MPICH, Intel MPI and MVAPICH.
    Pmi1,
    None,
}

/// Reaction to ranks that run MPI without a process manager. Each of them believes that it is rank
/// 0 of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SingletonPolicy {
    /// End the job if the program's own file is linked with MPI. Only warn if a rank has loaded an
    /// MPI library in another way.
    #[default]
    Error,
    /// Warn, and let the ranks run.
    Warn,
    /// Do not check for MPI.
    Ignore,
}

/// Working directory in which ranks start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkingDir {
    /// The launcher's directory if it exists on the node, otherwise the user's home directory.
    SameAsLauncher(LauncherDir),
    /// Directory that the user chose; `~/x` is in the user's home directory on the node. The job fails if it
    /// does not exist there.
    Required(#[serde(with = "crate::serde_path")] PathBuf),
}

/// Puts the home directory in the place of a `~` at the beginning of a path, as a shell does. Shells leave
/// it where a word does not begin with it, as in `--wdir=~/x`.
pub fn below_home(path: &Path, home: Option<&OsStr>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        // Joined to an empty path, a directory would end in a slash.
        (Ok(below), Some(home)) => Path::new(home).join(below).components().collect(),
        _ => path.to_owned(),
    }
}

/// Working directory of the launcher. Nodes may have it under one of its two paths alone: where each
/// machine has a link of its own to a shared directory, only `path` is the same everywhere; a link
/// that the user made may be on the launching machine only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherDir {
    /// Path by which the user's shell knows the directory, with the links that it went through. A
    /// node that has it uses it.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// Path without symbolic links.
    #[serde(with = "crate::serde_path")]
    pub physical: PathBuf,
}

/// Tells whether a command line runs Python, as far as its words say: a Python, a script for one, or a program that is written
/// in it and starts others.
pub fn runs_python(argv: &[OsString]) -> bool {
    const PROGRAMS: [&[u8]; 8] =
        [b"accelerate", b"deepspeed", b"fabric", b"lightning", b"ray", b"sglang", b"uv", b"vllm"];
    argv.iter().any(|word| {
        let name = Path::new(word).file_name().unwrap_or_default().as_encoded_bytes();
        [&b"python"[..], b"torchrun"].iter().any(|start| name.starts_with(start))
            || name.ends_with(b".py")
            || PROGRAMS.contains(&name)
    })
}

impl From<PathBuf> for LauncherDir {
    fn from(path: PathBuf) -> LauncherDir {
        LauncherDir { physical: path.clone(), path }
    }
}

impl From<&str> for LauncherDir {
    fn from(path: &str) -> LauncherDir {
        PathBuf::from(path).into()
    }
}

/// Environment variable that is set for ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    pub name: OsString,
    pub value: OsString,
    /// Rule for combining the value with the value that the node's own environment has.
    pub rule: EnvRule,
}

/// Whether ranks are going to be bound to CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binding {
    None,
    /// Bound, but they run all the same where that is forbidden.
    Usual,
    /// Bound, because the user has asked for it.
    Required,
}

/// Rule for combining the value of a variable with the value that the node's own environment has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnvRule {
    /// Replace the value that the node's own environment has.
    Set,
    /// Add these entries of a search path before the node's own.
    PathBefore,
    /// Add these entries of a search path after the node's own.
    PathAfter,
    /// Set the variable only if the node has no value.
    Default,
}

/// Rank of this node, with the settings that differ from rank to rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSpec {
    pub rank: Rank,
    /// Number of the rank on this node.
    pub local_rank: LocalRank,
    /// Index of the rank's program in [`Job::applications`].
    pub application: u32,
    /// Variables that only this rank gets. Names that the user has set by `-x` are left out.
    pub env: Vec<(String, String)>,
    /// Whether the rank reads standard input; otherwise its stdin is empty.
    pub stdin: bool,
}

/// Settings of a rank that can be decided only after every node has reported its inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSetup {
    /// CPUs that the rank may use; `None` for all CPUs that the agent may use.
    pub cpus: Option<CpuSet>,
    /// Number of the NUMA node whose memory the rank prefers; `None` for no preference.
    pub memory_node: Option<u32>,
    /// Variables that the rank gets if neither the user nor the host has set them.
    pub defaults: Vec<(String, String)>,
    /// Arguments that contain placeholders, rendered for this rank, with their positions in
    /// [`Application::argv`]. Position 0 is the program. Those that are empty are left out.
    pub rendered_args: Vec<(u32, OsString)>,
    /// Variables whose values contain placeholders, rendered for this rank. They replace all
    /// other values.
    pub rendered_env: Vec<(OsString, OsString)>,
    /// Files to create before the rank starts.
    pub files: Vec<RankFile>,
}

/// File that the agent creates for a rank and removes when the job ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFile {
    /// Path of the file, relative to the rank's working directory unless it is absolute.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
}

/// TCP port that must accept a connection before a waiting application may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedPort {
    /// Identifier that the launcher has chosen for the port.
    pub id: u32,
    /// Names or addresses of one host. It is enough that one of them accepts a connection.
    pub hosts: Vec<String>,
    pub port: u16,
}

/// Script that an interpreter runs, if a file or directory of that name exists on the launcher's machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptCheck {
    /// Path of the script as the user typed it, relative to the working directory.
    #[serde(with = "crate::serde_path")]
    pub path: PathBuf,
    /// SHA-256 of the launcher's copy; `None` if that is longer than 1 MiB or cannot be read.
    pub sha256: Option<[u8; 32]>,
    /// Package or module of Python that `path` is a part of, if the script is named as a module. A node may have it
    /// elsewhere, where it is installed.
    pub package: Option<String>,
}

/// File that is copied to the node for this job. If an argument of a rank equals `typed_path` or
/// `name`, the path of the copy replaces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreloadFile {
    /// Path of the file on the launcher's machine, as the user typed it.
    #[serde(with = "crate::serde_path")]
    pub typed_path: PathBuf,
    /// File name of the copy, without its directory.
    pub name: OsString,
    /// Size of the file, in bytes.
    pub size: u64,
    /// Permission bits of the copy, at most `0o777`.
    pub mode: u32,
}

/// Description of a node, which its agent sends in its first message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Host name that the kernel reports.
    pub hostname: String,
    /// Architecture of the CPUs, `x86_64` or `aarch64`.
    pub arch: String,
    /// Process id of the agent.
    pub pid: u32,
    /// Process id of the guardian, the agent's parent, which cleans up if the agent dies.
    pub guardian: u32,
    /// Effective user id of the ranks.
    pub uid: u32,
    /// Addresses of interfaces that are up, except loopback and link-local addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Address of this node to which the SSH connection was made; `None` if the agent was not
    /// started over SSH.
    pub ssh_address: Option<IpAddr>,
    /// Number of GPUs that programs on the node can use.
    pub gpus: u32,
    /// Identity of this boot of the kernel and of the container. It is equal for two agents in the
    /// same container, or on the same host without a container. Empty if the system does not
    /// provide it.
    pub machine: String,
}

impl NodeFacts {
    /// Tells whether two descriptions are of the same host. Compares host names and addresses as
    /// well, because virtual machines that were cloned while running have the same boot identity.
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

/// IP address of a network interface, with the network that the interface belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAddress {
    /// Name of the interface, such as `eth0`.
    pub interface: String,
    pub address: IpAddr,
    /// Length of the network prefix in bits, at most 32 for IPv4 and 128 for IPv6.
    pub prefix: u8,
}

impl InterfaceAddress {
    /// Tells whether `other` belongs to the network of this interface.
    pub fn same_network(&self, other: IpAddr) -> bool {
        let prefix = u32::from(self.prefix);
        // A prefix of 0 would shift by the whole width, which is no shift: its mask is 0.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn net(address: &str, prefix: u8) -> InterfaceAddress {
        let address = address.parse().unwrap();
        InterfaceAddress { interface: "eth0".into(), address, prefix }
    }

    #[test]
    fn words_say_whether_python_runs() {
        let runs = |word: &&str| runs_python(&["env".into(), word.into()]);
        let words = ["/usr/bin/python3.11", "torchrun", "train.py", "/venv/bin/accelerate", "uv"];
        assert!(words.iter().all(runs));
        let words = ["sh", "/opt/python/x", "raytrace", ""];
        assert!(!words.iter().any(runs));
    }

    #[test]
    fn a_terminal_has_the_size_that_is_known() {
        let [then, now] = [80, 100].map(|columns| TerminalSize { rows: 24, columns });
        let usual = Pseudoterminals::Usual(then);
        assert_eq!(usual.with_size(Some(now)), Pseudoterminals::Usual(now));
        assert_eq!(Pseudoterminals::All(then).with_size(Some(now)), Pseudoterminals::All(now));
        assert_eq!(usual.with_size(None), usual);
        assert_eq!(Pseudoterminals::None.with_size(Some(now)), Pseudoterminals::None);
    }

    #[test]
    fn a_tilde_that_a_shell_left_is_the_home_directory() {
        let of = |path: &str| below_home(Path::new(path), Some(OsStr::new("/home/me")));
        for (path, expected) in [
            ("~", "/home/me"),
            ("~/", "/home/me"),
            ("~/run/1", "/home/me/run/1"),
            ("./~/run", "./~/run"),
            ("~you/run", "~you/run"),
            ("/a/~", "/a/~"),
        ] {
            assert_eq!(of(path).into_os_string(), OsString::from(expected), "{path}");
        }
        assert_eq!(below_home(Path::new("~/run"), None), Path::new("~/run"));
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
