//! Hosts that differ from the others of the cluster, and clocks.

mod majority;
#[cfg(test)]
mod tests;

use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, Fix, Severity, id};
use crate::selection;
use majority::Comparison;
use rlaunch_bootstrap::inventory::Inventory;
use rlaunch_bootstrap::inventory::pci::PciDevice;
use rlaunch_bootstrap::inventory::rdma::RdmaDevice;
use rlaunch_text::text;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::ODD_KERNEL,
        about: "all hosts run the same kernel",
        needs: Needs::Inventories,
        examine: kernel,
        causes: &[],
        explanation: "\
Symptoms: usually none; now and then one host is slower, or one lacks a feature of RDMA drivers that the others have.

Clusters are easiest to understand if all hosts are alike. rlaunch compared the kernel's version (`uname -r`) and \
names the hosts that differ from the majority; if no version has the majority, it names all groups. This is a note: \
different kernels work together.

Update the odd hosts and reboot them, for example when one was left out of an upgrade.",
    },
    Check {
        id: id::ODD_DRIVER,
        about: "drivers of NICs and GPUs have the same version on all hosts",
        needs: Needs::Inventories,
        examine: driver,
        causes: &[],
        explanation: "\
Symptoms: `CUDA driver version is insufficient for CUDA runtime version` on one host; features such as DMA-BUF that \
work on some hosts only.

rlaunch compared the versions that drivers report below /sys/module (nvidia, amdgpu, mlx5_core, mlx4_core, irdma, \
erdma). Drivers that come with the kernel report none. Hosts without the driver are left out.

Install the same driver packages on all hosts, and reboot or reload the modules.",
    },
    Check {
        id: id::ODD_FIRMWARE,
        about: "adapters of one model have the same firmware on all hosts",
        needs: Needs::Inventories,
        examine: firmware,
        causes: &[],
        explanation: "\
Symptoms: one host whose transfers are slower or whose queue pairs time out under load; congestion control that works \
on some hosts only.

Firmware of NICs decides on congestion control, atomics and ordering, so mixed versions of one model behave \
differently under load. rlaunch compared the firmware of RDMA devices with equal PCI ids (fw_ver in sysfs) over all \
hosts.

Update the odd ones, with mlxfwmanager or mstflint for NVIDIA's cards, and reboot or reset them (mlxfwreset).",
    },
    Check {
        id: id::ODD_LIBRARY,
        about: "RDMA, CUDA and NCCL libraries have the same version on all hosts",
        needs: Needs::Inventories,
        examine: library,
        causes: &[],
        explanation: "\
Symptoms: `NCCL error: mismatched NCCL versions`, a hang in ncclCommInitRank, functions that libibverbs lacks on one \
host.

All ranks of a job have to use the same NCCL: its handshake differs between versions, so a difference is a warning. \
libibverbs, librdmacm and libcuda may differ, and are only noted. rlaunch compared the versions in the names of the \
libraries that the loader would find; a library inside of a Python package may take precedence.

Install the same version everywhere, or run the job in one container image.",
    },
    Check {
        id: id::ODD_PYTHON,
        about: "Python and its packages for jobs have the same version on all hosts",
        needs: Needs::Diagnostics,
        examine: python,
        causes: &[],
        explanation: "\
Symptoms: `unpickling` errors, `Detected mismatch between collectives on ranks`, hangs in init_process_group, state \
dictionaries that do not load.

PyTorch, JAX and Horovod expect the same version on every rank, since they exchange objects and agree on the order \
of collectives. rlaunch compared the versions of packages of the Python that a login finds. If the job uses a \
virtual environment or a container, compare inside: rlaunch doctor … -- PATH/python train.py.

Install equal versions from one lock file, or share the environment between the hosts.",
    },
    Check {
        id: id::ODD_PCIE,
        about: "adapters and GPUs of one model have the same PCIe width on all hosts",
        needs: Needs::Inventories,
        examine: pcie,
        causes: &[],
        explanation: "\
Symptoms: one host is slower than the others with the same cards.

The same card on another host has more PCIe lanes. Either it sits in a narrower slot, or the link came up with fewer \
lanes because of dirt, a riser or a failing contact. rlaunch compared the current width of devices with equal PCI \
ids. `lspci -vv -s ADDRESS` shows the width as LnkSta, and what the card can do as LnkCap.

Move or reseat the card. pcie.degraded tells which link of the way to the CPU is narrow.",
    },
    Check {
        id: id::ODD_RATE,
        about: "active ports of one adapter model have the same rate on all hosts",
        needs: Needs::Inventories,
        examine: rate,
        causes: &[],
        explanation: "\
Symptoms: collectives run at the speed of the slowest host; one link of a switch shows a lower speed.

Collectives move data in step, so one slow port slows all hosts. rlaunch compared the rates of active RDMA ports of \
devices with equal PCI ids. A lower rate comes from a cable or transceiver for less, from a setting of the switch \
port, or from lanes that failed (2X in place of 4X).

Compare cables and switch ports with those of a good host; `ethtool IF` or `ibstat` shows what was negotiated.",
    },
    Check {
        id: id::ODD_MEMORY,
        about: "all hosts have the same amount of memory, and as much of it left",
        needs: Needs::Inventories,
        examine: memory,
        causes: &[],
        explanation: "\
Symptoms: ranks of one host are killed, or one host swaps and the others wait for it.

Equal ranks need equal memory. rlaunch compared the memory of all hosts (a difference of more than a tenth counts) \
and, where that is equal, what is left: far less than on the others usually means that processes of an earlier job \
still run. A module of memory that failed at boot also shows here.

`ps aux --sort=-rss | head` lists the processes that use it, `free -h` and \
`sudo dmidecode -t memory` show what is installed.",
    },
    Check {
        id: id::ODD_HARDWARE,
        about: "all hosts have the same number of CPUs, GPUs and RDMA adapters",
        needs: Needs::Inventories,
        examine: hardware,
        causes: &[],
        explanation: "\
Symptoms: `CUDA error: invalid device ordinal` on one host, fewer ranks than expected, an all-reduce that is slower \
since one host was rebooted.

A GPU that fell off the bus, a NIC that did not come up and a CPU that was taken offline leave a host with less than \
its sisters. rlaunch counted online CPUs, GPUs by their PCI ids, and RDMA devices of hardware (virtual functions left \
out). Clusters of different machines are fine, so this is a note.

`lspci` shows whether the device is there at all; the kernel's log (`dmesg`) says why it is not used.",
    },
    Check {
        id: id::CLOCK_OFFSET,
        about: "the clocks of all hosts agree within a second",
        needs: Needs::Connections,
        examine: clock,
        causes: &[],
        explanation: "\
Symptoms: logs that cannot be put in order, `certificate is not yet valid`, `make: Clock skew detected`, checkpoints \
that look older than they are, Kerberos and token logins that fail.

Each agent reported its time, and rlaunch computed the offset to its own clock; the time that the \
question took is the uncertainty and does not count. A finding names a host that is more than a \
second apart from the middle of all clocks.

Switch on a time service: `sudo timedatectl set-ntp true`, or chrony; in a virtual machine also after it was paused.",
    },
];

