//! Transfers between GPUs and NICs.

use super::devices::{has_nvidia, indexed, used_hardware};
use super::pcie::is_passed_through;
use super::{Check, Cluster, ClusterHost, Needs, quoted, version};
use crate::findings::{Finding, Fix, Severity, id};
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::pci::{Distance, PciDevice};
use rlaunch_bootstrap::inventory::rdma::RdmaDevice;
use rlaunch_bootstrap::inventory::{Gpu, GpuVendor, Inventory};
use rlaunch_text::text;
use std::collections::BTreeSet;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::GPU_DRIVER,
        about: "NVIDIA GPUs have their driver",
        needs: Needs::Inventories,
        examine: driver,
        causes: &[id::GPU_PEERMEM, id::NUMA_FAR, id::ODD_HARDWARE, id::ODD_DRIVER, id::ODD_LIBRARY],
        explanation: "\
Symptoms: `nvidia-smi: command not found` or `NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver`; \
`torch.cuda.is_available()` is False on one host; ranks end with `no CUDA-capable device is detected`.

The PCI bus shows an NVIDIA GPU that no driver or only nouveau has taken. After an update of the kernel, the driver may not \
have been built for the new one; under Secure Boot, an unsigned module is refused. PCI functions and their drivers were read \
from sysfs.

Install the driver or rebuild it (`dkms autoinstall`), then `sudo modprobe nvidia`; `dmesg | grep -i nvidia` says why \
it does not load. It is an error if other hosts of the cluster have the driver.",
    },
    Check {
        id: id::GPU_PEERMEM,
        about: "NICs can reach the memory of NVIDIA GPUs",
        needs: Needs::Inventories,
        examine: peer_memory,
        causes: &[id::MESH_BANDWIDTH],
        explanation: "\
Symptoms: NCCL logs `GPU Direct RDMA Disabled for HCA`, or `NET/IB` lines without `GDRDMA`; all-reduce between hosts is \
several times slower than the NICs.

For GPUDirect RDMA, the NIC must be allowed to read GPU memory: through the module nvidia_peermem, or through DMA-BUF, which \
needs a kernel from 5.12 and the open kernel modules of a driver from 515. Neither is possible here, so that each byte goes \
through the host's memory. Modules and versions were read from /sys/module, and from /proc/driver/nvidia/version whether the \
modules are the open ones.

Load nvidia-peermem, on the host and not in the container. It is a part of the driver; if it does not load, the driver \
was built without the RDMA headers of the installed OFED. NCCL up to 2.22.3 did not look for it on some systems.",
    },
    Check {
        id: id::GPU_ATS,
        about: "address translation services are on where NICs and GPUs are passed to a virtual machine",
        needs: Needs::Inventories,
        examine: translation,
        causes: &[id::MESH_BANDWIDTH],
        explanation: "\
Symptom: in a virtual machine, GPUDirect RDMA is much slower than on bare metal, or does not work.

Between devices of a virtual machine, data takes the short way through the PCIe switch only if the NIC translates \
addresses by itself (ATS) and the switch lets translated requests pass (ACS Direct Translated P2P). ATS is off in the \
registers of this NIC by NVIDIA (Mellanox), which root can read; the bridges above it show that this is a virtual machine.

Set ATS_ENABLED in the NIC's firmware and reboot the physical host, then set ACS again: each boot \
resets it. On ESXi, the machine also needs pciPassthru.allowP2P and RelaxACSforP2P.",
    },
    Check {
        id: id::GPU_ACS,
        about: "PCIe switches pass data between GPU and NIC directly",
        needs: Needs::Inventories,
        examine: access_control,
        causes: &[id::MESH_BANDWIDTH],
        explanation: "\
Symptoms: GPUDirect RDMA that is slow, hangs or delivers wrong data on bare metal; `lspci -vvv` shows `ACSCtl: SrcValid+ … \
ReqRedir+`.

Access control services (ACS) make a PCIe bridge send requests between devices up to the processor, which is meant for virtual \
machines. Between a GPU and its NIC it turns the short way through the switch into a long one. The control registers \
of the bridges between each GPU and the NICs at its switch were read, which needs root.

Disable ACS in the firmware's setup, or clear the register as shown; ACS is on again after the \
next boot. Hosts of virtual machines need ACS, and use ATS instead.",
    },
    Check {
        id: id::GPU_IOMMU,
        about: "the IOMMU does not translate addresses of GPUs and NICs on bare metal",
        needs: Needs::Diagnostics,
        examine: iommu,
        causes: &[],
        explanation: "\
Symptom: GPUDirect RDMA is slow or hangs, and works after the IOMMU is switched off.

The IOMMU translates the addresses that devices use. Transfers between GPU and NIC then pass the processor, whose cache of \
translations is small. An IOMMU is active, and the kernel's command line does not ask for pass-through, though the kernel may \
have it as its default: `dmesg | grep -i 'default domain'` says so.

Put iommu=pt, on Arm iommu.passthrough=1, into the boot loader's configuration and reboot the \
host. Hosts of virtual machines keep their IOMMU for the guests with it.",
    },
];

