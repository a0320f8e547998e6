//! Device files of RDMA devices, and the libraries through which programs open them.

use super::{container_cure, in_container, indexed, install_line, is_used, severity_of_loss};
use crate::checks::{Check, Cluster, ClusterHost, Needs, POD_RESOURCE, quoted};
use crate::findings::{Finding, Fix, Severity, id};
use crate::selection::ConnectBy;
use rlaunch_bootstrap::inventory::ContainerKind;
use rlaunch_bootstrap::inventory::diagnostics::DeviceFile;
use rlaunch_bootstrap::inventory::rdma::{NodeType, PortState, RdmaDevice, Uverbs};
use rlaunch_text::text;

/// Beginnings of drivers' names, and the providers in libibverbs for their devices.
const PROVIDERS: &[(&str, &str)] = &[
    ("mlx4", "mlx4"),
    ("mlx5", "mlx5"),
    ("erdma", "erdma"),
    ("ice", "irdma"),
    ("irdma", "irdma"),
    ("bnxt", "bnxt_re"),
    ("rxe", "rxe"),
    ("siw", "siw"),
];

pub(super) const UVERBS: Check = Check {
    id: id::DEV_UVERBS,
    about: "the files of RDMA devices are in /dev/infiniband",
    needs: Needs::Inventories,
    examine: files,
    causes: &[
        id::DEV_RDMA_CM, id::NCCL_NET, id::MESH_SUBNET, id::NCCL_EDGE, id::NUMA_FAR, id::CT_NET,
    ],
    explanation: "\
Symptoms: `Unable to open device`, `Failed to open mlx5_0`, or no device at all, although \
/sys/class/infiniband lists it.

Programs open an RDMA device through /dev/infiniband/uverbsN. In a container, sysfs shows all devices of the \
host, but only those files exist that were passed to it. On a host, the files come with the module ib_uverbs. The \
device's entry in sysfs was compared with /dev/infiniband.

Start the container with --device=/dev/infiniband; a pod needs the resource of the RDMA device plugin. On a host, \
load ib_uverbs. If it is loaded, something has removed the files: mknod makes them again, with the numbers in \
/sys/class/infiniband_verbs/uverbsN/dev. If some devices are passed and others are not, as device plugins do, ranks use \
those that are there.",
};

pub(super) const PERMISSION: Check = Check {
    id: id::DEV_PERM,
    about: "the user may open RDMA devices",
    needs: Needs::Inventories,
    examine: permission,
    causes: &[id::NCCL_NET, id::MESH_SUBNET, id::NCCL_EDGE, id::NUMA_FAR, id::MESH_PROOF],
    explanation: "\
Symptoms: `Permission denied` for /dev/infiniband/uverbs0; a program works for root and finds no device for users.

The file of the device exists, and this user may not open it. The kernel makes these files with \
mode 0666, for all users; a udev rule of the site or a container may limit them to root or to a \
group such as rdma. The agent tried to open the file as the user that runs ranks.

Add the user to the file's group and log in anew, or correct the udev rule. Rootless podman drops \
groups unless the container is started with --group-add keep-groups; the name of a group does not \
work there.",
};

pub(super) const CONNECTION_MANAGER: Check = Check {
    id: id::DEV_RDMA_CM,
    about: "the RDMA connection manager is there where devices need it",
    needs: Needs::Diagnostics,
    examine: connection_manager,
    causes: &[id::MESH_SILENT, id::MESH_ROUTE, id::NCCL_NET],
    explanation: "\
Symptoms: `rdma_create_event_channel: No such device`, `rdma_resolve_addr: ADDR_ERROR status -19`, and with \
perftest -R `Unable to create event channel`.

iWARP devices, and eRDMA in standard mode, connect queue pairs only through the kernel's connection manager; \
--connect rdma_cm asks for it on others. Programs reach it through /dev/infiniband/rdma_cm, which the agent tried \
to find and to open.

On a host, load rdma_ucm. If it is loaded, something has removed the file, and mknod makes it again, with the numbers in \
/sys/class/misc/rdma_cm/dev. A container needs the file as well: --device=/dev/infiniband passes all files of that \
directory.",
};

pub(super) const LIBRARY: Check = Check {
    id: id::DEV_LIBRARY,
    about: "hosts with RDMA have libibverbs",
    needs: Needs::Inventories,
    examine: library,
    causes: &[id::DEV_PROVIDER, id::MESH_SILENT, id::NCCL_NET],
    explanation: "\
Symptoms: `libibverbs.so.1: cannot open shared object file`; NCCL logs `NET/IB : No device found` or \
`Failed to open libibverbs.so`; rlaunch's test says that there is no libibverbs.

Programs use RDMA through libibverbs, which is not in the library directories of this host or container. Images for \
training often lack it.

Install libibverbs and its providers, in the image if ranks run in a container. Do not mount the \
host's copy: library and providers must come from one build.",
};

