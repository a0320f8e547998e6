//! Processors, NUMA nodes, and the limits that control groups set on them.

use super::Root;
use super::system::{control_group, status};
use rlaunch_bootstrap::inventory::{CpuSet, Cpus, NumaNode};
use std::collections::BTreeSet;

pub(super) fn read(root: &Root) -> Cpus {
    let online: Option<CpuSet> = root.value("/sys/devices/system/cpu/online");
    // Includes both cpusets and affinity.
    let allowed = status(root, "Cpus_allowed_list").and_then(|list| list.parse().ok());
    let online = online.or_else(|| allowed.clone()).unwrap_or_default();
    let allowed = allowed.unwrap_or_else(|| online.clone());
    Cpus { allowed, online, cores: Vec::new(), quota: quota(root) }
}

/// Returns the hardware threads of each core. Reads one file for each core, and returns `None` if
/// such a file is missing.
pub(super) fn cores(root: &Root, online: &CpuSet) -> Option<Vec<CpuSet>> {
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
fn quota(root: &Root) -> Option<u32> {
    let v2 = control_group(root, "", |directory| {
        let text = root.text(&format!("{directory}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        ratio(quota.parse().ok()?, period.parse().ok()?)
    });
    let v1 = control_group(root, "cpu", |directory| {
        let value = |name: &str| root.value::<i64>(&format!("{directory}/cpu.cfs_{name}_us"));
        ratio(value("quota")?, value("period")?)
    });
    v2.into_iter().chain(v1).min()
}

/// Returns `quota / period` in thousandths; `None` for a negative quota, which means no limit.
fn ratio(quota: i64, period: i64) -> Option<u32> {
    let thousandths = quota.checked_mul(1000)?.checked_div(period)?;
    u32::try_from(thousandths).ok().filter(|&thousandths| thousandths > 0)
}

const NODES: &str = "/sys/devices/system/node";

/// Reads NUMA nodes and their processors.
pub(super) fn numa_nodes(root: &Root) -> Vec<NumaNode> {
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
    nodes.sort_by_key(|node| node.number);
    nodes
}

/// Adds a NUMA node's memory size and its distances to the other nodes.
pub(super) fn with_memory(root: &Root, node: NumaNode) -> NumaNode {
    let text =
        |name: &str| root.text(&format!("{NODES}/node{}/{name}", node.number)).unwrap_or_default();
    let distances = text("distance");
    let distances = distances.split_whitespace().filter_map(|d| d.parse().ok()).collect();
    NumaNode { memory: memory(&text("meminfo")), distances, ..node }
}

/// Parses `Node 0 MemTotal:  65771234 kB` and returns the size in bytes.
fn memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("MemTotal:"))?;
    let kib: u64 = line.1.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