/// First version of the kernel with DMA-BUF for RDMA, and of NVIDIA's driver with the open modules that support it.
const DMABUF_KERNEL: (u32, u32) = (5, 12);
const DMABUF_DRIVER: u32 = 515;

/// PCI vendor of NVIDIA's (Mellanox) adapters.
const MELLANOX: u16 = 0x15b3;

fn nvidia_version(inventory: &Inventory) -> Option<&str> {
    let mut drivers = inventory.system.drivers.iter();
    drivers.find(|(name, _)| name == "nvidia").map(|(_, version)| version.as_str())
}

fn driver(cluster: &Cluster<'_>) -> Vec<Finding> {
    let is_driven = |gpu: &Gpu| gpu.pci.driver.as_deref() == Some("nvidia");
    let finding = |(index, host): (usize, &ClusterHost<'_>)| {
        let is_bare = |gpu: &&Gpu| {
            gpu.vendor == GpuVendor::Nvidia
                && matches!(gpu.pci.driver.as_deref(), None | Some("nouveau" | "nova_core"))
        };
        let bare: Vec<&Gpu> = host.inventory.gpus.iter().filter(is_bare).collect();
        let first = bare.first()?;
        let others = indexed(cluster).filter(|(other, _)| *other != index);
        let has_others = others.flat_map(|(_, host)| &host.inventory.gpus).any(is_driven)
            || host.inventory.gpus.iter().any(is_driven);
        let severity = if has_others { Severity::Error } else { Severity::Note };
        let by = first.pci.driver.as_deref().map_or("no driver", |driver| driver);
        let verb = if bare.len() == 1 { "has" } else { "have" };
        let seen = format!("{} {verb} {by}", text::count(bare.len(), "NVIDIA GPU"));
        let found =
            Finding::new(id::GPU_DRIVER, severity, host.name, seen, "CUDA finds no GPU there");
        let found = if bare.len() == 1 { found.device(&*first.pci.address) } else { found };
        Some(
            found
                .fixed_by(Fix::module("nvidia"))
                .advise("or install NVIDIA's driver; dmesg says why it does not load"),
        )
    };
    indexed(cluster).filter_map(finding).collect()
}

fn peer_memory(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(index, host): (usize, &ClusterHost<'_>)| {
        let inventory = host.inventory;
        let installed = nvidia_version(inventory).and_then(version);
        // Without the driver's version, its other modules cannot be seen either.
        let (driver, _) = installed.filter(|_| has_nvidia(inventory))?;
        let kernel = inventory.system.kernel.as_deref().and_then(version)?;
        // If it is not known whether the modules are the open ones, they may be.
        let is_proprietary = host.diagnostics.and_then(|d| d.nvidia_open) == Some(false);
        let is_new = kernel >= DMABUF_KERNEL && driver >= DMABUF_DRIVER;
        let may_use_dmabuf = is_new && !is_proprietary;
        let has_nic = used_hardware(cluster, index, host).next().is_some();
        if inventory.system.peer_memory || may_use_dmabuf || !has_nic {
            return None;
        }
        let seen = if is_new {
            format!(
                "no nvidia_peermem, and no DMA-BUF with the proprietary modules of driver {driver}"
            )
        } else {
            format!(
                "no nvidia_peermem, and no DMA-BUF with kernel {}.{} and driver {driver}",
                kernel.0, kernel.1
            )
        };
        let matters = "data of GPUs takes the way through the host's memory";
        let found = Finding::warning(id::GPU_PEERMEM, host.name, seen, matters);
        Some(if super::devices::in_container(cluster, host) {
            found.advise("on the container's host: sudo modprobe nvidia-peermem")
        } else {
            found.fixed_by(Fix::module("nvidia-peermem"))
        })
    };
    indexed(cluster).filter_map(finding).collect()
}

fn translation(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster).filter(|(_, host)| has_nvidia(host.inventory)) {
        for device in used_hardware(cluster, index, host) {
            let Some(pci) = &device.pci else { continue };
            // Other vendors' firmware has no such setting.
            let is_mellanox = pci.vendor == Some(MELLANOX);
            if pci.ats != Some(false) || !is_mellanox || !is_passed_through(pci) {
                continue;
            }
            let seen = "address translation (ATS) is off in a virtual machine";
            let matters = "data between GPU and NIC takes the way through the processor";
            let finding = Finding::warning(id::GPU_ATS, host.name, seen, matters)
                .device(&*device.name)
                .run("sudo mst start")
                .run(format!("sudo mlxconfig -d {} set ATS_ENABLED=true", quoted(&pci.address)))
                .advise("reboot the physical host, then set ACS Direct Translated P2P again");
            found.push(finding);
        }
    }
    found
}

