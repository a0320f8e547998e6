//! Limits, versions, and the control groups of this process.

use super::Root;
use nix::sys::statvfs::statvfs;
use rlaunch_bootstrap::inventory::{ContainerKind, ResourceLimits, System};

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

pub(super) fn read(root: &Root) -> System {
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
        libraries: libraries(root),
        peer_memory: PEER_MEMORY.iter().any(|path| root.exists(path)),
        nccl: None,
        container: container(root),
        providers: providers(root),
        horovod_needs_mpi: false,
    }
}

/// Returns the versions of libraries from the loader's links: `libibverbs.so.1` points to
/// `libibverbs.so.1.14.39.0`.
fn libraries(root: &Root) -> Vec<(String, String)> {
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
pub(super) fn read_rdma_software(root: &Root) -> System {
    System { libraries: libraries(root), providers: providers(root), ..System::default() }
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
pub(super) fn container(root: &Root) -> Option<ContainerKind> {
    const SIGNS: &[(&str, ContainerKind)] = &[
        ("/run/secrets/kubernetes.io", ContainerKind::Kubernetes),
        ("/var/run/secrets/kubernetes.io", ContainerKind::Kubernetes),
        ("/run/.containerenv", ContainerKind::Podman),
        ("/.dockerenv", ContainerKind::Docker),
    ];
    SIGNS.iter().find(|(path, _)| root.exists(path)).map(|(_, kind)| *kind)
}

pub(super) fn limits(root: &Root) -> ResourceLimits {
    let text = root.text("/proc/self/limits").unwrap_or_default();
    let memory = |controller, name: &'static str| {
        control_group(root, controller, |directory| {
            root.value::<u64>(&format!("{directory}/{name}"))
        })
    };
    let groups =
        memory("", "memory.max").into_iter().chain(memory("memory", "memory.limit_in_bytes"));
    ResourceLimits {
        locked_memory: limit(&text, "Max locked memory"),
        open_files: limit(&text, "Max open files"),
        // Without a limit, version 1 reports a huge number.
        memory: groups.filter(|&bytes| bytes < 1 << 62).min(),
        shared_memory: shared_memory(root),
    }
}

/// Returns the soft limit of a line like `Max locked memory  65536  65536  bytes`.
fn limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn shared_memory(root: &Root) -> Option<u64> {
    let size = || statvfs("/dev/shm").map(|stat| stat.blocks() * stat.fragment_size());
    let lines = root.socket_lines(SHARED_MEMORY, || size().iter().map(u64::to_string).collect());
    lines.first()?.parse().ok()
}

/// Returns a field of `/proc/self/status`.
pub(super) fn status(root: &Root, name: &str) -> Option<String> {
    let text = root.text("/proc/self/status")?;
    let field = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
    text.lines().find_map(field)
}

/// Returns the lowest value that `read` finds in the directories of this process's control group
/// and those above it. `controller` is a name of version 1, or empty for version 2.
pub(super) fn control_group<T: PartialOrd>(
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
