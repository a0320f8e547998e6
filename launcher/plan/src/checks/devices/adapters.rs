//! PCI functions that could be RDMA devices and are not.

use super::{in_container, indexed, install_line, others_have_rdma, severity_of_absence};
use crate::checks::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, Fix, Severity, id};
use rlaunch_bootstrap::inventory::diagnostics::{Diagnostics, PciAdapter};
use rlaunch_text::text;

/// PCI class of InfiniBand controllers, without the interface byte.
const INFINIBAND_CLASS: u32 = 0x0207;
/// ConnectX-3, ConnectX-3 Pro and their virtual functions.
const CONNECTX_3: [u16; 3] = [0x1003, 0x1004, 0x1007];
/// First version of MLNX_OFED that does not support ConnectX-3.
const OFED_WITHOUT_CONNECTX_3: (u32, u32) = (5, 1);

pub(super) const ABSENT: Check = Check {
    id: id::DEV_ABSENT,
    about: "every host has an RDMA device if some host has one",
    needs: Needs::Diagnostics,
    examine: absent,
    causes: &[id::NCCL_NET, id::NUMA_FAR, id::ODD_HARDWARE],
    explanation: "\
Symptoms: `No RDMA devices found`, an empty list from ibv_devices; a job runs over TCP and is slow, or ends with \
exit code 205 under --transport rdma.

Other hosts of the cluster have RDMA, but on this one the kernel sees no PCI function that could be an RDMA device. \
A card that got its power after the computer started is not found, and neither is one that has come loose or \
that the firmware has disabled. On virtual machines the device may not be passed through. The list of network \
controllers was read from the PCI bus.

Power and seat the card and reboot the host, or let the kernel look once more with a rescan of the \
bus. If the other hosts use soft RoCE, add such a device here as well.",
};

pub(super) const MODULE: Check = Check {
    id: id::DEV_MODULE,
    about: "RDMA adapters have their kernel modules",
    needs: Needs::Diagnostics,
    examine: module,
    causes: &[
        id::DEV_ABSENT, id::LINK_DOWN, id::MESH_SUBNET, id::NUMA_FAR, id::NCCL_NET, id::NCCL_EDGE,
        id::DEV_RDMA_CM, id::DEV_UVERBS, id::ERDMA_DRIVER, id::ODD_HARDWARE, id::ODD_DRIVER,
    ],
    explanation: "\
Symptoms: lspci shows the card, but `ibv_devices` and `rdma link` print nothing; perftest says `IB device not \
found`; NCCL logs `NET/IB : No device found`.

A card needs two modules: one for its network interfaces and one for RDMA, such as mlx5_core and mlx5_ib. The \
second is not loaded here. It may be blacklisted, missing from the kernel (some cloud kernels leave it out), or the \
card was added after the start. PCI vendor and device of each adapter were compared with the list of loaded modules.

Load the module. If modprobe does not find it, install the kernel's package with extra modules \
(linux-modules-extra-$(uname -r) on Ubuntu, kernel-modules or kernel-modules-extra on Fedora and \
RHEL). If it is gone after the next boot, look for a line `blacklist` in /etc/modprobe.d.",
};

pub(super) const DROPPED: Check = Check {
    id: id::DEV_DROPPED,
    about: "the installed RDMA drivers support the adapters",
    needs: Needs::Diagnostics,
    examine: dropped,
    causes: &[
        id::DEV_ABSENT, id::DEV_MODULE, id::LINK_DOWN, id::MESH_SUBNET, id::NUMA_FAR, id::NCCL_NET,
        id::ODD_DRIVER, id::ODD_HARDWARE,
    ],
    explanation: "\
Symptom: a ConnectX-3 works until MLNX_OFED is installed; then ibv_devices is empty and `modprobe mlx4_ib` says \
`Module mlx4_ib not found`.

MLNX_OFED replaces the kernel's drivers by its own, and from 5.1 on it has none for ConnectX-3 and ConnectX-3 Pro. \
The adapter's PCI device, the missing modules and the version of MLNX_OFED's mlx5_core were read.

Remove MLNX_OFED and use the kernel's mlx4 with the distribution's rdma-core, which is what works best with these \
cards, or install MLNX_OFED 4.9 LTS on a kernel that it supports.",
};

/// Returns the kernel module that makes RDMA devices of an adapter; `None` if the adapter is not
/// known to do RDMA.
fn rdma_module(adapter: &PciAdapter) -> Option<&'static str> {
    let driver = adapter.driver.as_deref();
    // Functions given to virtual machines belong to other kernels.
    if driver.is_some_and(|driver| driver.starts_with("vfio") || driver == "pci-stub") {
        return None;
    }
    match (adapter.vendor, adapter.device) {
        (0x15b3, device) if CONNECTX_3.contains(&device) => Some("mlx4_ib"),
        (0x15b3, 0x1011..=0x1030 | 0xa2d2..=0xa2df) => Some("mlx5_ib"),
        (0x8086, 0x1591..=0x159b) if driver.is_none_or(|driver| driver == "ice") => Some("irdma"),
        (0x1ded, 0x107f | 0x5007) => Some("erdma"),
        (0x14e4, _) if driver == Some("bnxt_en") => Some("bnxt_re"),
        _ => None,
    }
}

/// Formats vendor and device as lspci -n does.
fn pci_id(adapter: &PciAdapter) -> String {
    format!("{:04x}:{:04x}", adapter.vendor, adapter.device)
}

fn is_loaded(diagnostics: &Diagnostics, module: &str) -> bool {
    diagnostics.modules.iter().any(|loaded| loaded == module)
}

