//! Deficits of containers that only another start can fix, and words for containers.

use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, id};
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, RdmaDevice};
use rlaunch_bootstrap::inventory::{ContainerKind, Gpu, GpuVendor, Inventory};
use rlaunch_text::text;
use std::fmt;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::CT_NET,
        about: "containers share the network of the RDMA devices that they have",
        needs: Needs::Inventories,
        examine: network,
        causes: &[id::ROCE_NETDEV, id::ROCE_GID_EMPTY, id::MESH_SUBNET, id::MESH_SILENT],
        explanation: "\
Symptoms: every entry of the GID table is zero in the container and filled on the host; `ibv_modify_qp failed with \
19 No such device`; NCCL reports `NET/Socket` in place of `NET/IB`.

A RoCE or iWARP device sends by the addresses of its network interface. The container sees the device, but has a \
network of its own, so the interface and its addresses are not there, and queue pairs cannot use them. rlaunch found \
the device in sysfs and its interface missing.

Start the container in the host's network: --net=host for docker and podman, hostNetwork: true for a pod. In \
Kubernetes, SR-IOV with an RDMA CNI plugin moves an interface into the pod instead.",
    },
    Check {
        id: id::CT_SHM,
        about: "/dev/shm of containers is larger than the engines' default",
        needs: Needs::Inventories,
        examine: shared_memory,
        causes: &[id::LIM_SHM],
        explanation: "\
Symptoms: `Bus error`, `DataLoader worker is killed by signal: Bus error`, `NCCL WARN Error while creating shared \
memory segment /dev/shm/nccl-…`, `unable to write to file </torch_…>: No space left on device`.

Ranks of one host exchange data in /dev/shm: NCCL between GPUs, MPI, Gloo, and the workers of PyTorch's DataLoader. \
Container engines give 64 MiB, which a few ranks use up. For containers without GPUs and RDMA devices, the finding says \
that there is even less.

Start the container with --ipc=host or --shm-size=1g; in a pod, mount a volume `emptyDir: {medium: Memory}` at \
/dev/shm.",
    },
    Check {
        id: id::CT_GPU,
        about: "containers have the GPUs of their host",
        needs: Needs::Diagnostics,
        examine: gpus,
        causes: &[],
        explanation: "\
Symptoms: `nvidia-smi: command not found` or `torch.cuda.is_available()` is False in the container, and both work on the host; ranks \
end with `no CUDA-capable device is detected`.

The container sees the host's PCI bus, and on it GPUs with their driver, but was started without their files in /dev. Without them \
nothing in it can use a GPU, whatever the image has.

Start the container with --gpus all (docker, nerdctl), --device nvidia.com/gpu=all (podman), or for AMD --device=/dev/kfd \
--device=/dev/dri; in a pod, ask for nvidia.com/gpu or amd.com/gpu. `rlaunch --image` passes on all GPUs if the engine can.",
    },
];

/// Size of `/dev/shm` that container engines give by default, in bytes.
pub(super) const SHARED_MEMORY: u64 = 64 << 20;
/// The same of Podman, which counts 65,536 kB in thousands.
const PODMANS_SHARED_MEMORY: u64 = 65_536_000;

/// Returns the size of `/dev/shm`, in bytes, if ranks use it up easily: with GPUs or RDMA, whose libraries take most, if
/// it is the default of container engines, and otherwise if it is even less.
pub(super) fn small_shared_memory(inventory: &Inventory) -> Option<u64> {
    let enough =
        if has_accelerators(inventory) { SHARED_MEMORY + 1 } else { PODMANS_SHARED_MEMORY };
    inventory.limits.shared_memory.filter(|bytes| *bytes < enough)
}

/// Part of a pod's specification that passes files of RDMA devices to it.
pub const POD_RESOURCE: &str =
    "the resource of the device plugin, such as rdma/hca: 1 or aliyun/erdma: 1";

/// Kind of system in which an agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Host,
    /// A container, with its engine if that is known.
    Container(Option<ContainerKind>),
}

impl Scope {
    pub fn new(host: &ClusterHost<'_>, cluster: &Cluster<'_>) -> Scope {
        match host.inventory.system.container {
            None if !cluster.in_container => Scope::Host,
            kind => Scope::Container(kind),
        }
    }

    /// Writes what the start of the container needs: a flag of its engine, or a field of a pod.
    pub fn needs(self, flag: &str, field: &str) -> String {
        match self {
            Scope::Container(Some(ContainerKind::Kubernetes)) => format!("the pod needs {field}"),
            Scope::Container(Some(engine)) => format!("{engine} run needs {flag}"),
            Scope::Container(None) | Scope::Host => format!("docker run needs {flag}"),
        }
    }
}

