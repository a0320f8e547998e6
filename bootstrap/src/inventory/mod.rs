//! Hardware and system software of a node: CPUs, memory, PCI devices, RDMA ports, network
//! interfaces, GPUs.
//!
//! The agent reads the inventory from files of the kernel. The launcher uses it to place ranks and
//! to choose NICs. Anything that the kernel does not report is `None` or an empty list, never a
//! guess.
//!
//! | module | contents |
//! |---|---|
//! | [`pci`] | PCI devices, the links above them, distances between devices |
//! | [`rdma`] | RDMA devices, their ports and GID tables |
//! | [`net`] | network interfaces and routes |
//! | [`diagnostics`] | what only `rlaunch doctor` reads: counters, settings, firewall, log |
//! | [`traffic`] | counters of the whole host that `rlaunch monitor` reads again and again |
//! | [`recording`] | copies of the files that an inventory was read from |

pub mod diagnostics;
pub mod net;
pub mod pci;
pub mod rdma;
pub mod recording;
pub mod traffic;

use net::{Netdev, Route};
use pci::PciDevice;
use rdma::RdmaDevice;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Hardware and system software of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub cpus: Cpus,
    /// NUMA nodes in order of their numbers, with their memory.
    pub numa_nodes: Vec<NumaNode>,
    /// Limits on the resources of this user's processes.
    pub limits: ResourceLimits,
    /// GPUs, in order of their PCI addresses.
    pub gpus: Vec<Gpu>,
    /// RDMA devices, in order of their names.
    pub rdma: Vec<RdmaDevice>,
    /// Network interfaces, in order of the kernel's indices.
    pub netdevs: Vec<Netdev>,
    /// Routes through network interfaces, in the kernel's order. Jobs do not read the routes of
    /// nodes without RDMA devices.
    pub routes: Vec<Route>,
    /// Versions of the kernel, of drivers and of libraries.
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
    /// CPUs that the agent and its ranks may run on.
    pub allowed: CpuSet,
    /// Sets of hardware threads that share a core, in order of their first threads. Empty if the
    /// kernel does not report them or the job does not need them.
    pub cores: Vec<CpuSet>,
    /// CPU time that the control group grants, in thousandths of a CPU; `None` if it is not
    /// limited.
    pub quota: Option<u32>,
}

impl Cpus {
    /// Returns the number of CPUs that the ranks can keep busy, at least 1.
    pub fn usable(&self) -> usize {
        let allowed = self.allowed.len().max(1);
        // Rounded up: a rank can also run on a part of a CPU.
        let granted = self.quota.map(|quota| quota.div_ceil(1000).max(1) as usize);
        granted.map_or(allowed, |granted| granted.min(allowed))
    }
}

/// NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    pub number: u32,
    pub cpus: CpuSet,
    /// Memory of the NUMA node, in bytes; `None` if it was not read.
    pub memory: Option<u64>,
    /// Distances to all NUMA nodes, itself included, in order of their numbers. The values come
    /// from the firmware; the distance of a node to itself is 10. Empty if they were not read.
    pub distances: Vec<u32>,
}

/// Resource limits of this user's processes on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Amount of memory that a process may lock, in bytes. RDMA requires locked memory. `None` if
    /// it is unlimited or unknown.
    pub locked_memory: Option<u64>,
    /// Number of files that a process may have open; `None` if it is unlimited or unknown.
    pub open_files: Option<u64>,
    /// Number up to which a process may raise `open_files`; `None` if it is unlimited or unknown.
    pub open_files_hard: Option<u64>,
    /// Memory that the control group grants, in bytes; `None` if it is unlimited or unknown.
    pub memory: Option<u64>,
    /// Size of `/dev/shm`, in bytes; `None` if it cannot be read.
    pub shared_memory: Option<u64>,
}

/// GPU, used for graphics or computing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub vendor: GpuVendor,
    /// Model, such as `NVIDIA A100-SXM4-40GB`; `None` if the driver does not report it.
    pub model: Option<String>,
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

impl GpuVendor {
    /// Returns the vendor's name, with which the names of its models may begin: `NVIDIA`.
    pub fn name(self) -> &'static str {
        match self {
            GpuVendor::Nvidia => "NVIDIA",
            GpuVendor::Amd => "AMD",
        }
    }
}

/// Versions and settings of the system software of a node.
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
    /// Whether a driver such as `nvidia_peermem` lets NICs access the memory of GPUs.
    pub peer_memory: bool,
    /// Whether an IOMMU is enabled, so that addresses of devices may be translated.
    pub iommu: bool,
    /// NCCL library that the job's program would load; `None` if there is none.
    pub nccl: Option<InstalledLibrary>,
    /// Kind of container that the agent runs in; `None` if no container was recognised.
    #[serde(default)]
    pub container: Option<ContainerKind>,
    /// Names of the installed libibverbs drivers, such as `mlx5` and `rxe`, in alphabetical order.
    #[serde(default)]
    pub providers: Vec<String>,
    /// Whether the Horovod that the job's programs would load is built with MPI alone, without Gloo.
    #[serde(default)]
    pub horovod_needs_mpi: bool,
    /// Whether a process may not read the memory of another one of its user (process_vm_readv(2)), as in containers of Docker.
    #[serde(default)]
    pub denies_memory_reads: bool,
}

/// Software that created a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerKind {
    /// Docker, recognised by the file `/.dockerenv`.
    Docker,
    /// Podman or toolbox, recognised by the file `/run/.containerenv`.
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

/// Highest CPU number that is accepted. The kernel's own limit is 8192.
const LAST_CPU: u32 = 65_535;

/// Set of CPU numbers, written as `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet(BTreeSet<u32>);

/// Error of parsing a text that is not a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of CPUs like 0-3,8")]
pub struct CpuListError(String);

impl CpuSet {
    /// Returns the number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether the set has no CPUs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns the CPUs that are in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// Returns the CPU numbers in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<CpuSet, CpuListError> {
        let bad = || CpuListError(text.to_owned());
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last > LAST_CPU {
                return Err(bad());
            }
            cpus.extend(first..=last);
        }
        Ok(CpuSet(cpus))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuListError;

    fn try_from(text: String) -> Result<CpuSet, CpuListError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> String {
        set.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for text in ["0-3,8", "0", "", "1,3,5-7", "0-127,256-383"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        let set: CpuSet = "4,0-2,3\n".parse().unwrap();
        assert_eq!((set.to_string().as_str(), set.len()), ("0-4", 5));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["x", "3-1", "1-", "-1", "0-4000000000"] {
            assert_eq!(text.parse::<CpuSet>(), Err(CpuListError(text.into())));
        }
    }

    #[test]
    fn sets_are_cut() {
        let (a, b): (CpuSet, CpuSet) = ("0-7".parse().unwrap(), "6-9".parse().unwrap());
        assert_eq!(a.intersection(&b).to_string(), "6-7");
    }
}
