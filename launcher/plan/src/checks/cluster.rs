//! Input of checks.

use crate::findings::CheckId;
use crate::options::Transport;
use crate::selection::{Plan, PortOptions};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_bootstrap::inventory::rdma::{Port, RdmaDevice};
use rlaunch_bootstrap::protocol::diagnosis::ProbeResult;
use std::net::IpAddr;
use std::path::PathBuf;

/// Hosts, and all that is known of them.
#[derive(Debug, Default)]
pub struct Cluster<'a> {
    /// Hosts whose agents answered, in the order in which the user named them.
    pub hosts: Vec<ClusterHost<'a>>,
    /// Hosts that were not reached, with the reason.
    pub unreached: Vec<Unreached>,
    /// Hosts among `hosts` whose agents run outside of the container that the user named, with the
    /// reason.
    pub outside: Vec<Unreached>,
    /// RDMA ports that a job could use, and which of them reach each other. Nodes have the indexes of `hosts`.
    pub plan: Option<&'a Plan>,
    /// The user's options for RDMA ports.
    pub ports: PortOptions,
    pub transport: Transport,
    /// First and last TCP port that rlaunch may use, if the user limits them.
    pub port_range: Option<(u16, u16)>,
    /// Whether agents should run in a container that the user named.
    pub in_container: bool,
    /// Results of probes between hosts; `None` if there were none.
    pub probes: Option<&'a [Probe]>,
    /// Result of the proof of RDMA paths.
    pub proof: Proof,
    /// Program of the job; `None` if none was given.
    pub program: Option<&'a JudgedProgram>,
    /// Files below `~/.ssh` that ssh would refuse, with the reason.
    pub ssh_files: Vec<(PathBuf, String)>,
}

/// Host whose agent answered.
#[derive(Clone, Copy, Debug)]
pub struct ClusterHost<'a> {
    /// Name by which the user knows the host.
    pub name: &'a str,
    pub inventory: &'a Inventory,
    /// `None` in a job, which does not read them.
    pub diagnostics: Option<&'a Diagnostics>,
    /// User id of the agent, 0 for root.
    pub uid: u32,
    /// Address at which other hosts reach this one, as far as it is known.
    pub address: Option<IpAddr>,
    /// Time by which the host's clock is ahead of the launcher's, and the uncertainty, in microseconds.
    pub clock_offset: Option<(i64, u64)>,
    /// Text that the login shell printed before the agent's first byte.
    pub shell_noise: Option<&'a str>,
    /// State of the program on this host; `None` if no program was given.
    pub program: Option<&'a ProgramOnHost>,
}

impl<'a> ClusterHost<'a> {
    /// Makes a host of which nothing else is known.
    pub fn new(
        name: &'a str,
        inventory: &'a Inventory,
        diagnostics: impl Into<Option<&'a Diagnostics>>,
    ) -> ClusterHost<'a> {
        ClusterHost {
            name,
            inventory,
            diagnostics: diagnostics.into(),
            uid: 0,
            address: None,
            clock_offset: None,
            shell_noise: None,
            program: None,
        }
    }

    /// Lists RDMA ports with their devices.
    pub fn rdma_ports(&self) -> impl Iterator<Item = (&'a RdmaDevice, &'a Port)> + use<'a> {
        let devices = self.inventory.rdma.iter();
        devices.flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    }

    /// Returns the interface of an RDMA port.
    pub(crate) fn netdev_of(&self, port: &Port) -> Option<&'a Netdev> {
        let name = port.netdev.as_ref()?;
        self.inventory.netdevs.iter().find(|netdev| netdev.name == *name)
    }
}

impl<'a> Cluster<'a> {
    /// Lists the hosts that were diagnosed, with their diagnostics.
    pub(crate) fn diagnosed(
        &self,
    ) -> impl Iterator<Item = (&ClusterHost<'a>, &'a Diagnostics)> + use<'_, 'a> {
        self.hosts.iter().filter_map(|host| Some((host, host.diagnostics?)))
    }
}