pub(super) const PROVIDER: Check = Check {
    id: id::DEV_PROVIDER,
    about: "libibverbs has a provider for each RDMA device",
    needs: Needs::Inventories,
    examine: provider,
    causes: &[id::MESH_SILENT, id::NCCL_NET],
    explanation: "\
Symptoms: `libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so'`, or ibv_devices is empty although \
/sys/class/infiniband lists the device.

libibverbs opens a device through a provider, a library for its kind of hardware. The provider for this device is \
not installed. A provider of another version of rdma-core does not load either: the number in its name belongs to \
the build. Devices in sysfs were compared with the providers in the library directories.

Install the package ibverbs-providers (libibverbs on Fedora, RHEL and SUSE), or the vendor's \
package for eRDMA; in a container, install it in the image.",
};

fn files(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(index, host): (usize, &ClusterHost<'_>)| {
        let devices = host.inventory.rdma.iter();
        let missing: Vec<&RdmaDevice> =
            devices.filter(|device| device.uverbs == Uverbs::Missing).collect();
        let is_alive =
            |device: &&RdmaDevice| device.ports.iter().any(|port| port.state != PortState::Down);
        let is_usable = |device: &RdmaDevice| matches!(device.uverbs, Uverbs::Usable(_));
        let severity = if host.inventory.rdma.iter().any(is_usable) {
            Severity::Note
        } else {
            severity_of_loss(cluster, index)
        };
        // A device without a link is of no use to ranks anyway.
        let counted: Vec<&RdmaDevice> = missing.into_iter().filter(is_alive).collect();
        let first = counted.first()?;
        let names: Vec<&str> = counted.iter().map(|device| device.name.as_str()).collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        let seen =
            format!("{} {verb} in sysfs without a file in /dev/infiniband", text::list(&names));
        let matters = match severity {
            Severity::Error => "RDMA cannot be used",
            _ => "ranks use the devices that have one",
        };
        let found = Finding::new(id::DEV_UVERBS, severity, host.name, seen, matters);
        let found = if names.len() == 1 { found.device(&*first.name) } else { found };
        // Where other devices have files, the module is there.
        let has_files = host.inventory.rdma.iter().any(|device| device.uverbs != Uverbs::Missing);
        Some(if in_container(cluster, host) || has_files {
            found.advise(container_cure(host, "--device=/dev/infiniband", POD_RESOURCE))
        } else if is_loaded(host, "ib_uverbs") {
            found.fixed_by(Fix::device_files("/sys/class/infiniband_verbs/uverbs*"))
        } else {
            found.fixed_by(Fix::module("ib_uverbs"))
        })
    };
    indexed(cluster).filter_map(finding).collect()
}

fn is_loaded(host: &ClusterHost<'_>, module: &str) -> bool {
    host.diagnostics.is_some_and(|state| state.modules.iter().any(|loaded| loaded == module))
}

fn permission(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(index, host): (usize, &ClusterHost<'_>)| {
        let denied = |device: &RdmaDevice| match &device.uverbs {
            Uverbs::Denied(path) => Some(path.clone()),
            _ => None,
        };
        let path = host.inventory.rdma.iter().find_map(denied)?;
        let severity = severity_of_loss(cluster, index);
        let seen = format!("user {} may not open {path}", host.uid);
        let found = Finding::new(id::DEV_PERM, severity, host.name, seen, "RDMA cannot be used");
        if !in_container(cluster, host) {
            let list = format!("ls -l {}  # names its group", quoted(&path));
            return Some(found.run(list).advise(
                "join that group (sudo usermod -aG GROUP $USER) and log in anew; if it is root, \
                correct the udev rule: the kernel's default is MODE=\"0666\"",
            ));
        }
        let flag = if host.inventory.system.container == Some(ContainerKind::Podman) {
            "--group-add keep-groups, as a user of the file's group"
        } else {
            "--group-add and the number of the file's group"
        };
        Some(found.advise(container_cure(host, flag, POD_RESOURCE)))
    };
    indexed(cluster).filter_map(finding).collect()
}

