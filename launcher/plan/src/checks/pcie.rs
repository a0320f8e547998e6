//! PCIe links above NICs and GPUs, and NICs that are far from the GPUs that use them.

use super::devices::{indexed, port_name, used_hardware};
use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, id};
use crate::{limit, selection};
use rlaunch_bootstrap::inventory::Gpu;
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::pci::{Distance, LinkRate, PciDevice, PciLink, gigabits};
use rlaunch_bootstrap::inventory::rdma::RdmaDevice;
use rlaunch_text::text;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::PCIE_DEGRADED,
        about: "PCIe links of NICs and GPUs run as fast as card and slot can",
        needs: Needs::Inventories,
        examine: degraded,
        causes: &[id::PCIE_BOTTLENECK, id::MESH_BANDWIDTH, id::ODD_PCIE, id::LOG_AER],
        explanation: "\
Symptoms: half or a quarter of the expected bandwidth on one host; the kernel logs `31.504 Gb/s available PCIe bandwidth, \
limited by 8.0 GT/s PCIe x4 link`; lspci shows `Width x4 (downgraded)`.

A PCIe link agrees on the speed and the number of lanes that both ends manage. A card that sits loosely, dirty \
contacts or a bad riser cost lanes or speed: that is a warning. If the slot has fewer lanes than the card, as \
behind an M.2 adapter, the link is as good as it gets, and the finding is a note. Current and maximum rates of \
the card and of the port above it were read from sysfs, which needs no root.

Reseat the card, try another slot or riser, and look for a setting of the slot in the firmware's setup. GPUs lower \
the speed of an idle link, so only the number of their lanes is judged.",
    },
    Check {
        id: id::PCIE_BOTTLENECK,
        about: "PCIe carries the full rate of each RDMA port",
        needs: Needs::Inventories,
        examine: bottleneck,
        causes: &[id::MESH_BANDWIDTH],
        explanation: "\
Symptom: perftest reaches the same bandwidth whatever the cable, well below the rate of the port.

The slowest PCIe link between the NIC and the processor carries less than the port. With packets of 256 bytes, \
about 91 percent of the link's rate is data. The rates were computed as the kernel does, after encoding. Links of \
bridges that a hypervisor invents are left out.

Nothing is broken: judge bandwidth by the figure in the finding. A slot with more lanes, or one that \
belongs to the processor directly, raises the limit.",
    },
    Check {
        id: id::PCIE_POWER,
        about: "PCIe links of hosts with NICs or GPUs do not sleep",
        needs: Needs::Diagnostics,
        examine: power,
        causes: &[],
        explanation: "\
Symptom: latencies of small messages are a few microseconds longer than on an equal machine, and vary.

The kernel's command line asks for power management of PCIe links (ASPM). A link that sleeps needs some microseconds \
to wake up, and a few cards lose their link over it. The command line was read from /proc/cmdline.

Take the word out of the boot loader's configuration, or put pcie_aspm=off in its place, and \
reboot the host.",
    },
    Check {
        id: id::NUMA_FAR,
        about: "GPUs use NICs of their own NUMA node",
        needs: Needs::Inventories,
        examine: gpus_far_from_nics,
        causes: &[id::MESH_BANDWIDTH],
        explanation: "\
Symptoms: some ranks of a host are slower than others; NCCL logs distance SYS between a GPU and its NIC, and does not use \
GPUDirect there.

The GPUs of one NUMA node have only NICs of another one, so their data crosses the link between the processors, which \
costs bandwidth and latency and rules GPUDirect out. A NIC of their own node is there, but cannot be used. NUMA nodes \
and PCI addresses of GPUs and NICs were read from sysfs.

Bring the near NIC up: its own finding, such as link.down, says what it lacks. Until then, ranks on these GPUs \
work, but slower.",
    },
];

/// Tells whether a hypervisor made up a bridge above the device, so that this is a virtual machine.
pub(super) fn is_passed_through(pci: &PciDevice) -> bool {
    pci.real_links().len() < pci.links.len()
}

