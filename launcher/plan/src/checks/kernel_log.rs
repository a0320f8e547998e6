//! Complaints in the kernel's log.

use super::{Check, Cluster, ClusterHost, Needs, quoted};
use crate::findings::{CheckId, Finding, Severity, id};
use rlaunch_bootstrap::inventory::diagnostics::LogLine;
use rlaunch_text::text;
use std::collections::BTreeMap;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::LOG_XID,
        about: "NVIDIA's driver has reported no errors (Xid) in the last hour",
        needs: Needs::Diagnostics,
        examine: xid,
        causes: &[],
        explanation: "\
Symptoms: `CUDA error: an illegal memory access was encountered`, `uncorrectable ECC error encountered`, \
`GPU is lost`, ranks that hang in a kernel; nvidia-smi shows ERR!.

The driver writes a line `NVRM: Xid (PCI:ADDRESS): NUMBER` into the kernel's log for each error of a GPU. Some \
numbers mean that the hardware is at fault: memory errors (48, 63, 64, 94, 95), NVLink (74), a GPU that left the bus \
(79), or its firmware (119, 120). Others (13, 31, 43, 45) usually mean that a program did something wrong or was \
stopped, and are notes.

After a hardware error, stop all programs on the GPU and reset it (nvidia-smi --gpu-reset) or reboot the host. If it \
comes back, have the GPU exchanged.",
    },
    Check {
        id: id::LOG_AER,
        about: "the kernel has reported no PCIe errors in the last hour",
        needs: Needs::Diagnostics,
        examine: aer,
        causes: &[],
        explanation: "\
Symptoms: devices that vanish, DMA errors, transfers that are slower than on the other hosts.

PCIe devices report damaged packets by Advanced Error Reporting, and the kernel logs them. Corrected errors were \
repaired by sending again: a few are harmless, many cost speed, so they are a note. Uncorrected errors lost data, and \
the driver of the device may have stopped.

Reseat the card or its riser, try another slot, and update the firmware of board and card. `lspci -vv -s ADDRESS` \
shows the link.",
    },
    Check {
        id: id::LOG_NIC,
        about: "drivers of network cards have reported no failures in the last hour",
        needs: Needs::Diagnostics,
        examine: nic,
        causes: &[id::LINK_DOWN, id::DEV_ABSENT, id::DEV_DROPPED],
        explanation: "\
Symptoms: all queue pairs of a host fail at once (status 5, IBV_WC_WR_FLUSH_ERR, or IBV_EVENT_DEVICE_FATAL); the \
interface is gone or silent.

The driver watches the firmware of its card. `device's health compromised`, `assert_var`, `internal error` and \
`fatal` mean that the firmware has stopped; the driver may have reset the card. A transmit queue that timed out \
means that the card took no packets for seconds.

Reboot the host or reset the card (mlxfwreset), update its firmware, and check its temperature. If it comes back, \
have the card exchanged.",
    },
    Check {
        id: id::LOG_LINK,
        about: "no network link has gone down repeatedly in the last hour",
        needs: Needs::Diagnostics,
        examine: link,
        causes: &[id::LINK_FLAPS],
        explanation: "\
Symptoms: `transport retry counter exceeded` at odd times, TCP connections that stall for seconds, a job that fails \
after hours.

The driver logs each time when a link loses its carrier. Once is normal when a host boots or a cable is moved. \
rlaunch counts the lines of the last hour for each interface and reports two or more.

Exchange cable and transceiver one after the other, then the switch port. `ethtool -m IF` shows the optical power.",
    },
    Check {
        id: id::LOG_OOM,
        about: "the kernel has killed no process for lack of memory in the last hour",
        needs: Needs::Diagnostics,
        examine: out_of_memory,
        causes: &[],
        explanation: "\
Symptoms: a rank ends by signal 9 although no user has killed it; a DataLoader worker is \
`killed by signal: Killed`.

When memory runs out, on the host or in a control group, the kernel kills the process that gives most of it back and \
logs its name. The finding names it. The memory may have been used by another job.

Use fewer ranks or DataLoader workers on the host, smaller batches, or a larger limit of the control group (see \
lim.memory).",
    },
];

/// Xids of faulty hardware: number, meaning, and whether the GPU can no longer be used.
const HARDWARE_XIDS: &[(u32, &str, bool)] = &[
    (48, "double-bit memory error", true),
    (63, "memory row was remapped", false),
    (64, "remapping a memory row failed", true),
    (74, "NVLink error", true),
    (79, "GPU has fallen off the bus", true),
    (94, "contained memory error", false),
    (95, "uncontained memory error", true),
    (119, "GPU firmware does not answer", true),
    (120, "GPU firmware failed", true),
];
/// Xids of faulty or stopped programs: number and meaning.
const PROGRAM_XIDS: &[(u32, &str)] = &[
    (13, "exception in a program"),
    (31, "illegal memory access of a program"),
    (43, "a program was stopped after an error"),
    (45, "a program was ended"),
];
/// Texts of NIC drivers about a device that has failed.
const NIC_FAILURES: &[&str] =
    &["health compromised", "assert_var", "internal error detected", "fatal error", "fw fatal"];
