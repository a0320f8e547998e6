//! Hardware and system software of a node: CPUs, memory, PCI devices, RDMA ports, network
//! interfaces, GPUs.
//!
//! The agent reads all of it from files of the kernel; the launcher uses it for placement and for
//! the choice of NICs. Anything that the kernel does not report is `None` or an empty list, never a
//! guess.
//!
//! | module | contents |
//! |---|---|
//! | `cpu_set` | [`CpuSet`] |
//! | [`pci`] | PCI devices, the links above them, distances between devices |
//! | [`rdma`] | RDMA devices, their ports and GID tables |
//! | [`net`] | network interfaces and routes |
//! | [`recording`] | copies of the files that an inventory was read from |

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

/// Hardware and system software of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// CPUs of the node.
    pub cpus: Cpus,
    /// NUMA nodes with their memory, in order of their numbers.
    pub numa_nodes: Vec<NumaNode>,
    /// Resource limits of this user's processes.
    pub limits: ResourceLimits,
    /// GPUs, in order of their PCI addresses.
    pub gpus: Vec<Gpu>,
    /// RDMA devices, in order of their names.
    pub rdma: Vec<RdmaDevice>,
    /// Network interfaces, in order of their indices.
    pub netdevs: Vec<Netdev>,
    /// Routes through interfaces that may belong to an RDMA port, in the kernel's order.
    pub routes: Vec<Route>,
    /// Kernel, drivers and libraries.
    pub system: System,
}

impl Inventory {
    /// Returns the network interface that has this IP address.
    pub fn netdev_with_address(&self, address: IpAddr) -> Option<&Netdev> {
        let has_it = |netdev: &&Netdev| netdev.addresses.iter().any(|(own, _)| *own == address);
        self.netdevs.iter().find(has_it)
    }
}

/// CPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// CPUs that are present and online.
    pub online: CpuSet,
    /// CPUs that the agent, and with it the ranks, may run on.
    pub allowed: CpuSet,
    /// Hardware threads of each core, ordered by the first thread. Empty if the kernel does not
    /// report them or the job did not ask for them.
    pub cores: Vec<CpuSet>,
    /// CPU time granted by the control group, in thousandths of a CPU; `None` without a limit.
    pub quota: Option<u32>,
}

impl Cpus {
    /// Returns how many CPUs the ranks can keep busy, at least 1.
    pub fn usable(&self) -> usize {
        let allowed = self.allowed.len().max(1);
        // A rank can run on half a CPU, too.
        let granted = self.quota.map(|quota| quota.div_ceil(1000).max(1) as usize);
        granted.map_or(allowed, |granted| granted.min(allowed))
    }
}

/// NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Number of the NUMA node.
    pub number: u32,
    /// CPUs of the NUMA node.
    pub cpus: CpuSet,
    /// Memory, in bytes.
    pub memory: Option<u64>,
    /// Distances to all NUMA nodes in order of their numbers, from the firmware. The distance to
    /// itself is 10.
    pub distances: Vec<u32>,
}

/// Resource limits of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Memory that may be locked, in bytes, as RDMA requires; `None` without a limit.
    pub locked_memory: Option<u64>,
    /// Number of open files; `None` without a limit.
    pub open_files: Option<u64>,
    /// Memory granted by the control group, in bytes; `None` without a limit.
    pub memory: Option<u64>,
    /// Size of `/dev/shm`, in bytes; `None` if it cannot be read.
    pub shared_memory: Option<u64>,
}

/// Graphics or compute processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Manufacturer.
    pub vendor: GpuVendor,
    /// Model, such as `NVIDIA A100-SXM4-40GB`, if the driver reports it.
    pub model: Option<String>,
    /// PCI device of the GPU.
    pub pci: PciDevice,
}

/// Manufacturer of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuVendor {
    /// NVIDIA, PCI vendor 10de.
    Nvidia,
    /// AMD, PCI vendor 1002.
    Amd,
}

/// Kernel, drivers and libraries of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// Version of the kernel, such as `6.1.0-25-amd64`.
    pub kernel: Option<String>,
    /// Distribution, such as `Debian GNU/Linux 12 (bookworm)`.
    pub distribution: Option<String>,
    /// Names and versions of drivers that report a version, such as `mlx5_core` and `nvidia`.
    pub drivers: Vec<(String, String)>,
    /// Names and versions of libraries that programs would load, such as `libibverbs` and
    /// `libcuda`.
    pub libraries: Vec<(String, String)>,
    /// Whether a driver (`nvidia_peermem`) lets NICs access the memory of GPUs.
    pub peer_memory: bool,
    /// Whether an IOMMU is enabled, so that devices may use translated addresses.
    pub iommu: bool,
    /// NCCL library that the job's program would load.
    pub nccl: Option<InstalledLibrary>,
    /// Kind of container that the agent runs in, if that is recognisable.
    #[serde(default)]
    pub container: Option<ContainerKind>,
    /// Names of the libibverbs drivers that are installed, such as `mlx5` and `rxe`, in order.
    #[serde(default)]
    pub providers: Vec<String>,
}

/// Software that created a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerKind {
    /// Docker, recognised by `/.dockerenv`.
    Docker,
    /// Podman or toolbox, recognised by `/run/.containerenv`.
    Podman,
    /// Kubernetes, with any container runtime.
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

/// Version and location of a library on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledLibrary {
    /// Version, such as `2.30.7`.
    pub version: String,
    /// Path of the library, or of the file that its version was read from.
    pub path: String,
}