/// Describes a device's own link if it is slower than the device could be. `rate` is what counts of
/// a rate.
fn slower(links: &[PciLink], rate: impl Fn(LinkRate) -> u32) -> Option<Slower> {
    let own = links.first()?;
    let (current, max) = (own.current?, own.max?);
    if rate(current) >= rate(max) {
        return None;
    }
    // Both ends together manage the lower speed and the smaller width.
    let common = |slot: LinkRate| LinkRate {
        speed: slot.speed.min(max.speed),
        width: slot.width.min(max.width),
    };
    let slot = links.get(1).and_then(|slot| Some((slot.address.clone(), slot.max?)));
    let limit = slot.filter(|(_, slot)| rate(common(*slot)) <= rate(current)).map(|(slot, _)| slot);
    Some(Slower { current, max, limit })
}

/// Link that is slower than its device could be.
struct Slower {
    current: LinkRate,
    max: LinkRate,
    /// PCI address of the slot that limits it, if it does.
    limit: Option<String>,
}

/// Returns the PCI functions of a host's RDMA devices, one of each slot.
fn cards<'a>(host: &ClusterHost<'a>) -> Vec<&'a PciDevice> {
    let mut slots = BTreeSet::new();
    let mut cards: Vec<&PciDevice> =
        host.inventory.rdma.iter().filter_map(|device| device.pci.as_ref()).collect();
    cards.retain(|pci| {
        pci.physical_function.is_none() && slots.insert(pci.slot().unwrap_or(&pci.address))
    });
    cards
}

fn degraded(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for host in &cluster.hosts {
        for pci in cards(host) {
            let links = pci.real_links();
            // Without a real slot above it, a device of a virtual machine has no known limit.
            let is_known = links.len() > 1;
            found.extend(
                slower(links, LinkRate::megabits)
                    .map(|slower| degraded_finding(host, &pci.address, &slower, is_known)),
            );
        }
        for gpu in &host.inventory.gpus {
            let slower = slower(gpu.pci.real_links(), |rate| u32::from(rate.width));
            // GPUs in a narrow slot are common, and not worth a note.
            let slower = slower.filter(|slower| slower.limit.is_none() && gpu.pci.links.len() > 1);
            found.extend(
                slower.map(|slower| degraded_finding(host, &gpu.pci.address, &slower, true)),
            );
        }
    }
    found
}

fn degraded_finding(
    host: &ClusterHost<'_>,
    address: &str,
    slower: &Slower,
    is_known: bool,
) -> Finding {
    let Slower { current, max, limit } = slower;
    let rates = format!(
        "runs at {current} ({} Gb/s), the card could at {max} ({})",
        gigabits(current.megabits()),
        gigabits(max.megabits())
    );
    match (limit, is_known) {
        (Some(slot), _) => {
            let seen = format!("{rates}: limited by the slot {slot}");
            let matters = "expected behind an adapter or in a narrow slot";
            Finding::note(id::PCIE_DEGRADED, host.name, seen, matters)
        }
        (None, true) => {
            let matters = "the slot could do more, so data is slower than it should be";
            Finding::warning(id::PCIE_DEGRADED, host.name, rates, matters)
                .advise("reseat the card, or try another slot or riser")
        }
        (None, false) => {
            Finding::note(id::PCIE_DEGRADED, host.name, rates, "the slot's limit is not known")
        }
    }
    .device(address)
}

fn bottleneck(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        let mut slots = BTreeSet::new();
        for port in cluster.plan.and_then(|plan| plan.ports.get(index)).into_iter().flatten() {
            let device = host.inventory.rdma.iter().find(|device| device.name == port.nic.device);
            let Some(pci) = device.and_then(|device| device.pci.as_ref()) else { continue };
            let real = PciDevice { links: pci.real_links().to_vec(), ..pci.clone() };
            let (Some(limit), Some(rate)) = (real.bottleneck(), port.nic.rate_mbps) else {
                continue;
            };
            let megabits = limit.rate.megabits();
            if megabits >= rate || !slots.insert(pci.slot()) {
                continue;
            }
            let seen = format!(
                "port {} Gb/s, PCIe {} Gb/s ({} at {})",
                rate / 1000,
                gigabits(megabits),
                limit.rate,
                limit.address
            );
            let most = f64::from(limit::pcie_payload(megabits));
            let matters = format!("expect at most about {:.1} Gb/s", most / 1000.0);
            let finding = Finding::note(id::PCIE_BOTTLENECK, host.name, seen, matters);
            found.push(finding.device(&*pci.address));
        }
    }
    found
}