/// Texts of NIC drivers about trouble after which the device may go on.
const NIC_TROUBLE: &[&str] = &["transmit queue", "high temperature", "tx timeout"];
/// Drivers of NICs. The names of their modules begin with these words and may go on after `_`.
const NIC_DRIVERS: &[&str] =
    &["mlx4", "mlx5", "irdma", "erdma", "bnxt", "ice", "i40e", "ixgbe", "igb", "qede", "hfi1"];
/// Texts about a link that has lost its carrier.
const LINK_DOWN: &[&str] = &["link down", "link is down", "link status definitely down"];

/// Events of one kind on one device.
#[derive(Debug, Default)]
struct Events {
    count: usize,
    /// Age of the newest line, in seconds.
    newest: u32,
}

impl Events {
    fn add(&mut self, line: &LogLine) {
        self.newest = if self.count == 0 { line.age } else { self.newest.min(line.age) };
        self.count += 1;
    }

    /// Writes how often and when, as in `3 times, the last one 5 min ago`.
    fn words(&self) -> String {
        let ago = match self.newest {
            age @ 0..60 => format!("{age} s ago"),
            age => format!("{} min ago", age / 60),
        };
        match self.count {
            1 => ago,
            count => format!("{}, the last one {ago}", text::count(count, "time")),
        }
    }
}

/// Groups lines of each host's log by what `kind` returns, and makes a finding of each group.
fn findings_by_kind<K: Ord>(
    cluster: &Cluster<'_>,
    kind: impl Fn(&ClusterHost<'_>, &str) -> Option<K>,
    finding: impl Fn(&str, &K, &Events) -> Option<Finding>,
) -> Vec<Finding> {
    let of_host = |host: &ClusterHost<'_>, log: &[LogLine]| {
        let mut events: BTreeMap<K, Events> = BTreeMap::new();
        for line in log {
            if let Some(kind) = kind(host, &line.text) {
                events.entry(kind).or_default().add(line);
            }
        }
        let found = events.iter().filter_map(|(kind, events)| finding(host.name, kind, events));
        found.collect::<Vec<_>>()
    };
    let logs =
        cluster.diagnosed().filter_map(|(host, state)| Some((host, state.kernel_log.as_ref()?)));
    logs.flat_map(|(host, log)| of_host(host, log)).collect()
}

fn xid(cluster: &Cluster<'_>) -> Vec<Finding> {
    findings_by_kind(
        cluster,
        |_, line| parse_xid(line),
        |host, (address, number), events| {
            let hardware = HARDWARE_XIDS.iter().find(|(known, ..)| known == number);
            let program = PROGRAM_XIDS.iter().find(|(known, _)| known == number);
            let (severity, meaning, matters) = match (hardware, program) {
                (Some((_, meaning, true)), _) => {
                    (Severity::Error, *meaning, "this GPU cannot be trusted")
                }
                (Some((_, meaning, false)), _) => {
                    (Severity::Warning, *meaning, "this GPU needs a reset before it is used again")
                }
                (None, Some((_, meaning))) => {
                    (Severity::Note, *meaning, "usually a program's fault")
                }
                (None, None) => (Severity::Note, "see NVIDIA's list of Xids", ""),
            };
            let seen = format!("Xid {number} ({meaning}), {}", events.words());
            let found = Finding::new(id::LOG_XID, severity, host, seen, matters).device(address);
            Some(match hardware {
                Some(_) => found.run(format!("sudo nvidia-smi --gpu-reset -i {}", quoted(address))).advise(
                    "if that fails or the error comes back, reboot; then have the GPU exchanged",
                ),
                None => found,
            })
        },
    )
}

/// Returns the PCI address and the number of a line such as
/// `NVRM: Xid (PCI:0000:3b:00): 79, pid=1`. Lines of NVSwitches, such as
/// `nvidia-nvswitch0: SXid (PCI:…`, are left out.
fn parse_xid(line: &str) -> Option<(String, u32)> {
    let (_, rest) = line.split_once(" Xid (")?;
    let (device, rest) = rest.split_once("):")?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    let address = device.trim_start_matches("PCI:");
    let function = if address.contains('.') { "" } else { ".0" };
    Some((format!("{address}{function}"), digits.parse().ok()?))
}

fn aer(cluster: &Cluster<'_>) -> Vec<Finding> {
    findings_by_kind(
        cluster,
        |_, line| parse_aer(line),
        |host, (is_corrected, address), events| {
            let (severity, kind, matters) = if *is_corrected {
                (Severity::Note, "corrected", "they were repaired; many of them cost speed")
            } else {
                (Severity::Error, "uncorrected", "data was lost, or the device has stopped")
            };
            let seen = format!("{kind} PCIe errors, {}", events.words());
            let found = Finding::new(id::LOG_AER, severity, host, seen, matters).device(address);
            let address = quoted(address);
            Some(found.run(format!("sudo lspci -vv -s {address} | grep -E 'LnkSta:|UESta|CESta'")))
        },
    )
}

