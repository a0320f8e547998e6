//! Input of checks.

use crate::findings::CheckId;
use crate::plan::options::Transport;
use crate::plan::selection::{Plan, PortOptions};
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_bootstrap::inventory::rdma::{Port, RdmaDevice};
use std::net::IpAddr;
use std::path::PathBuf;

/// Hosts, and all that is known of them.
#[derive(Debug, Default)]
pub(crate) struct Cluster<'a> {
    /// Hosts whose agents answered, in the order in which the user named them.
    pub(crate) hosts: Vec<ClusterHost<'a>>,
    /// Hosts that were not reached, with the reason.
    pub(crate) unreached: Vec<Unreached>,
    /// Hosts among `hosts` whose agents run outside of the container that the user named, with the
    /// reason.
    pub(crate) outside: Vec<Unreached>,
    /// RDMA ports that a job could use, and which of them reach each other. Nodes have the indexes of `hosts`.
    pub(crate) plan: Option<&'a Plan>,
    /// The user's options for RDMA ports.
    pub(crate) ports: PortOptions,
    pub(crate) transport: Transport,
    /// First and last TCP port that rlaunch may use, if the user limits them.
    pub(crate) port_range: Option<(u16, u16)>,
    /// Whether agents should run in a container that the user named.
    pub(crate) in_container: bool,
    /// Results of probes between hosts; `None` if there were none.
    pub(crate) probes: Option<&'a [Probe]>,
    /// Program of the job; `None` if none was given.
    pub(crate) program: Option<&'a JudgedProgram>,
    /// Files below `~/.ssh` that ssh would refuse, with the reason.
    pub(crate) ssh_files: Vec<(PathBuf, String)>,
}

/// Host whose agent answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterHost<'a> {
    /// Name by which the user knows the host.
    pub(crate) name: &'a str,
    pub(crate) inventory: &'a Inventory,
    /// `None` in a job, which does not read them.
    pub(crate) diagnostics: Option<&'a Diagnostics>,
    /// User id of the agent, 0 for root.
    pub(crate) uid: u32,
    /// Address at which other hosts reach this one, as far as it is known.
    pub(crate) address: Option<IpAddr>,
    /// Time by which the host's clock is ahead of the launcher's, and the uncertainty, in microseconds.
    pub(crate) clock_offset: Option<(i64, u64)>,
    /// Text that the login shell printed before the agent's first byte.
    pub(crate) shell_noise: Option<&'a str>,
    /// State of the program on this host; `None` if no program was given.
    pub(crate) program: Option<&'a ProgramOnHost>,
}

impl<'a> ClusterHost<'a> {
    /// Makes a host of which nothing else is known.
    pub(crate) fn new(
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
    pub(crate) fn rdma_ports(&self) -> impl Iterator<Item = (&'a RdmaDevice, &'a Port)> + use<'a> {
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
pub(crate) struct Unreached {
    pub(crate) host: String,
    pub(crate) stage: ReachStage,
    /// Error with its causes, in one line.
    pub(crate) cause: String,
    /// Advice of the error.
    pub(crate) hints: Vec<String>,
}

/// Stage at which a host was not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReachStage {
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
pub(crate) struct Probe {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) kind: ProbeKind,
    /// Interface from which packets were sent.
    pub(crate) netdev: Option<String>,
    /// Address to which packets were sent.
    pub(crate) address: Option<IpAddr>,
    pub(crate) outcome: ProbeOutcome,
}

/// Kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
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

/// Outcome of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeOutcome {
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

/// Failure of the proof of an RDMA path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProofFailure {
    /// Id of the finding that the failure states.
    pub(crate) finding: CheckId,
    /// Step and error, as in `token: transport retry counter exceeded (status 12)`.
    pub(crate) cause: String,
    pub(crate) hint: Option<String>,
    /// Whether the host itself lacks something, whichever its peer is.
    pub(crate) is_of_host: bool,
}

/// Program that the user wants to run.
#[derive(Clone, Debug, Default)]
pub(crate) struct JudgedProgram {
    /// Words of its command line.
    pub(crate) words: Vec<String>,
    /// Words of the command line that are files on the launcher's machine.
    pub(crate) files_here: Vec<String>,
    /// Files of the program whose contents differ between hosts: path, and the groups of hosts with
    /// equal contents.
    pub(crate) differing: Vec<(String, Vec<Vec<String>>)>,
}

/// Program as it was found on one host.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgramOnHost {
    /// Whether the program itself was not found.
    pub(crate) is_absent: bool,
    /// Files that are missing, with the reason.
    pub(crate) missing: Vec<(String, String)>,
    /// MPI library that the program would load, and what it needs, if rlaunch does not serve it.
    pub(crate) unserved_mpi: Option<(String, String)>,
    /// Whether its Horovod is built with MPI alone; `None` if it has none.
    pub(crate) horovod_mpi_only: Option<bool>,
}
