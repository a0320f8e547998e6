//! What a node has: processors, memory, PCI devices, RDMA ports, network interfaces, GPUs.
//!
//! The agent reads it from the kernel's files, the launcher decides by it. `None` and empty lists
//! stand for what the kernel does not say; nothing here is guessed. In reading order:
//! [`CpuSet`], the [`pci`] paths of devices and what limits them, [`rdma`] devices with their
//! ports, [`net`] interfaces; and the [`recording`] of the files that all of it was read from.

mod cpu_set;
pub mod net;
pub mod pci;
pub mod rdma;
pub mod recording;

pub use cpu_set::{CpuListError, CpuSet};

use net::{Netdev, Route};
use pci::PciDevice;
use rdma::RdmaDevice;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;

/// Everything that is known of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Its processors.
    pub cpus: Cpus,
    /// Its memory, by NUMA node in order of their numbers.
    pub numa_nodes: Vec<NumaNode>,
    /// What processes of this user may take.
    pub limits: ResourceLimits,
    /// In order of their PCI addresses.
    pub gpus: Vec<Gpu>,
    /// In order of their names.
    pub rdma: Vec<RdmaDevice>,
    /// In order of their indices.
    pub netdevs: Vec<Netdev>,
    /// Of interfaces that could belong to an RDMA port, in the kernel's order.
    pub routes: Vec<Route>,
    /// What runs there.
    pub system: System,
}

impl Inventory {
    /// The network interface that has this address.
    pub fn netdev_with_address(&self, address: IpAddr) -> Option<&Netdev> {
        let has_it = |netdev: &&Netdev| netdev.addresses.iter().any(|(own, _)| *own == address);
        self.netdevs.iter().find(has_it)
    }
}

/// Processors of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// Those that are there and on.
    pub online: CpuSet,
    /// Those that ranks may run on: what the agent itself is allowed.
    pub allowed: CpuSet,
    /// Which of them are threads of one core, core by core in order of their first; empty where the
    /// kernel does not say, or was not asked.
    pub cores: Vec<CpuSet>,
    /// How much processor time the control group grants, in thousandths of a processor; `None`
    /// without a limit.
    pub quota: Option<u32>,
}

impl Cpus {
    /// How many processors ranks can keep busy: at least one.
    pub fn usable(&self) -> usize {
        let allowed = self.allowed.len().max(1);
        // Half a processor is still one that a rank runs on.
        let granted = self.quota.map(|quota| quota.div_ceil(1000).max(1) as usize);
        granted.map_or(allowed, |granted| granted.min(allowed))
    }
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Its processors.
    pub cpus: CpuSet,
    /// Its memory in bytes.
    pub memory: Option<u64>,
    /// How far other nodes are, as the firmware says: 10 is here. In order of their numbers.
    pub distances: Vec<u32>,
}

/// What processes may take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Bytes that may be locked in memory, which RDMA needs; `None` without a limit.
    pub locked_memory: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
    /// Bytes of memory that the control group grants; `None` without a limit.
    pub memory: Option<u64>,
    /// Bytes of `/dev/shm`; `None` when it cannot be seen.
    pub shared_memory: Option<u64>,
}

/// A graphics or compute processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Who makes it.
    pub vendor: GpuVendor,
    /// `NVIDIA A100-SXM4-40GB`, where the driver says so.
    pub model: Option<String>,
    /// Where it is.
    pub pci: PciDevice,
}

/// Who makes a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuVendor {
    /// PCI vendor 10de.
    Nvidia,
    /// PCI vendor 1002.
    Amd,
}

/// What runs on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// `6.1.0-25-amd64`.
    pub kernel: Option<String>,
    /// `Debian GNU/Linux 12 (bookworm)`.
    pub distribution: Option<String>,
    /// Drivers that say their version, by name: `mlx5_core`, `nvidia`.
    pub drivers: Vec<(String, String)>,
    /// Libraries that programs would load, and their versions: `libibverbs`, `libcuda`.
    pub libraries: Vec<(String, String)>,
    /// A driver lets NICs read and write the memory of GPUs (`nvidia_peermem`).
    pub peer_memory: bool,
    /// An IOMMU is at work: devices may see addresses that it translates.
    pub iommu: bool,
    /// The NCCL that the job's program would load.
    pub nccl: Option<InstalledLibrary>,
    /// The container that this is, where it shows.
    #[serde(default)]
    pub container: Option<ContainerKind>,
    /// What libibverbs finds to drive RDMA devices by, in order of their names: `mlx5`, `rxe`.
    #[serde(default)]
    pub providers: Vec<String>,
}

/// What has made a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerKind {
    /// Docker (`/.dockerenv`).
    Docker,
    /// Podman, and toolbox by it (`/run/.containerenv`).
    Podman,
    /// Kubernetes, whatever it runs its pods by.
    Kubernetes,
}

impl fmt::Display for ContainerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ContainerKind::Docker => "docker",
            ContainerKind::Podman => "podman",
            ContainerKind::Kubernetes => "kubernetes",
        })
    }
}

/// A library and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledLibrary {
    /// `2.30.7`.
    pub version: String,
    /// Where it is, or what says so.
    pub path: String,
}
