//! RDMA devices: adapters without a driver, device files, and the libraries that open them.
//!
//! | file | subject |
//! |---|---|
//! | `adapters` | PCI functions without an RDMA device |
//! | `access` | device files, libibverbs and its providers |

mod access;
mod adapters;
#[cfg(test)]
mod tests;

use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, Severity, id};
use crate::options::Transport;
use crate::selection;
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::rdma::{NodeType, Port, RdmaDevice};
use rlaunch_bootstrap::inventory::{ContainerKind, GpuVendor, Inventory};

pub(super) const CHECKS: &[Check] = &[
    adapters::ABSENT,
    adapters::MODULE,
    adapters::DROPPED,
    access::UVERBS,
    access::CONNECTION_MANAGER,
    access::PERMISSION,
    access::LIBRARY,
    access::PROVIDER,
    Check {
        id: id::DEV_CAPS,
        about: "devices have the queue pairs that GPU libraries use",
        needs: Needs::Inventories,
        examine: capabilities,
        causes: &[],
        explanation: "\
Symptoms: NIXL or a UCX transport called `ud` does not start on eRDMA; NCCL's verbs transport fails on iWARP with \
`ibv_modify_qp failed`, although perftest runs.

Devices differ in what their queue pairs can do. eRDMA has neither datagram queue pairs (UD) nor shared receive \
queues, except for UD in the RoCEv2 mode of new kernels. iWARP connects queue pairs by the RDMA connection manager, which NCCL \
does not use, and few iWARP cards have a write with immediate data. rlaunch needs none of these: its own communicator uses \
reliable queue pairs, sends and plain writes.

The kind of device was read from sysfs. On eRDMA use transports that need only reliable connections; on iWARP \
let NCCL use TCP, as rlaunch does by itself.",
    },
    Check {
        id: id::DEV_QP,
        about: "devices have enough queue pairs for one rank per GPU",
        needs: Needs::Diagnostics,
        examine: queue_pairs,
        causes: &[id::MESH_SILENT],
        explanation: "\
Symptoms: `ibv_create_qp failed: Cannot allocate memory` or `No space left on device` once a job has many ranks, \
while two ranks work.

Every rank needs a queue pair for each rank of the other hosts. Intel's E810 allows only 124 of them if its \
driver irdma is loaded with limits_sel=0; other devices allow thousands. The parameter was read where irdma has it, and \
compared with one rank per GPU, or one per host without GPUs. The number that any device has is known to \
programs alone: the test of RDMA, here and before each job, says so if it is too small. The kernel's error may also \
mean that no more memory may be locked (see lim.memlock).

Load irdma with a larger limit, for example limits_sel=5 for about 65000 queue pairs, or run fewer ranks per host. \
Loading it anew drops all RDMA connections of the host.",
    },
    Check {
        id: id::DEV_CQ,
        about: "a rank needs few completion queues, however many peers it has",
        needs: Needs::Nothing,
        examine: prevented,
        causes: &[],
        explanation: "\
Symptom elsewhere: `ibv_create_cq: Cannot allocate memory` at several hundred hosts, when every connection has a \
completion queue of its own.

rlaunch prevents it: connections of a rank share completion queues, and the queue pairs of the test are closed \
before the program starts. If a library of the program fails like this, let it connect on demand; NCCL does so \
from 2.22 on (NCCL_RUNTIME_CONNECT=1).",
    },
];

/// Maximum number of queue pairs of irdma by its parameter limits_sel (drivers/infiniband/hw/irdma/hw.c).
const IRDMA_LIMITS: [usize; 8] =
    [128, 1 << 10, 1 << 11, 1 << 12, 1 << 14, 1 << 16, 1 << 17, 1 << 18];

/// Check of a fault that rlaunch prevents: it always passes.
pub(super) fn prevented(_cluster: &Cluster<'_>) -> Vec<Finding> {
    Vec::new()
}

/// Names a port, as in `mlx5_0/1`.
pub(super) fn port_name(device: &RdmaDevice, port: &Port) -> String {
    format!("{}/{}", device.name, port.number)
}

/// Lists the hosts with their indexes, which are those of the plan's nodes.
pub(super) fn indexed<'c, 'a>(
    cluster: &'c Cluster<'a>,
) -> impl Iterator<Item = (usize, &'c ClusterHost<'a>)> {
    cluster.hosts.iter().enumerate()
}

/// Tells whether a host has a port that a job can use.
pub(super) fn has_rdma(cluster: &Cluster<'_>, host: usize) -> bool {
    let ports = cluster.plan.and_then(|plan| plan.ports.get(host));
    ports.is_some_and(|ports| !ports.is_empty())
}

/// Tells whether another host has a port that a job can use.
pub(super) fn others_have_rdma(cluster: &Cluster<'_>, host: usize) -> bool {
    (0..cluster.hosts.len()).any(|other| other != host && has_rdma(cluster, other))
}

/// Tells whether a port of this device can be used.
pub(super) fn is_used(cluster: &Cluster<'_>, host: usize, device: &RdmaDevice) -> bool {
    let ports = cluster.plan.and_then(|plan| plan.ports.get(host));
    ports.is_some_and(|ports| ports.iter().any(|port| port.nic.device == device.name))
}

/// Lists the hardware devices of a host that jobs use.
pub(super) fn used_hardware<'c, 'a>(
    cluster: &'c Cluster<'a>,
    index: usize,
    host: &ClusterHost<'a>,
) -> impl Iterator<Item = &'a RdmaDevice> + use<'c, 'a> {
    let devices = host.inventory.rdma.iter();
    devices.filter(move |device| is_used(cluster, index, device) && !selection::is_software(device))
}