/// Writes the system, as in `this podman container`.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Host => f.write_str("this host"),
            Scope::Container(None) => f.write_str("this container"),
            Scope::Container(Some(kind)) => write!(f, "this {kind} container"),
        }
    }
}

/// Tells whether ranks on this node could use GPUs or RDMA.
pub(super) fn has_accelerators(inventory: &Inventory) -> bool {
    !inventory.rdma.is_empty() || !inventory.gpus.is_empty()
}

/// Lists the hosts whose agents run in containers.
fn containers<'a, 'c>(
    cluster: &'c Cluster<'a>,
) -> impl Iterator<Item = (&'c ClusterHost<'a>, Scope)> {
    let scoped = cluster.hosts.iter().map(|host| (host, Scope::new(host, cluster)));
    scoped.filter(|(_, scope)| *scope != Scope::Host)
}

fn network(cluster: &Cluster<'_>) -> Vec<Finding> {
    let is_elsewhere = |device: &&RdmaDevice| {
        let mut ports = device.ports.iter();
        ports.any(|port| port.link_layer == LinkLayer::Ethernet && port.netdev.is_none())
    };
    let finding = |(host, scope): (&ClusterHost<'_>, Scope)| {
        let devices = host.inventory.rdma.iter().filter(is_elsewhere);
        let names: Vec<&str> = devices.map(|device| &*device.name).collect();
        let seen = format!(
            "{scope} has its own network namespace, but the addresses of {} are in the host's",
            names.join(", ")
        );
        let matters = "RDMA cannot be used";
        let found = Finding::warning(id::CT_NET, host.name, seen, matters);
        (!names.is_empty()).then(|| found.advise(scope.needs("--net=host", "hostNetwork: true")))
    };
    containers(cluster).filter_map(finding).collect()
}

fn shared_memory(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, scope): (&ClusterHost<'_>, Scope)| {
        let size = small_shared_memory(host.inventory)?;
        let seen = format!("/dev/shm of {scope} has only {}", super::size(size));
        let found = Finding::warning(id::CT_SHM, host.name, seen, "ranks may run out of it");
        let volume = "a volume emptyDir: {medium: Memory} mounted at /dev/shm";
        Some(found.advise(scope.needs("--ipc=host or --shm-size=1g", volume)))
    };
    containers(cluster).filter_map(finding).collect()
}

fn gpus(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, scope): (&ClusterHost<'_>, Scope)| {
        let is_cut_off = host.diagnostics.and_then(|state| state.gpu_files) == Some(false);
        let gpu = driven_gpus(host).next().filter(|_| is_cut_off)?;
        let count = text::count(driven_gpus(host).count(), &format!("{} GPU", gpu.vendor.name()));
        let seen = format!("{scope} was started without the {count} of its host");
        let found = Finding::warning(id::CT_GPU, host.name, seen, "programs find no GPU there");
        let (flag, resource) = match (gpu.vendor, scope) {
            (GpuVendor::Nvidia, Scope::Container(Some(ContainerKind::Podman))) => {
                ("--device nvidia.com/gpu=all", "resources.limits: nvidia.com/gpu")
            }
            (GpuVendor::Nvidia, _) => ("--gpus all", "resources.limits: nvidia.com/gpu"),
            (GpuVendor::Amd, _) => {
                ("--device=/dev/kfd --device=/dev/dri", "resources.limits: amd.com/gpu")
            }
        };
        Some(found.advise(scope.needs(flag, resource)))
    };
    containers(cluster).filter_map(finding).collect()
}

/// Lists the GPUs that programs on the host itself can use.
fn driven_gpus<'a>(host: &ClusterHost<'a>) -> impl Iterator<Item = &'a Gpu> + use<'a> {
    let is_driven = |gpu: &&Gpu| matches!(gpu.pci.driver.as_deref(), Some("nvidia" | "amdgpu"));
    host.inventory.gpus.iter().filter(is_driven)
}