/// Lists the bridges between two devices at a common switch whose ACS redirects requests upstream.
fn redirecting_bridges<'a>(one: &'a PciDevice, other: &'a PciDevice) -> Vec<&'a str> {
    let is_shared = |address: &str| {
        let is_above = |device: &PciDevice| device.links.iter().any(|link| link.address == address);
        is_above(one) && is_above(other)
    };
    let links = one.links.iter().chain(&other.links);
    let between = links.filter(|link| !is_shared(&link.address) && link.acs == Some(true));
    between.map(|link| link.address.as_str()).collect()
}

fn access_control(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        let mut bridges: BTreeSet<&str> = BTreeSet::new();
        let mut example: Option<(&Gpu, &RdmaDevice)> = None;
        for device in used_hardware(cluster, index, host) {
            let Some(pci) = device.pci.as_ref().filter(|pci| !is_passed_through(pci)) else {
                continue;
            };
            for gpu in &host.inventory.gpus {
                if gpu.pci.distance(pci) > Distance::Switches {
                    continue;
                }
                let redirecting = redirecting_bridges(&gpu.pci, pci);
                if !redirecting.is_empty() {
                    example.get_or_insert((gpu, device));
                    bridges.extend(redirecting);
                }
            }
        }
        let Some((gpu, device)) = example else { continue };
        let list: Vec<&str> = bridges.iter().copied().collect();
        let seen = format!(
            "ACS redirects at {}, between GPU {} and {}",
            text::list(&list),
            gpu.pci.address,
            device.name
        );
        let matters = "data between GPU and NIC takes the way through the processor, or hangs";
        let mut finding =
            Finding::warning(id::GPU_ACS, host.name, seen, matters).device(&*device.name);
        for bridge in bridges {
            let bridge = quoted(bridge);
            finding = finding.run(format!("sudo setpci -s {bridge} ECAP_ACS+6.w=0000"));
        }
        found.push(
            finding
                .advise("ACS is on again after the next boot: disable it in the firmware's setup"),
        );
    }
    found
}