/// Part of the memory of other hosts below which a host is odd.
const LESS_MEMORY: f64 = 0.9;
/// Part of the free memory of other hosts below which a host is odd, if it has at least [`LARGE`].
const LITTLE_LEFT: f64 = 0.25;
/// Memory of a host whose free memory is compared, in bytes.
const LARGE: u64 = 16 << 30;
/// Python packages of which all ranks need the same version.
const SAME_PACKAGES: &[&str] = &["torch", "jax", "jaxlib", "horovod", "tensorflow", "mpi4py"];

fn kernel(cluster: &Cluster<'_>) -> Vec<Finding> {
    let values = cluster.hosts.iter().map(|host| (host.name, host.inventory.system.kernel.clone()));
    Comparison::new(id::ODD_KERNEL, "kernel").findings(values)
}

/// Compares values that hosts have by name, such as versions of drivers.
fn compare_by_name(
    cluster: &Cluster<'_>,
    of_host: impl Fn(&ClusterHost<'_>) -> Vec<(String, String)>,
    comparison: impl Fn(&str) -> Comparison,
) -> Vec<Finding> {
    let hosts: Vec<(&str, Vec<(String, String)>)> =
        cluster.hosts.iter().map(|host| (host.name, of_host(host))).collect();
    let names: BTreeSet<&String> =
        hosts.iter().flat_map(|(_, values)| values.iter().map(|(name, _)| name)).collect();
    let of_name = |name: &String| {
        let values = hosts.iter().map(|(host, values)| {
            let value = values.iter().find(|(own, _)| own == name);
            (*host, value.map(|(_, value)| value.clone()))
        });
        comparison(name).findings(values)
    };
    names.into_iter().flat_map(of_name).collect()
}

fn driver(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>| host.inventory.system.drivers.clone();
    compare_by_name(cluster, of_host, |name| {
        Comparison::new(id::ODD_DRIVER, &format!("driver {name}"))
    })
}

fn library(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>| {
        let system = &host.inventory.system;
        let mut libraries = system.libraries.clone();
        // Only the NCCL that the program would load counts, not another one that is installed.
        if let Some(nccl) = &system.nccl {
            libraries.retain(|(name, _)| name != "libnccl");
            libraries.push(("libnccl".to_owned(), nccl.version.clone()));
        }
        libraries
    };
    compare_by_name(cluster, of_host, |name| match name {
        "libnccl" => Comparison::new(id::ODD_LIBRARY, "NCCL")
            .breaks_jobs("ranks with different versions of NCCL cannot connect"),
        _ => Comparison::new(id::ODD_LIBRARY, name),
    })
}

fn python(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>| {
        host.diagnostics.map(|state| state.python.clone()).unwrap_or_default()
    };
    let is_shared = |name: &str| SAME_PACKAGES.contains(&name) || name.starts_with("nvidia-nccl");
    compare_by_name(cluster, of_host, |name| {
        if is_shared(name) {
            Comparison::new(id::ODD_PYTHON, name)
                .breaks_jobs("ranks with different versions may hang or compute different results")
        } else {
            Comparison::new(id::ODD_PYTHON, name)
        }
    })
}

/// Returns the PCI ids of a device, as in `15b3:101b`. Devices with equal ids are of one model.
fn model(pci: &PciDevice) -> Option<String> {
    Some(format!("{:04x}:{:04x}", pci.vendor?, pci.device?))
}

/// Lists RDMA devices of hardware with their models. Virtual functions share what their card has.
fn adapters(inventory: &Inventory) -> impl Iterator<Item = (String, &RdmaDevice, &PciDevice)> {
    let devices = inventory.rdma.iter().filter_map(|device| Some((device, device.pci.as_ref()?)));
    let physical = devices.filter(|(_, pci)| pci.physical_function.is_none());
    physical.filter_map(|(device, pci)| Some((model(pci)?, device, pci)))
}

/// Counts RDMA devices without hardware of their own, such as those of soft RoCE.
fn count_in_software(inventory: &Inventory) -> usize {
    inventory.rdma.iter().filter(|device| device.pci.is_none()).count()
}

/// Joins the values of each model on a host: a host with two cards may have two.
fn joined(values: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut by_model: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (model, value) in values {
        by_model.entry(model).or_default().insert(value);
    }
    let join = |values: BTreeSet<String>| values.into_iter().collect::<Vec<_>>().join(" and ");
    by_model.into_iter().map(|(model, values)| (model, join(values))).collect()
}

fn firmware(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>| {
        let known = adapters(host.inventory);
        joined(known.filter_map(|(model, device, _)| Some((model, device.firmware.clone()?))))
    };
    compare_by_name(cluster, of_host, |model| {
        Comparison::new(id::ODD_FIRMWARE, &format!("firmware of {model}"))
            .breaks_jobs("adapters of one model behave differently under load")
    })
}

fn rate(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>| {
        let rates = adapters(host.inventory).flat_map(|(model, device, _)| {
            let rates = device.ports.iter().map(|port| selection::rate(device, port).to_owned());
            rates.map(move |rate| (model.clone(), rate))
        });
        joined(rates.filter(|(_, rate)| !rate.is_empty() && rate != "unknown"))
    };
    compare_by_name(cluster, of_host, |model| {
        Comparison::new(id::ODD_RATE, &format!("rate of {model}"))
            .breaks_jobs("collectives run at the speed of the slowest port")
            .cured_by("compare cable, transceiver and switch port with those of the other hosts")
    })
}

fn pcie(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>| {
        let gpus = host.inventory.gpus.iter().map(|gpu| &gpu.pci);
        let gpus = gpus.filter_map(|pci| Some((model(pci)?, pci)));
        let all = adapters(host.inventory).map(|(model, _, pci)| (model, pci)).chain(gpus);
        joined(all.filter_map(|(model, pci)| {
            let width = pci.links.first()?.current?.width;
            Some((model, format!("x{width}")))
        }))
    };
    compare_by_name(cluster, of_host, |model| {
        Comparison::new(id::ODD_PCIE, &format!("PCIe width of {model}"))
            .cured_by("reseat the card, or move it to a slot like that of the other hosts")
    })
}

fn hardware(cluster: &Cluster<'_>) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>| {
        let inventory = host.inventory;
        let mut gpus: BTreeMap<String, usize> = BTreeMap::new();
        for gpu in &inventory.gpus {
            *gpus.entry(model(&gpu.pci).unwrap_or_else(|| "GPU".to_owned())).or_default() += 1;
        }
        let gpus: Vec<String> =
            gpus.iter().map(|(model, count)| format!("{count} of {model}")).collect();
        let gpus = if gpus.is_empty() { "none".to_owned() } else { gpus.join(", ") };
        vec![
            ("CPUs".to_owned(), inventory.cpus.online.len().to_string()),
            ("GPUs".to_owned(), gpus),
            ("RDMA adapters".to_owned(), adapters(inventory).count().to_string()),
            ("RDMA devices in software".to_owned(), count_in_software(inventory).to_string()),
        ]
    };
    compare_by_name(cluster, of_host, |what| {
        Comparison::new(id::ODD_HARDWARE, what).cured_by(
            "lspci, lscpu and `rdma link` show what is there; dmesg says why a device is missing",
        )
    })
}