/// Returns the severity of a device that cannot be used: an error if the host has no other, otherwise a note.
pub(super) fn severity_of_loss(cluster: &Cluster<'_>, host: usize) -> Severity {
    if has_rdma(cluster, host) { Severity::Note } else { Severity::Error }
}

/// Returns the severity of what is missing on a host that need not have RDMA: an error if RDMA is
/// required, a warning if other hosts have it, otherwise a note.
pub(super) fn severity_of_absence(cluster: &Cluster<'_>, host: usize) -> Severity {
    match cluster.transport {
        Transport::Rdma => Severity::Error,
        _ if others_have_rdma(cluster, host) => Severity::Warning,
        _ => Severity::Note,
    }
}

/// Tells whether ranks of the host run in a container.
pub(super) fn in_container(cluster: &Cluster<'_>, host: &ClusterHost<'_>) -> bool {
    cluster.in_container || host.inventory.system.container.is_some()
}

/// Returns the line that installs `package`, by the words of `ID` and `ID_LIKE` in os-release;
/// `None` for an unknown distribution. `package` is Debian's name.
pub(super) fn install_line(distribution_ids: &[String], package: &str) -> Option<String> {
    let is = |names: &[&str]| distribution_ids.iter().any(|id| names.contains(&id.as_str()));
    let elsewhere = match package {
        "ibverbs-providers" => "libibverbs",
        other => other,
    };
    if is(&["debian", "ubuntu"]) {
        Some(format!("sudo apt-get install -y {package}"))
    } else if is(&["fedora", "rhel", "centos"]) {
        Some(format!("sudo dnf install -y {elsewhere}"))
    } else if is(&["suse", "opensuse", "sles"]) {
        Some(format!("sudo zypper install -y {elsewhere}"))
    } else {
        None
    }
}

/// Writes what a container is to be started with: a flag of its engine, or a part of the pod's specification.
pub(super) fn container_cure(host: &ClusterHost<'_>, flag: &str, pod: &str) -> String {
    match host.inventory.system.container {
        Some(ContainerKind::Kubernetes) => format!("the pod needs {pod}"),
        Some(engine) => format!("start the container with {engine} run {flag}"),
        None => format!("start the container with {flag}"),
    }
}

/// Tells whether a host has NVIDIA GPUs.
pub(super) fn has_nvidia(inventory: &Inventory) -> bool {
    inventory.gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Nvidia)
}

/// Tells whether jobs on this cluster are likely to use NCCL: two hosts have GPUs, or a host has the library.
pub(super) fn uses_nccl(cluster: &Cluster<'_>) -> bool {
    let with_gpus = cluster.hosts.iter().filter(|host| !host.inventory.gpus.is_empty()).count();
    let has_library = |host: &ClusterHost<'_>| host.inventory.system.nccl.is_some();
    cluster.hosts.len() > 1 && (with_gpus > 1 || cluster.hosts.iter().any(has_library))
}

fn capabilities(cluster: &Cluster<'_>) -> Vec<Finding> {
    let note = |(index, host): (usize, &ClusterHost<'_>)| {
        let mut devices = used_hardware(cluster, index, host);
        let (device, seen, matters) = devices.find_map(|device| {
            let is_erdma = device.driver.as_deref() == Some("erdma");
            let (seen, matters) = if is_erdma {
                (
                    "eRDMA has no datagram queue pairs in its iWARP and compat modes",
                    "NIXL and UCX's ud transports do not start",
                )
            } else if device.node_type == NodeType::Rnic {
                (
                    "iWARP's queue pairs connect by the RDMA connection manager alone",
                    "NCCL's verbs transport does not work",
                )
            } else {
                return None;
            };
            Some((device, seen, matters))
        })?;
        let has_use = !host.inventory.gpus.is_empty();
        let found = Finding::note(id::DEV_CAPS, host.name, seen, matters).device(&*device.name);
        has_use.then_some(found)
    };
    indexed(cluster).filter_map(note).collect()
}

fn queue_pairs(cluster: &Cluster<'_>) -> Vec<Finding> {
    let ranks = |host: &ClusterHost<'_>| host.inventory.gpus.len().max(1);
    let all: usize = cluster.hosts.iter().map(ranks).sum();
    let mut found = Vec::new();
    for (host, diagnostics) in cluster.diagnosed() {
        let Some((choice, max)) = irdma_limit(diagnostics) else { continue };
        let mut devices = host.inventory.rdma.iter();
        let device = devices.find(|d| matches!(d.driver.as_deref(), Some("ice" | "irdma")));
        let needed = ranks(host) * (all - ranks(host));
        if let Some(device) = device.filter(|_| needed > max) {
            let seen = format!(
                "at most {max} queue pairs with limits_sel={choice}, {needed} needed for a rank per GPU"
            );
            let finding = Finding::error(id::DEV_QP, host.name, seen, "creating queue pairs fails")
                .device(&*device.name)
                .run("echo 'options irdma limits_sel=5' | sudo tee /etc/modprobe.d/irdma.conf")
                .run("sudo modprobe -r irdma; sudo modprobe irdma")
                .advise("or run fewer ranks per host");
            found.push(finding);
        }
    }
    found.extend(super::mesh::failures(cluster, |id| id == id::DEV_QP));
    found
}

/// Returns the parameter limits_sel of irdma, and how many queue pairs it allows; `None` if this irdma has no such
/// parameter.
pub(super) fn irdma_limit(diagnostics: &Diagnostics) -> Option<(usize, usize)> {
    let mut parameters = diagnostics.module_parameters.iter();
    let (_, value) = parameters.find(|(name, _)| name == "irdma.limits_sel")?;
    let choice: usize = value.parse().ok()?;
    Some((choice, *IRDMA_LIMITS.get(choice)?))
}
