//! Inventory of this node, read from the kernel's files below a [`Root`] without starting other
//! programs. What cannot be read, as in many containers, is left out.
//!
//! | file | contents |
//! |---|---|
//! | `root.rs` | the live machine, or a recorded one |
//! | `mod.rs` | processors, NUMA nodes, limits, versions, container |
//! | `devices.rs` | PCI devices and their bridges, GPUs, RDMA devices and their ports |
//! | `net.rs`, `netlink.rs` | interfaces, addresses, routes |
//! | `libraries.rs` | the NCCL and the Horovod that a program would load |

mod devices;
pub(crate) mod libraries;
mod net;
pub(crate) mod netlink;
mod root;
pub(crate) use net::{ip_address, prefix_length};
pub(crate) use root::Root;

use crate::console;
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rlaunch_bootstrap::inventory::{
    ContainerKind, CpuSet, Cpus, Inventory, NumaNode, ResourceLimits, System,
};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IoSliceMut;
use std::path::Path;
use std::process::ExitCode;

/// Reads the full inventory.
pub(crate) fn read(root: &Root) -> Inventory {
    let netdevs = net::read(root);
    let mut gpus = devices::read_gpus(root);
    let mut rdma = devices::read(root, &netdevs);
    for pci in gpus.iter_mut().map(|gpu| &mut gpu.pci) {
        devices::read_capabilities(root, pci);
    }
    for pci in rdma.iter_mut().filter_map(|device| device.pci.as_mut()) {
        devices::read_capabilities(root, pci);
    }
    let cpus = read_cpus(root);
    Inventory {
        cpus: Cpus { cores: read_cores(root, &cpus.online).unwrap_or_default(), ..cpus },
        numa_nodes: read_numa_nodes(root).into_iter().map(|n| with_memory(root, n)).collect(),
        limits: read_limits(root),
        gpus,
        rdma,
        routes: net::read_routes(root, &netdevs),
        netdevs,
        system: read_system(root),
    }
}

/// Reads the part of the inventory that is needed to place ranks, and nothing slow: every host of a
/// job does this at once, and some files take global locks in the kernel. The hardware threads of
/// each core are read only if `with_cores` is set, since that takes a file per core.
pub(crate) fn read_for_job(root: &Root, with_cores: bool) -> Inventory {
    let (netdevs, routes) = if devices::has_rdma(root) {
        let netdevs = net::read(root);
        let routes = net::read_routes(root, &netdevs);
        (netdevs, routes)
    } else {
        (net::read_addressed(root), Vec::new())
    };
    let (container, has_rdma) = (container(root), devices::has_rdma(root));
    let system = if has_rdma { read_rdma_software(root) } else { System::default() };
    // RDMA needs locked memory, and containers often have low limits.
    let limits =
        if container.is_some() || has_rdma { read_limits(root) } else { ResourceLimits::default() };
    let cpus = read_cpus(root);
    let cores = with_cores.then(|| read_cores(root, &cpus.online)).flatten().unwrap_or_default();
    Inventory {
        cpus: Cpus { cores, ..cpus },
        numa_nodes: read_numa_nodes(root),
        gpus: devices::read_driven_gpus(root),
        rdma: devices::read(root, &netdevs),
        netdevs,
        routes,
        limits,
        system: System {
            container,
            denies_memory_reads: root.is_live() && denies_memory_reads(),
            ..system
        },
    }
}

/// Counts the GPUs that ranks can use.
pub(crate) fn count_gpus(root: &Root) -> usize {
    devices::count_gpus(root)
}

/// Tells whether this machine has a GPU that ranks can use.
pub(crate) fn has_gpus(root: &Root) -> bool {
    devices::has_gpus(root)
}

/// Writes the inventory of this machine, or of a recorded one, to stdout.
pub(crate) fn print(recorded: Option<OsString>) -> ExitCode {
    let root = recorded.map_or_else(Root::live, |prefix| Root::recorded(Path::new(&prefix)));
    console::write_message(&read(&root))
}

fn read_cpus(root: &Root) -> Cpus {
    let online: Option<CpuSet> = root.value("/sys/devices/system/cpu/online");
    // Includes both cpusets and affinity.
    let allowed = read_status(root, "Cpus_allowed_list").and_then(|list| list.parse().ok());
    let online = online.or_else(|| allowed.clone()).unwrap_or_default();
    let allowed = allowed.unwrap_or_else(|| online.clone());
    Cpus { allowed, online, cores: Vec::new(), quota: cpu_quota(root) }
}