fn iommu(cluster: &Cluster<'_>) -> Vec<Finding> {
    const PASSES: &[&str] =
        &["iommu=pt", "iommu.passthrough=1", "intel_iommu=off", "amd_iommu=off", "iommu=off"];
    let finding = |(index, host): (usize, &ClusterHost<'_>)| {
        let Diagnostics { kernel, .. } = host.diagnostics?;
        let words = &kernel.command_line;
        let mut devices = used_hardware(cluster, index, host);
        let is_bare_metal =
            devices.any(|device| device.pci.as_ref().is_some_and(|pci| !is_passed_through(pci)));
        let passes = words.iter().any(|word| PASSES.contains(&word.as_str()));
        let is_known = !words.is_empty() && host.inventory.system.iommu;
        if !is_known || passes || !is_bare_metal || !has_nvidia(host.inventory) {
            return None;
        }
        let seen = "an IOMMU is active, and the kernel was not started with iommu=pt, or on Arm with iommu.passthrough=1";
        let matters = "translating addresses may slow down transfers between GPU and NIC";
        let found = Finding::note(id::GPU_IOMMU, host.name, seen, matters);
        Some(found.advise(
            "add iommu=pt (on Arm iommu.passthrough=1) to the boot loader's configuration and reboot the host",
        ))
    };
    indexed(cluster).filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, lines, with_cluster};
    use super::*;
    use crate::findings::Step;

    /// Returns an eight-GPU server without faults.
    fn dgx() -> Machine {
        Machine::recorded("dgx").change(|inventory| {
            let devices = inventory.rdma.iter_mut().filter_map(|device| device.pci.as_mut());
            devices.flat_map(|pci| &mut pci.links).for_each(|link| link.acs = Some(false));
        })
    }

    #[test]
    fn bridges_between_gpu_and_nic_must_not_redirect() {
        let found = lines(access_control, &[Machine::recorded("dgx")]);
        let expected = "warn gpu.acs a mlx5_0: ACS redirects at 0000:12:02.0, between GPU 0000:13:00.0 and mlx5_0 — data between \
                        GPU and NIC takes the way through the processor, or hangs";
        assert_eq!(found, [expected]);
        let fix = with_cluster(&[Machine::recorded("dgx")], |cluster| {
            access_control(&cluster)[0].fix.clone()
        });
        assert_eq!(fix[0], Step::Run("sudo setpci -s 0000:12:02.0 ECAP_ACS+6.w=0000".into()));
        assert!(lines(access_control, &[dgx()]).is_empty());
        // A bridge above both is not between them.
        let above = dgx().change(|inventory| {
            let gpus = inventory.gpus.iter_mut().map(|gpu| &mut gpu.pci);
            let nics = inventory.rdma.iter_mut().filter_map(|device| device.pci.as_mut());
            gpus.chain(nics)
                .filter_map(|pci| pci.links.last_mut())
                .for_each(|l| l.acs = Some(true));
        });
        assert!(lines(access_control, &[above]).is_empty());
    }

    #[test]
    fn gpu_memory_needs_a_module_or_a_new_kernel() {
        let with = |kernel: &str, driver: &str| {
            let (kernel, driver) = (kernel.to_owned(), driver.to_owned());
            dgx().change(|inventory| {
                inventory.system.peer_memory = false;
                inventory.system.kernel = Some(kernel);
                inventory.system.drivers = vec![("nvidia".into(), driver)];
            })
        };
        let found = lines(peer_memory, &[with("5.4.0-84-generic", "535.183.01")]);
        let expected = "warn gpu.peermem a: no nvidia_peermem, and no DMA-BUF with kernel 5.4 and driver 535 — data of GPUs takes \
                        the way through the host's memory";
        assert_eq!(found, [expected]);
        assert_eq!(lines(peer_memory, &[with("5.15.0", "470.63.01")]).len(), 1);
        assert!(lines(peer_memory, &[with("5.15.0", "535.1")]).is_empty());
        let modules = |open: bool| {
            with("5.15.0", "535.1").diagnosed(|diagnostics| diagnostics.nvidia_open = Some(open))
        };
        assert!(lines(peer_memory, &[modules(true)]).is_empty());
        let found = lines(peer_memory, &[modules(false)]);
        let expected = "warn gpu.peermem a: no nvidia_peermem, and no DMA-BUF with the proprietary modules of driver 535 — data of \
                        GPUs takes the way through the host's memory";
        assert_eq!(found, [expected]);
        for name in ["dgx", "esxi-vm", "ack-node", "connectx3"] {
            assert!(lines(peer_memory, &[Machine::recorded(name)]).is_empty(), "{name}");
        }
    }

    #[test]
    fn translation_matters_in_virtual_machines() {
        let off = Machine::recorded("esxi-vm")
            .change(|inventory| inventory.rdma[0].pci.as_mut().unwrap().ats = Some(false));
        let found = lines(translation, &[off]);
        let expected = "warn gpu.ats a mlx5_0: address translation (ATS) is off in a virtual machine — data between GPU and NIC \
                        takes the way through the processor";
        assert_eq!(found, [expected]);
        assert!(lines(translation, &[Machine::recorded("esxi-vm")]).is_empty());
        let other = Machine::recorded("esxi-vm").change(|inventory| {
            let pci = inventory.rdma[0].pci.as_mut().unwrap();
            (pci.ats, pci.vendor) = (Some(false), Some(0x8086));
        });
        assert!(lines(translation, &[other]).is_empty(), "not a setting of its firmware");
        assert!(lines(translation, &[Machine::recorded("dgx")]).is_empty(), "bare metal");
    }

    #[test]
    fn a_translating_iommu_is_noted() {
        let with = |machine: Machine, words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            machine.diagnosed(|diagnostics| diagnostics.kernel.command_line = words)
        };
        let found = lines(iommu, &[with(dgx(), &["quiet"])]);
        assert!(
            found.len() == 1 && found[0].starts_with("note gpu.iommu a: an IOMMU is active"),
            "{found:?}"
        );
        assert!(found[0].contains("on Arm with iommu.passthrough=1"), "{found:?}");
        assert!(lines(iommu, &[with(dgx(), &["quiet", "iommu.passthrough=1"])]).is_empty());
        assert!(lines(iommu, &[with(dgx(), &["quiet", "iommu=pt"]), dgx()]).is_empty());
        assert!(lines(iommu, &[with(Machine::recorded("amd-apu"), &["quiet"])]).is_empty());
    }

    #[test]
    fn a_gpu_without_its_driver_is_an_error_beside_others() {
        let fault = dgx().change(|i| i.gpus.iter_mut().for_each(|gpu| gpu.pci.driver = None));
        let expected = "error gpu.driver b: 8 NVIDIA GPUs have no driver — CUDA finds no GPU there";
        assert_eq!(lines(driver, &[dgx(), fault.clone()]), [expected]);
        assert!(lines(driver, &[fault])[0].starts_with("note "));
        let passed = dgx().change(|inventory| {
            inventory.gpus.iter_mut().for_each(|gpu| gpu.pci.driver = Some("vfio-pci".into()));
        });
        assert!(lines(driver, &[dgx(), passed]).is_empty());
    }
}