/// Host that was not reached.
#[derive(Clone, Debug)]
pub struct Unreached {
    pub host: String,
    pub stage: ReachStage,
    /// Error with its causes, in one line.
    pub cause: String,
    /// Advice of the error.
    pub hints: Vec<String>,
}

/// Stage at which a host was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachStage {
    /// Name, route, TCP connection or SSH protocol.
    Connect,
    /// The host key is not the known one.
    HostKey,
    /// The login was refused.
    Login,
    /// The login works, but ends on the host and not in the container.
    Landing,
    /// The host has an architecture or a C library for which there is no agent.
    Architecture,
    /// The shell has no stdin, and the host cannot connect to the launcher instead.
    Callback,
    /// The agent could not be installed, or did not answer.
    Agent,
}

/// Result of a probe from one host to another. Both are indexes of `Cluster::hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub from: usize,
    pub to: usize,
    pub kind: ProbeKind,
    /// Interface from which packets were sent.
    pub netdev: Option<String>,
    /// Address to which packets were sent.
    pub address: Option<IpAddr>,
    pub outcome: ProbeOutcome,
}

/// Kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// A TCP connection to an agent.
    Tcp,
    /// UDP datagrams between addresses of RDMA interfaces: a short one, and one whose IP packet has this many
    /// bytes and may not be fragmented.
    PathMtu(u32),
    /// A queue pair that wrote a token and a block of 64 KiB.
    Rdma,
    /// Write bandwidth over a path, with the limit of the slower port, in megabits per second.
    Bandwidth { limit: Option<u32> },
}

/// Result of the proof of RDMA paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Paths were tried. `paths` counts each direction of each pair of ports.
    Tried { paths: usize },
    /// There is no path to try.
    NotApplicable(&'static str),
    /// Paths were not tried; what that needs, or why it failed.
    NotRun(String),
}

impl Default for Proof {
    fn default() -> Proof {
        Proof::NotRun("probes (--probe)".to_owned())
    }
}

/// Outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// It worked; the number is the round-trip time in microseconds, or a bandwidth in megabits per second.
    Worked(u64),
    /// Short packets arrive and long ones do not.
    OnlyShort,
    /// Nothing came back.
    Silent,
    /// It failed at once, with this error.
    Failed(String),
    /// The proof of an RDMA path failed, and not because of long packets. The probe is from the end that says why.
    Unproved(ProofFailure),
}

impl From<ProbeResult> for ProbeOutcome {
    fn from(result: ProbeResult) -> ProbeOutcome {
        match result {
            ProbeResult::Worked { micros } => ProbeOutcome::Worked(micros),
            ProbeResult::OnlyShort { .. } => ProbeOutcome::OnlyShort,
            ProbeResult::Silent => ProbeOutcome::Silent,
            ProbeResult::Failed(cause) => ProbeOutcome::Failed(cause),
        }
    }
}

/// Failure of the proof of an RDMA path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProofFailure {
    /// Id of the finding that the failure states.
    pub finding: CheckId,
    /// Step and error, as in `token: transport retry counter exceeded (status 12)`.
    pub cause: String,
    pub hint: Option<String>,
    /// Whether the host itself lacks something, whichever its peer is.
    pub is_of_host: bool,
}

/// Program that the user wants to run.
#[derive(Clone, Debug, Default)]
pub struct JudgedProgram {
    /// Words of its command line.
    pub words: Vec<String>,
    /// Words of the command line that are files on the launcher's machine.
    pub files_here: Vec<String>,
    /// Files of the program whose contents differ between hosts: path, and the groups of hosts with
    /// equal contents.
    pub differing: Vec<(String, Vec<Vec<String>>)>,
}

/// Program as it was found on one host.
#[derive(Clone, Debug, Default)]
pub struct ProgramOnHost {
    /// Whether the program itself was not found.
    pub is_absent: bool,
    /// Files that are missing, with the reason.
    pub missing: Vec<(String, String)>,
    /// MPI library that the program would load, and what it needs, if rlaunch does not serve it.
    pub unserved_mpi: Option<(String, String)>,
    /// Whether its Horovod is built with MPI alone; `None` if it has none.
    pub horovod_mpi_only: Option<bool>,
}