fn power(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, diagnostics): (&ClusterHost<'_>, &Diagnostics)| {
        let has_hardware = host.inventory.rdma.iter().any(|device| !selection::is_software(device))
            || !host.inventory.gpus.is_empty();
        let sleeps = |word: &&String| {
            ["pcie_aspm=force", "pcie_aspm.policy=powersave", "pcie_aspm.policy=powersupersave"]
                .contains(&word.as_str())
        };
        let word = diagnostics.kernel.command_line.iter().find(sleeps).filter(|_| has_hardware)?;
        let seen = format!("the kernel was started with {word}");
        let matters = "links that sleep add microseconds to small messages";
        let found = Finding::note(id::PCIE_POWER, host.name, seen, matters);
        Some(found.advise(format!(
            "put pcie_aspm=off in place of {word} in the boot loader's configuration"
        )))
    };
    cluster.diagnosed().filter_map(finding).collect()
}

/// Tells whether a host has usable hardware ports, and all of them are across NUMA nodes from this GPU.
pub(super) fn is_far_from_all(cluster: &Cluster<'_>, index: usize, gpu: &Gpu) -> bool {
    if gpu.pci.numa_node.is_none() {
        return false;
    }
    let mut used = used_hardware(cluster, index, &cluster.hosts[index]).peekable();
    used.peek().is_some() && used.all(|device| is_across(gpu, device))
}

/// Tells whether GPU and NIC are known to be of different NUMA nodes.
fn is_across(gpu: &Gpu, device: &RdmaDevice) -> bool {
    let distance = device.pci.as_ref().map(|pci| gpu.pci.distance(pci));
    device.numa_node.is_some() && distance == Some(Distance::System)
}

/// Finds the NUMA nodes whose GPUs are far from all NICs that their host can use.
fn gpus_far_from_nics(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        let ports = cluster.plan.and_then(|plan| plan.ports.get(index)).into_iter().flatten();
        let mut usable: Vec<&str> = ports.map(|port| port.nic.device.as_str()).collect();
        usable.dedup();
        for (numa_node, gpus) in far_gpus(cluster, index) {
            found.push(far_finding(host, numa_node, gpus, &usable));
        }
    }
    found
}

/// Counts the GPUs of a host that are far from all NICs that it can use, by NUMA node.
fn far_gpus(cluster: &Cluster<'_>, index: usize) -> BTreeMap<u32, usize> {
    let gpus = cluster.hosts[index].inventory.gpus.iter();
    let far = gpus.filter(|gpu| is_far_from_all(cluster, index, gpu));
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for numa_node in far.filter_map(|gpu| gpu.pci.numa_node) {
        *counts.entry(numa_node).or_default() += 1;
    }
    counts
}