/// Returns the hardware threads of each core. Reads one file for each core, and returns `None` if
/// such a file is missing.
fn read_cores(root: &Root, online: &CpuSet) -> Option<Vec<CpuSet>> {
    let (mut cores, mut covered) = (Vec::new(), BTreeSet::new());
    for cpu in online.iter() {
        if covered.contains(&cpu) {
            continue;
        }
        let read = |name: &str| {
            let core = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
            root.value::<CpuSet>(&core).filter(|core| core.contains(cpu))
        };
        // Older kernels have the second name.
        let core = read("core_cpus_list").or_else(|| read("thread_siblings_list"))?;
        covered.extend(core.iter());
        cores.push(core);
    }
    Some(cores)
}

/// Returns the lowest CPU limit that the control group of this process or one above it sets, in
/// thousandths of a processor.
fn cpu_quota(root: &Root) -> Option<u32> {
    let v2 = lowest_in_control_groups(root, "", |directory| {
        let text = root.text(&format!("{directory}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        thousandths(quota.parse().ok()?, period.parse().ok()?)
    });
    let v1 = lowest_in_control_groups(root, "cpu", |directory| {
        let value = |name: &str| root.value::<i64>(&format!("{directory}/cpu.cfs_{name}_us"));
        thousandths(value("quota")?, value("period")?)
    });
    v2.into_iter().chain(v1).min()
}

/// Returns `quota / period` in thousandths; `None` for a negative quota, which means no limit.
fn thousandths(quota: i64, period: i64) -> Option<u32> {
    let thousandths = quota.checked_mul(1000)?.checked_div(period)?;
    u32::try_from(thousandths).ok().filter(|&thousandths| thousandths > 0)
}

const NODES: &str = "/sys/devices/system/node";

/// Reads NUMA nodes and their processors.
fn read_numa_nodes(root: &Root) -> Vec<NumaNode> {
    let numbers = root.names(NODES).into_iter().filter_map(|name| {
        let number: u32 = name.strip_prefix("node")?.parse().ok()?;
        Some(number)
    });
    let mut nodes: Vec<NumaNode> = numbers
        .map(|number| NumaNode {
            number,
            cpus: root.value(&format!("{NODES}/node{number}/cpulist")).unwrap_or_default(),
            memory: None,
            distances: Vec::new(),
        })
        .collect();
    nodes.sort_unstable_by_key(|node| node.number);
    nodes
}

/// Adds a NUMA node's memory size and its distances to the other nodes.
fn with_memory(root: &Root, node: NumaNode) -> NumaNode {
    let text =
        |name: &str| root.text(&format!("{NODES}/node{}/{name}", node.number)).unwrap_or_default();
    let distances = text("distance");
    let distances = distances.split_whitespace().filter_map(|d| d.parse().ok()).collect();
    NumaNode { memory: parse_total_memory(&text("meminfo")), distances, ..node }
}

/// Parses `Node 0 MemTotal:  65771234 kB` and returns the size in bytes.
fn parse_total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("MemTotal:"))?;
    let kib: u64 = line.1.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
/// File of a recording with the size of `/dev/shm` in bytes.
const SHARED_MEMORY: &str = "/shared-memory";
/// Drivers whose versions help to explain failures.
const DRIVERS: &[&str] =
    &["mlx4_core", "mlx5_core", "irdma", "erdma", "nvidia", "amdgpu", "nvidia_peermem"];
/// Libraries whose versions help to explain failures, with the ABI versions in their file names.
const LIBRARIES: &[(&str, &str)] =
    &[("libibverbs", "1"), ("librdmacm", "1"), ("libcuda", "1"), ("libnccl", "2")];
const LIBRARY_DIRECTORIES: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
/// Files of kernel modules that let NICs access the memory of GPUs. If one of the files exists,
/// such a module is loaded.
const PEER_MEMORY: &[&str] = &[
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
];

fn read_system(root: &Root) -> System {
    let release = root.text("/etc/os-release").unwrap_or_default();
    let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let version = |name: &&str| {
        let version = root.text(&format!("/sys/module/{name}/version"))?;
        Some(((*name).to_owned(), version))
    };
    System {
        kernel: root.text("/proc/sys/kernel/osrelease"),
        distribution: pretty.map(|name| name.trim_matches('"').to_owned()),
        drivers: DRIVERS.iter().filter_map(version).collect(),
        iommu: !root.names("/sys/class/iommu").is_empty(),
        libraries: library_versions(root),
        peer_memory: PEER_MEMORY.iter().any(|path| root.exists(path)),
        nccl: None,
        container: container(root),
        providers: providers(root),
        horovod_needs_mpi: false,
        denies_memory_reads: root.is_live() && denies_memory_reads(),
    }
}

/// Tells whether the system forbids reading the memory of processes, even of this one: a filter of system calls, as of Docker,
/// looks at no process.
fn denies_memory_reads() -> bool {
    let (from, mut into) = ([1_u8], [0_u8]);
    let remote = RemoteIoVec { base: from.as_ptr() as usize, len: from.len() };
    let read = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut into)], &[remote]);
    matches!(read, Err(Errno::EPERM | Errno::ENOSYS))
}