fn connection_manager(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(_, host): (usize, &ClusterHost<'_>)| {
        let diagnostics = host.diagnostics?;
        let is_active =
            |device: &&RdmaDevice| device.ports.iter().any(|port| port.state == PortState::Active);
        let mut devices = host.inventory.rdma.iter().filter(is_active);
        let is_wanted = cluster.ports.connect == ConnectBy::RdmaCm;
        let device = devices.find(|device| is_wanted || device.node_type == NodeType::Rnic)?;
        let seen = match diagnostics.connection_manager {
            DeviceFile::Usable => return None,
            DeviceFile::Denied => {
                format!("user {} may not open /dev/infiniband/rdma_cm", diagnostics.uid)
            }
            DeviceFile::Missing => "/dev/infiniband/rdma_cm is missing".to_owned(),
        };
        let matters = match device.node_type {
            NodeType::Rnic => {
                format!("{} connects only through the RDMA connection manager", device.name)
            }
            _ => "--connect rdma_cm needs it".to_owned(),
        };
        let found = Finding::error(id::DEV_RDMA_CM, host.name, seen, matters);
        let flag = "--device=/dev/infiniband/rdma_cm";
        Some(match (in_container(cluster, host), diagnostics.connection_manager) {
            (true, _) => found.advise(container_cure(host, flag, POD_RESOURCE)),
            (false, DeviceFile::Denied) => {
                found.fixed_by(Fix::mode("666", "/dev/infiniband/rdma_cm"))
            }
            (false, _) if is_loaded(host, "rdma_ucm") => {
                found.fixed_by(Fix::device_files("/sys/class/misc/rdma_cm"))
            }
            (false, _) => found.fixed_by(Fix::module("rdma_ucm")),
        })
    };
    indexed(cluster).filter_map(finding).collect()
}

/// Tells whether the host's library directories were read, so that a library that is not listed is
/// missing. A recording may have only some of them.
fn are_libraries_known(cluster: &Cluster<'_>, host: &ClusterHost<'_>) -> bool {
    let system = &host.inventory.system;
    let is_live = host.diagnostics.is_some_and(|diagnostics| diagnostics.clock.is_some());
    !system.libraries.is_empty()
        || !system.providers.is_empty()
        || is_live
        || in_container(cluster, host)
}

fn has_libibverbs(host: &ClusterHost<'_>) -> bool {
    host.inventory.system.libraries.iter().any(|(name, _)| name == "libibverbs")
}

fn library(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(_, host): (usize, &ClusterHost<'_>)| {
        let is_usable = |device: &RdmaDevice| matches!(device.uverbs, Uverbs::Usable(_));
        let has_use = host.inventory.rdma.iter().any(is_usable);
        if !has_use || has_libibverbs(host) || !are_libraries_known(cluster, host) {
            return None;
        }
        let found =
            Finding::error(id::DEV_LIBRARY, host.name, "no libibverbs", "RDMA cannot be used");
        Some(with_packages(cluster, host, found))
    };
    indexed(cluster).filter_map(finding).collect()
}

fn provider(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster).filter(|(_, host)| has_libibverbs(host)) {
        let there = &host.inventory.system.providers;
        let missing = host.inventory.rdma.iter().find_map(|device| {
            let driver = device.driver.as_deref()?;
            let (_, provider) = PROVIDERS.iter().find(|(known, _)| driver.starts_with(known))?;
            let is_missing = !there.iter().any(|there| there == provider);
            let is_usable = matches!(device.uverbs, Uverbs::Usable(_));
            (is_missing && is_usable && is_used(cluster, index, device))
                .then_some((device, provider))
        });
        if let Some((device, provider)) = missing {
            let seen = format!("libibverbs has no provider {provider} for {}", device.name);
            let finding =
                Finding::error(id::DEV_PROVIDER, host.name, seen, "programs see no device")
                    .device(&*device.name);
            found.push(with_packages(cluster, host, finding));
        }
    }
    found
}

/// Adds how to install libibverbs with its providers.
fn with_packages(cluster: &Cluster<'_>, host: &ClusterHost<'_>, found: Finding) -> Finding {
    let ids = host.diagnostics.map(|diagnostics| diagnostics.kernel.distribution_ids.as_slice());
    let line = install_line(ids.unwrap_or_default(), "ibverbs-providers");
    match (in_container(cluster, host), line) {
        (true, _) => found.advise(
            "install in the image: apt-get install libibverbs1 ibverbs-providers, or the vendor's package; do \
             not mount the host's files",
        ),
        (false, Some(line)) => found.fixed_by(Fix::package(&line)),
        (false, None) => found.advise("install libibverbs and its providers (rdma-core)"),
    }
}