/// Describes the GPUs of a NUMA node, of which there are `gpus`: the NICs that are `usable` instead, and the port of
/// their own NUMA node to bring up, if there is one.
fn far_finding(host: &ClusterHost<'_>, numa_node: u32, gpus: usize, usable: &[&str]) -> Finding {
    let seen = format!(
        "{} of NUMA node {numa_node}, and usable NICs only elsewhere: {}",
        text::count(gpus, "GPU"),
        text::list(usable)
    );
    let matters = "their data crosses the link between processors, and NCCL leaves GPUDirect out there unless told";
    let is_near = |device: &RdmaDevice| device.numa_node == Some(numa_node);
    let mut ports = host.rdma_ports();
    let near = ports.find(|(device, _)| is_near(device) && !selection::is_software(device));
    match near {
        Some((device, port)) => {
            let name = port_name(device, port);
            Finding::warning(id::NUMA_FAR, host.name, seen, matters)
                .device(&*name)
                .advise(format!("bring up {name}, which is of that NUMA node"))
        }
        None => Finding::note(id::NUMA_FAR, host.name, seen, matters),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, lines};
    use super::*;

    fn rate(speed: u16, width: u8) -> Option<LinkRate> {
        Some(LinkRate { speed, width })
    }

    #[test]
    fn a_slot_that_limits_is_told_from_a_card_that_sits_badly() {
        let found = lines(degraded, &[Machine::recorded("connectx3")]);
        let expected = "note pcie.degraded a 0000:c3:00.0: runs at 8.0 GT/s PCIe x4 (31.504 Gb/s), the card could at \
                        8.0 GT/s PCIe x8 (63.008): limited by the slot 0000:00:02.5 — expected behind an adapter or \
                        in a narrow slot";
        assert_eq!(found, [expected]);
        let loose = Machine::recorded("bond").change(|inventory| {
            for link in &mut inventory.rdma[0].pci.as_mut().unwrap().links {
                link.current = rate(160, 8);
            }
        });
        let found = lines(degraded, &[loose]);
        let expected = "warn pcie.degraded a 0000:41:00.0: runs at 16.0 GT/s PCIe x8 (126.024 Gb/s), the card could \
                        at 16.0 GT/s PCIe x16 (252.048) — the slot could do more, so data is slower than it should be";
        assert_eq!(found, [expected]);
        assert_eq!(lines(degraded, &[Machine::recorded("spark")]).len(), 2, "one of each slot");
        for name in ["bond", "dgx", "dual-port", "sriov", "esxi-vm", "siw", "ack-node"] {
            assert!(lines(degraded, &[Machine::recorded(name)]).is_empty(), "{name}");
        }
    }

    #[test]
    fn lanes_of_gpus_count_and_their_speed_does_not() {
        let with = |current| {
            Machine::recorded("dgx").change(|inventory| {
                inventory.gpus[2]
                    .pci
                    .links
                    .iter_mut()
                    .take(2)
                    .for_each(|link| link.current = current);
            })
        };
        let found = lines(degraded, &[with(rate(320, 8))]);
        assert!(
            found[0].starts_with("warn pcie.degraded a 0000:43:00.0: runs at 32.0 GT/s PCIe x8"),
            "{found:?}"
        );
        assert!(lines(degraded, &[with(rate(25, 16))]).is_empty());
    }

    #[test]
    fn the_limit_is_that_of_real_links() {
        let found = lines(bottleneck, &[Machine::recorded("connectx3")]);
        let expected = "note pcie.bottleneck a 0000:c3:00.0: port 56 Gb/s, PCIe 31.504 Gb/s (8.0 GT/s PCIe x4 at \
                        0000:00:02.5) — expect at most about 28.8 Gb/s";
        assert_eq!(found, [expected]);
        for name in ["esxi-vm", "sriov", "dgx", "bond", "siw", "macvlan-pod"] {
            assert!(lines(bottleneck, &[Machine::recorded(name)]).is_empty(), "{name}");
        }
        let esxi = crate::testing::inventory("esxi-vm");
        assert!(is_passed_through(esxi.rdma[0].pci.as_ref().unwrap()));
        let dgx = crate::testing::inventory("dgx");
        assert!(!is_passed_through(dgx.rdma[0].pci.as_ref().unwrap()));
    }

    #[test]
    fn a_far_nic_is_named_with_the_near_one() {
        let found = lines(gpus_far_from_nics, &[Machine::recorded("ack-node")]);
        let expected = "warn numa.far a rocep156s0/1: 4 GPUs of NUMA node 1, and usable NICs only elsewhere: rocep26s0 \
                        — their data crosses the link between processors, and NCCL leaves GPUDirect out there unless told";
        assert_eq!(found, [expected]);
        let absent = Machine::recorded("ack-node")
            .change(|inventory| inventory.rdma.retain(|device| device.name == "rocep26s0"));
        assert!(lines(gpus_far_from_nics, &[absent])[0].starts_with("note numa.far a: 4 GPUs"));
        for name in ["dgx", "esxi-vm", "connectx3", "amd-apu"] {
            assert!(lines(gpus_far_from_nics, &[Machine::recorded(name)]).is_empty(), "{name}");
        }
    }

    #[test]
    fn links_that_may_sleep_are_noted() {
        let with = |name: &str, word: &str| {
            Machine::recorded(name)
                .diagnosed(|d| d.kernel.command_line = vec!["quiet".into(), word.into()])
        };
        let found = lines(power, &[with("connectx3", "pcie_aspm=force")]);
        assert!(
            found[0].starts_with("note pcie.power a: the kernel was started with pcie_aspm=force"),
            "{found:?}"
        );
        for (name, word) in
            [("connectx3", "pcie_aspm=off"), ("connectx3", "ro"), ("siw", "pcie_aspm=force")]
        {
            assert!(lines(power, &[with(name, word)]).is_empty(), "{name} {word}");
        }
    }
}