/// Tells whether MLNX_OFED's drivers took the place of those for this ConnectX-3.
fn is_dropped(host: &ClusterHost<'_>, diagnostics: &Diagnostics, adapter: &PciAdapter) -> bool {
    let is_old = adapter.vendor == 0x15b3 && CONNECTX_3.contains(&adapter.device);
    is_old
        && adapter.driver.is_none()
        && !is_loaded(diagnostics, "mlx4_core")
        && ofed_version(host).is_some_and(|version| version >= OFED_WITHOUT_CONNECTX_3)
}

/// Returns the version of MLNX_OFED. Modules of the kernel itself have no version, or 5.0-0.
fn ofed_version(host: &ClusterHost<'_>) -> Option<(u32, u32)> {
    let mut drivers = host.inventory.system.drivers.iter();
    let (_, version) = drivers.find(|(name, _)| name == "mlx5_core")?;
    let (major, rest) = version.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn absent(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(index, host): (usize, &ClusterHost<'_>)| {
        let diagnostics = host.diagnostics?;
        let is_there = !host.inventory.rdma.is_empty()
            || diagnostics.adapters.iter().any(|adapter| rdma_module(adapter).is_some());
        if is_there || !others_have_rdma(cluster, index) {
            return None;
        }
        let plan = cluster.plan?;
        let ports = plan.ports.iter().flatten();
        let (software, hardware): (Vec<_>, Vec<_>) = ports.partition(|port| port.nic.software);
        let seen = if hardware.is_empty() {
            "no RDMA device"
        } else {
            "no PCI function that could be an RDMA device"
        };
        let matters = "the other hosts have RDMA; data to and from this one goes by TCP";
        let severity = severity_of_absence(cluster, index);
        let found = Finding::new(id::DEV_ABSENT, severity, host.name, seen, matters);
        Some(match (hardware.is_empty(), software.first()) {
            (true, Some(port))
                if port.nic.transport == rlaunch_bootstrap::rank_table::Transport::Iwarp =>
            {
                found.run("sudo modprobe siw; sudo rdma link add siw0 type siw netdev INTERFACE")
            }
            (true, Some(_)) => found
                .run("sudo modprobe rdma_rxe; sudo rdma link add rxe0 type rxe netdev INTERFACE"),
            _ => found
                .advise("power and seat the card, then reboot the host; or let the kernel look once more:")
                .run("echo 1 | sudo tee /sys/bus/pci/rescan"),
        })
    };
    indexed(cluster).filter_map(finding).collect()
}

fn module(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        let Some(diagnostics) = host.diagnostics else { continue };
        // An empty list means that modules could not be read.
        if diagnostics.modules.is_empty() {
            continue;
        }
        let mut named: Vec<&str> = Vec::new();
        for adapter in diagnostics.adapters.iter().filter(|adapter| !adapter.has_rdma) {
            let Some(module) = rdma_module(adapter) else { continue };
            let is_known = is_loaded(diagnostics, module)
                || named.contains(&module)
                || is_dropped(host, diagnostics, adapter);
            if is_known {
                continue;
            }
            named.push(module);
            let is_infiniband = adapter.class >> 8 == INFINIBAND_CLASS;
            // An Ethernet card of a host without GPUs may be meant for other traffic alone.
            let severity = if is_infiniband || others_have_rdma(cluster, index) {
                Severity::Error
            } else if host.inventory.gpus.is_empty() {
                Severity::Note
            } else {
                Severity::Warning
            };
            let seen = format!(
                "{} has no RDMA device: the module {module} is not loaded",
                pci_id(adapter)
            );
            let finding =
                Finding::new(id::DEV_MODULE, severity, host.name, seen, "RDMA cannot be used")
                    .device(&*adapter.address);
            found.push(if in_container(cluster, host) {
                finding.advise(format!("on the container's host: sudo modprobe {module}"))
            } else {
                with_package(finding.fixed_by(Fix::module(module)), module)
            });
        }
    }
    found
}

/// Adds where to get a driver that few distributions have.
fn with_package(finding: Finding, module: &str) -> Finding {
    match module {
        "erdma" => finding.advise(
            "if there is no such module, install Alibaba's driver (its page `Enable eRDMA`), 1.4.3 or later",
        ),
        _ => finding,
    }
}

fn dropped(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, diagnostics): (&ClusterHost<'_>, &Diagnostics)| {
        let adapters = diagnostics.adapters.iter();
        let dropped: Vec<&PciAdapter> =
            adapters.filter(|adapter| is_dropped(host, diagnostics, adapter)).collect();
        let first = dropped.first()?;
        let version = host.inventory.system.drivers.iter().find(|(name, _)| name == "mlx5_core");
        let version = version.map_or("", |(_, version)| version.as_str());
        let kinds: Vec<String> = dropped.iter().map(|adapter| pci_id(adapter)).collect();
        let seen =
            format!("MLNX_OFED {version} has no driver for {} (ConnectX-3)", text::list(&kinds));
        let found = Finding::error(id::DEV_DROPPED, host.name, seen, "RDMA cannot be used")
            .device(&*first.address)
            .run("sudo ofed_uninstall.sh --force");
        let ids = &diagnostics.kernel.distribution_ids;
        let install = install_line(ids, "rdma-core");
        Some(
            install
                .into_iter()
                .fold(found, Finding::run)
                .advise("reboot the host; the kernel's own mlx4 then drives the card"),
        )
    };
    cluster.diagnosed().filter_map(finding).collect()
}
