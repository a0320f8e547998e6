//! Paths on which probes found something.

use crate::checks::Cluster;
use crate::checks::cluster::{Probe, ProbeKind, ProbeOutcome};
use crate::checks::quoted;
use crate::findings::{CheckId, Finding, Severity, id};

/// Part of the limit, or of the median of other paths, below which a path is slow, in percent.
const ENOUGH: u64 = 90;

/// Tells whether a probe was about an RDMA path.
fn is_of_path(probe: &&Probe) -> bool {
    matches!(probe.kind, ProbeKind::PathMtu(_) | ProbeKind::Rdma)
}

/// Keeps one probe of each link, in whichever direction, and leaves out datagrams on links where RDMA works.
fn links<'a>(cluster: &Cluster<'_>, failed: &[&'a Probe], all: &[Probe]) -> Vec<&'a Probe> {
    let is_of_link = |probe: &Probe, other: &Probe| {
        (other.from, other.to) == (probe.from, probe.to) && other.netdev == probe.netdev
    };
    let works = |probe: &Probe| {
        let mut queue_pairs = all.iter().filter(|other| other.kind == ProbeKind::Rdma);
        queue_pairs.any(|other| {
            is_of_link(probe, other) && matches!(other.outcome, ProbeOutcome::Worked(_))
        })
    };
    let mut sorted = failed.to_vec();
    // A queue pair says more than a datagram.
    sorted.sort_by_key(|probe| probe.kind != ProbeKind::Rdma);
    let mut kept: Vec<&Probe> = Vec::new();
    for probe in sorted {
        let is_known =
            kept.iter().any(|known| is_of_link(probe, known) || is_back(cluster, known, probe));
        if !is_known && (probe.kind == ProbeKind::Rdma || !works(probe)) {
            kept.push(probe);
        }
    }
    kept
}

/// Tells whether two probes are the two directions of a link. Hosts may have several links.
fn is_back(cluster: &Cluster<'_>, one: &Probe, other: &Probe) -> bool {
    // An address that is not known to the plan may be at any interface.
    let reaches = |probe: &Probe, back: &Probe| {
        let mut ports =
            cluster.plan.and_then(|plan| plan.ports.get(probe.to)).into_iter().flatten();
        let port = ports.find(|p| p.nic.address.is_some() && p.nic.address == probe.address);
        let netdev = port.and_then(|port| port.nic.netdev.as_ref());
        netdev.zip(back.netdev.as_ref()).is_none_or(|(reached, own)| reached == own)
    };
    let ends = (one.from, one.to) == (other.to, other.from);
    ends && reaches(one, other) && reaches(other, one)
}

/// Makes a finding of a path.
fn finding(
    cluster: &Cluster<'_>,
    probe: &Probe,
    severity: Severity,
    id: CheckId,
    (seen, matters): (&str, &str),
) -> Option<Finding> {
    let (host, peer) = (cluster.hosts.get(probe.from)?, cluster.hosts.get(probe.to)?);
    let found = Finding::new(id, severity, host.name, seen, matters).peer(peer.name);
    Some(match &probe.netdev {
        Some(netdev) => found.device(netdev),
        None => found,
    })
}

pub(super) fn unreachable(cluster: &Cluster<'_>) -> Vec<Finding> {
    let all = cluster.probes.unwrap_or_default();
    let failed = all.iter().filter(is_of_path);
    let failed: Vec<&Probe> =
        failed.filter(|probe| matches!(probe.outcome, ProbeOutcome::Failed(_))).collect();
    let finding = |probe: &Probe| {
        let ProbeOutcome::Failed(cause) = &probe.outcome else { return None };
        let seen = match probe.address {
            Some(address) => format!("{address}: {cause}"),
            None => cause.clone(),
        };
        let matters = "RDMA cannot connect there";
        let id = id::MESH_ROUTE;
        let found = finding(cluster, probe, Severity::Error, id, (&seen, matters))?;
        Some(match (&probe.netdev, probe.address) {
            (Some(netdev), Some(address)) => found
                .run(format!("ip route get {address} oif {}", quoted(netdev)))
                .run(format!("ip neigh show {address}")),
            _ => found.advise("rlaunch topo shows what each port can reach"),
        })
    };
    links(cluster, &failed, all).into_iter().filter_map(finding).collect()
}

pub(super) fn silent(cluster: &Cluster<'_>) -> Vec<Finding> {
    let all = cluster.probes.unwrap_or_default();
    let silent = all.iter().filter(is_of_path);
    let silent: Vec<&Probe> =
        silent.filter(|probe| probe.outcome == ProbeOutcome::Silent).collect();
    let finding = |probe: &Probe| {
        let (severity, seen) = match probe.kind {
            ProbeKind::Rdma => (Severity::Error, "no answer to RDMA"),
            // A packet filter may drop the probe and pass RoCE.
            _ => (Severity::Warning, "no answer to datagrams between RDMA interfaces"),
        };
        let matters = "the ports should reach each other, and connections time out";
        let found = finding(cluster, probe, severity, id::MESH_SILENT, (seen, matters))?;
        let found = match (&probe.netdev, probe.address) {
            (Some(netdev), Some(address)) => {
                found.run(format!("ping -c 3 -I {} {address}", quoted(netdev)))
            }
            _ => found,
        };
        Some(found.advise(
            "when that works: does a packet filter drop UDP port 4791 or TCP on these interfaces?",
        ))
    };
    links(cluster, &silent, all).into_iter().filter_map(finding).collect()
}

pub(super) fn slow(cluster: &Cluster<'_>) -> Vec<Finding> {
    let all = cluster.probes.unwrap_or_default().iter();
    let measured: Vec<(&Probe, Option<u32>, u64)> = all
        .filter_map(|probe| match (&probe.kind, &probe.outcome) {
            (ProbeKind::Bandwidth { limit }, ProbeOutcome::Worked(rate)) => {
                Some((probe, *limit, *rate))
            }
            _ => None,
        })
        .collect();
    let finding = |&(probe, limit, rate): &(&Probe, Option<u32>, u64)| {
        // Only paths with the same limit are comparable.
        let mut peers: Vec<u64> = measured
            .iter()
            .filter(|(_, other, _)| *other == limit)
            .map(|(.., rate)| *rate)
            .collect();
        peers.sort_unstable();
        let median = peers.get(peers.len() / 2).copied().unwrap_or(rate);
        let is_below = |whole: u64| rate * 100 < whole * ENOUGH;
        let gigabits = |megabits: u64| format!("{}.{}", megabits / 1000, megabits % 1000 / 100);
        let seen = match limit.map(u64::from) {
            Some(limit) if is_below(limit) => {
                format!("{} of {} Gb/s", gigabits(rate), gigabits(limit))
            }
            _ if peers.len() > 2 && is_below(median) => {
                format!("{} Gb/s, others {}", gigabits(rate), gigabits(median))
            }
            _ => return None,
        };
        let matters = "collectives are as slow as their slowest path";
        finding(cluster, probe, Severity::Warning, id::MESH_BANDWIDTH, (&seen, matters))
    };
    measured.iter().filter_map(finding).collect()
}