/// Tells whether a host has GPUs, and its agent is in a container.
pub(super) fn may_lack_gpus(cluster: &Cluster<'_>, host: &ClusterHost<'_>) -> bool {
    Scope::new(host, cluster) != Scope::Host && driven_gpus(host).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, lines, with_cluster};
    use super::*;
    use crate::findings::Step;

    fn container(kind: Option<ContainerKind>) -> Machine {
        Machine::recorded("bond").change(|inventory| inventory.system.container = kind)
    }

    fn found(machine: &Machine) -> Vec<Finding> {
        with_cluster(std::slice::from_ref(machine), |cluster| {
            CHECKS.iter().flat_map(|check| (check.examine)(&cluster)).collect()
        })
    }

    #[test]
    fn a_network_of_its_own() {
        let docker = container(Some(ContainerKind::Docker));
        assert!(found(&docker).is_empty());
        let apart = docker.change(|inventory| inventory.rdma[0].ports[0].netdev = None);
        assert_eq!(
            lines(network, std::slice::from_ref(&apart)),
            [
                "warn ct.net a: this docker container has its own network namespace, but the addresses \
              of mlx5_bond_0 are in the host's — RDMA cannot be used"
            ]
        );
        assert_eq!(found(&apart)[0].fix, [Step::Do("docker run needs --net=host".into())]);
        let on_host = apart.change(|inventory| inventory.system.container = None);
        assert!(found(&on_host).is_empty());
        let found = with_cluster(&[on_host], |cluster| {
            let mut cluster = cluster;
            cluster.in_container = true;
            network(&cluster)
        });
        assert!(found[0].seen.starts_with("this container has"), "{found:?}");
    }

    #[test]
    fn gpus_that_stay_outside() {
        let apart = |kind, name: &str| {
            let machine = Machine::recorded(name)
                .change(|inventory| inventory.system.container = kind)
                .diagnosed(|diagnostics| diagnostics.gpu_files = Some(false));
            lines(gpus, std::slice::from_ref(&machine))
        };
        let without = "warn ct.gpu a: this docker container was started without the";
        let docker = apart(Some(ContainerKind::Docker), "dgx");
        let expected = format!("{without} 8 NVIDIA GPUs of its host — programs find no GPU there");
        assert_eq!(docker, [expected]);
        let amd = apart(Some(ContainerKind::Docker), "amd-apu");
        assert!(amd[0].starts_with(&format!("{without} 1 AMD GPU of its host")), "{amd:?}");
        assert!(
            apart(None, "dgx").is_empty() && apart(Some(ContainerKind::Docker), "bond").is_empty()
        );
        for (kind, flag) in [
            (ContainerKind::Docker, "docker run needs --gpus all"),
            (ContainerKind::Podman, "podman run needs --device nvidia.com/gpu=all"),
            (ContainerKind::Kubernetes, "the pod needs resources.limits: nvidia.com/gpu"),
        ] {
            let inside = Machine::recorded("dgx")
                .change(|inventory| inventory.system.container = Some(kind))
                .diagnosed(|diagnostics| diagnostics.gpu_files = Some(false));
            let found = found(&inside);
            let found = found.iter().find(|finding| finding.id == id::CT_GPU).unwrap();
            assert_eq!(found.fix, [Step::Do(flag.into())]);
            let has = inside.diagnosed(|diagnostics| diagnostics.gpu_files = Some(true));
            assert!(lines(gpus, &[has]).is_empty());
        }
    }

    #[test]
    fn a_small_shared_memory() {
        let small = |kind| {
            container(kind).change(|inventory| inventory.limits.shared_memory = Some(64 << 20))
        };
        let pod = small(Some(ContainerKind::Kubernetes));
        assert_eq!(
            lines(shared_memory, std::slice::from_ref(&pod)),
            [
                "warn ct.shm a: /dev/shm of this kubernetes container has only 64 MiB — ranks may run \
              out of it"
            ]
        );
        let volume = "the pod needs a volume emptyDir: {medium: Memory} mounted at /dev/shm";
        assert_eq!(found(&pod)[0].fix, [Step::Do(volume.into())]);
        assert!(found(&small(None)).is_empty());
        let plain = pod.change(|inventory| inventory.rdma.clear());
        assert!(found(&plain).is_empty());
        let podmans =
            plain.clone().change(|inventory| inventory.limits.shared_memory = Some(65_536_000));
        assert!(found(&podmans).is_empty());
        let tiny = plain.change(|inventory| inventory.limits.shared_memory = Some(1 << 20));
        assert!(found(&tiny)[0].seen.ends_with("has only 1 MiB"), "{:?}", found(&tiny));
        let large = small(Some(ContainerKind::Podman));
        assert_eq!(found(&large).len(), 1);
        let large = large.change(|inventory| inventory.limits.shared_memory = Some(1 << 30));
        assert!(found(&large).is_empty());
    }
}