/// Returns whether the error was corrected, and the device that reported it. The lines of a port that only
/// passes the report on name the device at their end.
fn parse_aer(line: &str) -> Option<(bool, String)> {
    let lower = line.to_ascii_lowercase();
    let is_aer =
        lower.contains("pcie bus error") || (lower.contains("aer:") && lower.contains("received"));
    let is_corrected = lower.contains("corrected") && !lower.contains("uncorrect");
    let is_known = is_corrected || lower.contains("uncorrect");
    let address = lower.split([' ', ',']).filter_map(pci_address).next_back()?;
    (is_aer && is_known).then_some((is_corrected, address))
}

/// Returns the PCI address in a word such as `0000:3b:00.0:`.
fn pci_address(word: &str) -> Option<String> {
    let word = word.trim_matches(|c: char| !c.is_ascii_hexdigit());
    let (bus, function) = word.rsplit_once('.')?;
    let parts: Vec<&str> = bus.split(':').collect();
    let is_hex = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
    let is_address = parts.len() == 3 && parts.iter().all(is_hex) && is_hex(&function);
    is_address.then(|| word.to_owned())
}

fn nic(cluster: &Cluster<'_>) -> Vec<Finding> {
    findings_by_kind(cluster, nic_failure, |host, (severity, device, text), events| {
        let matters = match severity {
            Severity::Error => "the card has stopped or was reset",
            _ => "packets are lost or late",
        };
        let seen = format!("{text}, {}", events.words());
        let found = Finding::new(id::LOG_NIC, *severity, host, seen, matters);
        let found = if device.is_empty() { found } else { found.device(device) };
        let drivers = "mlx|irdma|erdma|bnxt|ice 0|i40e|ixgbe|igb|qede|hfi1|NETDEV";
        Some(found.run(format!("sudo dmesg -T | grep -E '{drivers}' | tail -n 40")))
    })
}

/// Returns the severity, the device and the text in the driver's words of a line about a failed NIC.
fn nic_failure(host: &ClusterHost<'_>, line: &str) -> Option<(Severity, String, &'static str)> {
    let lower = line.to_ascii_lowercase();
    let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    let is_nic = words.any(|word| NIC_DRIVERS.contains(&word));
    let in_list = |list: &[&'static str]| list.iter().copied().find(|text| lower.contains(text));
    let (severity, text) = match (in_list(NIC_FAILURES), in_list(NIC_TROUBLE)) {
        (Some(text), _) if is_nic && !lower.contains("non-fatal") => (Severity::Error, text),
        (_, Some("transmit queue")) if lower.contains("netdev watchdog") => {
            (Severity::Warning, "a transmit queue timed out")
        }
        (_, Some(text)) if is_nic && text != "transmit queue" => (Severity::Warning, text),
        _ => return None,
    };
    // PCIe errors of a NIC have a check of their own.
    if parse_aer(line).is_some() {
        return None;
    }
    let address = lower.split([' ', ',']).find_map(pci_address);
    let device = address.or_else(|| named_interface(host, line)).unwrap_or_default();
    Some((severity, device, text))
}

fn link(cluster: &Cluster<'_>) -> Vec<Finding> {
    let downs = |host: &ClusterHost<'_>, line: &str| {
        let lower = line.to_ascii_lowercase();
        let is_down = LINK_DOWN.iter().any(|text| lower.contains(text));
        if is_down { named_interface(host, line) } else { None }
    };
    findings_by_kind(cluster, downs, |host, interface, events| {
        let seen = format!("its link went down {}", events.words());
        let matters = "packets are lost until it is up again, and RDMA gives up";
        let found = Finding::warning(id::LOG_LINK, host, seen, matters).device(interface);
        let cure = "exchange cable and transceiver, then try another port of the switch";
        (events.count > 1).then(|| found.advise(cure))
    })
}

/// Returns the interface of the host that a line names.
fn named_interface(host: &ClusterHost<'_>, line: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let mut words = line.split(|c: char| !is_part(c));
    let netdevs = &host.inventory.netdevs;
    words.find(|word| netdevs.iter().any(|netdev| netdev.name == *word)).map(str::to_owned)
}

fn out_of_memory(cluster: &Cluster<'_>) -> Vec<Finding> {
    let id: CheckId = id::LOG_OOM;
    findings_by_kind(
        cluster,
        |_, line| parse_killed(line),
        |host, name, events| {
            let seen = format!("the kernel killed {name} for lack of memory, {}", events.words());
            let found =
                Finding::note(id, host, seen, "ranks on this host may run out of memory, too");
            Some(found.run("sudo dmesg -T | grep -i -A3 'out of memory'"))
        },
    )
}

/// Returns the name of the process in a line such as `Out of memory: Killed process 71 (python3)`.
fn parse_killed(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("illed process ")?;
    let (_, rest) = rest.split_once('(')?;
    Some(rest.split_once(')')?.0.to_owned())
}

#[cfg(test)]
mod tests;
