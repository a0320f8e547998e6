//! Clocks of hosts.

use super::{Cluster, ClusterHost, Finding, id};

/// Offset that matters, in microseconds.
const LIMIT: u64 = 1_000_000;

/// Compares the clock of each host with the median of all. With one or two hosts, the launcher's clock takes
/// part as well.
pub(super) fn examine(cluster: &Cluster<'_>) -> Vec<Finding> {
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
        let found = match is_alone {
            true => Finding::note(id::CLOCK_OFFSET, host.name, seen, matters),
            false => Finding::warning(id::CLOCK_OFFSET, host.name, seen, matters),
        };
        (sure > LIMIT).then(|| found.run("sudo timedatectl set-ntp true"))
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