fn memory(cluster: &Cluster<'_>) -> Vec<Finding> {
    let total = |host: &ClusterHost<'_>| {
        let mut nodes = host.inventory.numa_nodes.iter().map(|node| node.memory);
        let total = nodes.try_fold(0_u64, |sum, memory| sum.checked_add(memory?));
        total.filter(|bytes| *bytes > 0)
    };
    let left = |host: &ClusterHost<'_>| {
        let left = host.diagnostics?.memory_available?;
        total(host).filter(|total| *total >= LARGE).map(|_| left)
    };
    let installed = hosts_with_less(cluster, total, LESS_MEMORY, "of memory");
    if installed.is_empty() {
        hosts_with_less(cluster, left, LITTLE_LEFT, "of memory left")
    } else {
        installed
    }
}

/// Finds hosts with less than `part` of the median of all hosts. With two hosts, the larger value
/// counts as the median.
fn hosts_with_less(
    cluster: &Cluster<'_>,
    value: impl Fn(&ClusterHost<'_>) -> Option<u64>,
    part: f64,
    what: &str,
) -> Vec<Finding> {
    let mut known: Vec<(u64, &str)> =
        cluster.hosts.iter().filter_map(|host| Some((value(host)?, host.name))).collect();
    known.sort_unstable();
    let Some(&(usual, _)) = known.get(known.len() / 2) else { return Vec::new() };
    let is_little = |(bytes, _): &(u64, &str)| (*bytes as f64) < usual as f64 * part;
    let (few, others): (Vec<_>, Vec<_>) = known.into_iter().partition(is_little);
    let others: Vec<&str> = others.iter().map(|(_, host)| *host).collect();
    let finding = |(bytes, host): (u64, &str)| {
        let (few, usual) = (super::size(bytes), super::size(usual));
        let seen = format!("{few} {what} where {} have {usual}", text::list(&others));
        Finding::new(id::ODD_MEMORY, Severity::Note, host, seen, "equal ranks need equal memory")
    };
    few.into_iter().map(finding).collect()
}

/// Offset that matters, in microseconds.
const CLOCK_LIMIT: u64 = 1_000_000;

/// Compares the clock of each host with the median of all. With one or two hosts, the launcher's clock takes
/// part as well.
fn clock(cluster: &Cluster<'_>) -> Vec<Finding> {
    let known = |host: &ClusterHost<'_>| host.clock_offset.map(|(offset, _)| offset);
    let mut offsets: Vec<i64> = cluster.hosts.iter().filter_map(known).collect();
    if offsets.len() < 3 {
        offsets.push(0);
    }
    offsets.sort_unstable();
    let middle = offsets[offsets.len() / 2];
    // With two clocks, either may be wrong. A single host has only the clock here to agree with.
    let is_alone = cluster.hosts.len() < 2;
    let finding = |host: &ClusterHost<'_>| {
        let (offset, uncertainty) = host.clock_offset?;
        let (offset, reference) = if is_alone {
            (offset, "the clock here")
        } else {
            (offset - middle, "the other clocks")
        };
        let sure = offset.unsigned_abs().saturating_sub(uncertainty);
        let direction = if offset < 0 { "behind" } else { "ahead of" };
        let seen = format!("its clock is {} {direction} {reference}", duration(sure));
        let matters = "logs, checkpoints and certificates depend on the time";
        let found = if is_alone {
            Finding::note(id::CLOCK_OFFSET, host.name, seen, matters)
        } else {
            Finding::warning(id::CLOCK_OFFSET, host.name, seen, matters)
        };
        (sure > CLOCK_LIMIT).then(|| found.fixed_by(Fix::time_service()))
    };
    cluster.hosts.iter().filter_map(finding).collect()
}

/// Writes a time, as in `4.2 s` or `3 h`.
fn duration(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    match seconds {
        0..60 => format!("{:.1} s", micros as f64 / 1e6),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