/// Returns the versions of libraries from the loader's links: `libibverbs.so.1` points to
/// `libibverbs.so.1.14.39.0`.
fn library_versions(root: &Root) -> Vec<(String, String)> {
    let version = |(name, abi): &(&str, &str)| {
        let found = LIBRARY_DIRECTORIES.iter().find_map(|directory| {
            let file = root.link_name(&format!("{directory}/{name}.so.{abi}"))?;
            Some(file.strip_prefix(name)?.strip_prefix(".so.")?.to_owned())
        });
        Some(((*name).to_owned(), found?))
    };
    LIBRARIES.iter().filter_map(version).collect()
}

/// Reads only the versions of libraries and the list of providers, on which RDMA depends.
fn read_rdma_software(root: &Root) -> System {
    System { libraries: library_versions(root), providers: providers(root), ..System::default() }
}

/// Returns the providers (device-specific libraries) in libibverbs' directories, from names like
/// `libmlx5-rdmav34.so`.
fn providers(root: &Root) -> Vec<String> {
    let files = LIBRARY_DIRECTORIES.iter().flat_map(|directory| {
        let directory = format!("{directory}/libibverbs");
        root.names(&directory)
    });
    let name = |file: String| {
        let (name, _version) = file.strip_prefix("lib")?.split_once("-rdmav")?;
        Some(name.to_owned())
    };
    let mut names: Vec<String> = files.filter_map(name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the kind of container in which this process runs, judged by files that container
/// runtimes create.
fn container(root: &Root) -> Option<ContainerKind> {
    const SIGNS: &[(&str, ContainerKind)] = &[
        ("/run/secrets/kubernetes.io", ContainerKind::Kubernetes),
        ("/var/run/secrets/kubernetes.io", ContainerKind::Kubernetes),
        ("/run/.containerenv", ContainerKind::Podman),
        ("/.dockerenv", ContainerKind::Docker),
    ];
    SIGNS.iter().find(|(path, _)| root.exists(path)).map(|(_, kind)| *kind)
}

fn read_limits(root: &Root) -> ResourceLimits {
    let text = root.text("/proc/self/limits").unwrap_or_default();
    let memory = |controller, name: &'static str| {
        lowest_in_control_groups(root, controller, |directory| {
            root.value::<u64>(&format!("{directory}/{name}"))
        })
    };
    let groups =
        memory("", "memory.max").into_iter().chain(memory("memory", "memory.limit_in_bytes"));
    let (open_files, open_files_hard) = limits(&text, "Max open files");
    ResourceLimits {
        locked_memory: limits(&text, "Max locked memory").0,
        open_files,
        open_files_hard,
        // Without a limit, version 1 reports a huge number.
        memory: groups.filter(|&bytes| bytes < 1 << 62).min(),
        shared_memory: shared_memory(root),
    }
}

/// Returns the soft and the hard limit of a line like `Max locked memory  65536  65536  bytes`.
fn limits(text: &str, name: &str) -> (Option<u64>, Option<u64>) {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let mut words = line.split_whitespace().map(|word| word.parse().ok());
    (words.next().flatten(), words.next().flatten())
}

fn shared_memory(root: &Root) -> Option<u64> {
    let size = || statvfs("/dev/shm").map(|stat| stat.blocks() * stat.fragment_size());
    let lines = root.asked_lines(SHARED_MEMORY, || size().iter().map(u64::to_string).collect());
    // A tmpfs without a limit reports 0.
    lines.first()?.parse().ok().filter(|&bytes: &u64| bytes > 0)
}

/// Returns a field of `/proc/self/status`.
pub(crate) fn read_status(root: &Root, name: &str) -> Option<String> {
    let text = root.text("/proc/self/status")?;
    let field = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
    text.lines().find_map(field)
}

/// Returns the lowest value that `read` finds in the directories of this process's control group
/// and those above it. `controller` is a name of version 1, or empty for version 2.
fn lowest_in_control_groups<T: PartialOrd>(
    root: &Root,
    controller: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let text = root.control_groups()?;
    // Lines are `0::/user.slice` for version 2 and `4:cpu,cpuacct:/` for version 1.
    let path = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })?;
    let base = match controller {
        "" if root.exists(&format!("{CONTROL_GROUPS}/unified")) => {
            format!("{CONTROL_GROUPS}/unified")
        }
        "" => CONTROL_GROUPS.to_owned(),
        _ => format!("{CONTROL_GROUPS}/{controller}"),
    };
    let mut directory = format!("{base}{}", path.trim_end_matches('/'));
    let mut least = None;
    while directory.len() >= base.len() {
        if let Some(found) = read(&directory) {
            least = match least {
                Some(least) if least <= found => Some(least),
                _ => Some(found),
            };
        }
        let Some(up) = directory.rfind('/') else { break };
        directory.truncate(up);
    }
    least
}

#[cfg(test)]
pub(crate) mod tests;
