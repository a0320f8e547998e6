//! Paths on which probes found something.

use crate::checks::cluster::{Probe, ProbeKind, ProbeOutcome, ProofFailure};
use crate::checks::{self, Cluster, Needs, quoted};
use crate::findings::{CheckId, Finding, Severity, id};
use rlaunch_bootstrap::rank_table::Transport;

/// Part of the limit, or of the median of other paths, below which a path is slow, in percent.
const ENOUGH: u64 = 90;

/// Tells whether a probe was about an RDMA path.
fn is_of_path(probe: &&Probe) -> bool {
    matches!(probe.kind, ProbeKind::PathMtu(_) | ProbeKind::Rdma)
}

/// Keeps one probe of each link, in whichever direction, and leaves out datagrams on links where RDMA works.
fn one_per_link<'a>(cluster: &Cluster<'_>, failed: &[&'a Probe], all: &[Probe]) -> Vec<&'a Probe> {
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
        // A proof that failed has one probe, from whichever end.
        let is_one_way = probe.kind == ProbeKind::Rdma;
        let is_known = kept.iter().any(|known| {
            is_of_link(probe, known) || (!is_one_way && are_two_directions(cluster, known, probe))
        });
        if !is_known && (probe.kind == ProbeKind::Rdma || !works(probe)) {
            kept.push(probe);
        }
    }
    kept
}

/// Tells whether two probes are the two directions of a link. Hosts may have several links.
fn are_two_directions(cluster: &Cluster<'_>, one: &Probe, other: &Probe) -> bool {
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
fn path_finding(
    cluster: &Cluster<'_>,
    probe: &Probe,
    severity: Severity,
    id: CheckId,
    seen: &str,
    matters: &str,
) -> Option<Finding> {
    let (host, peer) = (cluster.hosts.get(probe.from)?, cluster.hosts.get(probe.to)?);
    let found = Finding::new(id, severity, host.name, seen, matters).peer(peer.name);
    Some(match &probe.netdev {
        Some(netdev) => found.device(netdev),
        None => found,
    })
}

/// Returns the failure of a proof that states one of these findings.
fn failure_of_proof(probe: &Probe, is_wanted: impl Fn(CheckId) -> bool) -> Option<&ProofFailure> {
    match &probe.outcome {
        ProbeOutcome::Unproved(failure) if is_wanted(failure.finding) => Some(failure),
        _ => None,
    }
}

/// Returns how the port carries data from which a probe was made.
fn transport(cluster: &Cluster<'_>, probe: &Probe) -> Option<Transport> {
    let netdev = probe.netdev.as_deref()?;
    let mut ports = cluster.plan?.ports.get(probe.from)?.iter();
    let port = ports.find(|port| {
        let name = format!("{}/{}", port.nic.device, port.nic.port);
        port.nic.netdev.as_deref() == Some(netdev) || name == netdev
    });
    port.map(|port| port.nic.transport)
}

pub(super) fn unreachable(cluster: &Cluster<'_>) -> Vec<Finding> {
    let all = cluster.probes.unwrap_or_default();
    let cause = |probe: &Probe| match &probe.outcome {
        ProbeOutcome::Failed(cause) => Some(cause.clone()),
        _ => Some(failure_of_proof(probe, |id| id == id::MESH_ROUTE)?.cause.clone()),
    };
    let failed = all.iter().filter(is_of_path);
    let failed: Vec<&Probe> = failed.filter(|probe| cause(probe).is_some()).collect();
    let finding = |probe: &Probe| {
        let cause = cause(probe)?;
        // The kernel's text of EPERM, with which sendto(2) reports that a rule has dropped the packet.
        let is_refused = cause.contains("Operation not permitted");
        let seen = match probe.address {
            Some(address) => format!("{address}: {cause}"),
            None => cause,
        };
        let (severity, matters) = if is_refused {
            // A rule for packets that leave may refuse the probe and pass RoCE, above all that of hardware.
            (Severity::Warning, "a packet filter refuses datagrams there, and may refuse RDMA")
        } else {
            (Severity::Error, "RDMA cannot connect there")
        };
        let found = path_finding(cluster, probe, severity, id::MESH_ROUTE, &seen, matters)?;
        if is_refused {
            return Some(found.run("sudo nft list ruleset || sudo iptables -S OUTPUT"));
        }
        Some(match (&probe.netdev, probe.address) {
            (Some(netdev), Some(address)) => found
                .run(format!("ip route get {address} oif {}", quoted(netdev)))
                .run(format!("ip neigh show {address}")),
            _ => found.advise("rlaunch topo shows what each port can reach"),
        })
    };
    one_per_link(cluster, &failed, all).into_iter().filter_map(finding).collect()
}

pub(super) fn silent(cluster: &Cluster<'_>) -> Vec<Finding> {
    let all = cluster.probes.unwrap_or_default();
    let is_silent = |probe: &Probe| {
        probe.outcome == ProbeOutcome::Silent
            || failure_of_proof(probe, |id| id == id::MESH_SILENT).is_some()
    };
    let silent = all.iter().filter(is_of_path);
    let silent: Vec<&Probe> = silent.filter(|probe| is_silent(probe)).collect();
    let finding = |probe: &Probe| {
        let (severity, seen) = match failure_of_proof(probe, |_| true) {
            Some(failure) => (Severity::Error, format!("no answer to RDMA ({})", failure.cause)),
            // A packet filter may drop the probe and pass RoCE.
            None => {
                (Severity::Warning, "no answer to datagrams between RDMA interfaces".to_owned())
            }
        };
        let matters = "the ports should reach each other, and connections time out";
        let found = path_finding(cluster, probe, severity, id::MESH_SILENT, &seen, matters)?;
        Some(with_search(cluster, probe, found))
    };
    one_per_link(cluster, &silent, all).into_iter().filter_map(finding).collect()
}

/// Adds how to find out where packets get lost.
fn with_search(cluster: &Cluster<'_>, probe: &Probe, found: Finding) -> Finding {
    let transport = transport(cluster, probe);
    // On InfiniBand, ping goes by IPoIB, which may fail alone.
    if transport == Some(Transport::Infiniband) {
        return found
            .advise("ibping and ibtracert between the two ports (ibaddr tells their LIDs)")
            .advise("do both ports have a partition key in common? see pkeys/ below each port in /sys/class/infiniband");
    }
    let found = match (&probe.netdev, probe.address) {
        (Some(netdev), Some(address)) => {
            found.run(format!("ping -c 3 -I {} {address}", quoted(netdev)))
        }
        _ => found,
    };
    found.advise(match transport {
        Some(Transport::Roce) => {
            "when that works: does a packet filter drop UDP port 4791 on these interfaces?"
        }
        Some(Transport::Iwarp) => {
            "when that works: does a packet filter drop TCP on these interfaces?"
        }
        _ => "when that works: does a packet filter drop packets on these interfaces?",
    })
}

/// Finds proofs that failed for another reason than a missing answer or route. Each finding has the id of its reason.
pub(super) fn failed(cluster: &Cluster<'_>) -> Vec<Finding> {
    let found =
        failures(cluster, |id| ![id::MESH_ROUTE, id::MESH_SILENT, id::DEV_QP].contains(&id));
    // A finding that another check has made already is the cause.
    let named = found.into_iter().map(|found| {
        if is_known(cluster, &found) { Finding { id: id::MESH_PROOF, ..found } } else { found }
    });
    named.collect()
}

/// Tells whether the check of a finding's id finds something on the same host without probes.
fn is_known(cluster: &Cluster<'_>, found: &Finding) -> bool {
    let check = checks::find(found.id.as_str());
    let check = check.filter(|c| matches!(c.needs, Needs::Inventories | Needs::Diagnostics));
    let own = check.into_iter().flat_map(|check| (check.examine)(cluster));
    own.into_iter().any(|own| found.hosts.iter().any(|host| own.hosts.contains(host)))
}

/// Finds proofs that failed for one of these reasons.
pub(in crate::checks) fn failures(
    cluster: &Cluster<'_>,
    is_wanted: impl Fn(CheckId) -> bool,
) -> Vec<Finding> {
    let all = cluster.probes.unwrap_or_default();
    let failed: Vec<&Probe> =
        all.iter().filter(|probe| failure_of_proof(probe, &is_wanted).is_some()).collect();
    let finding = |probe: &Probe| {
        let failure = failure_of_proof(probe, &is_wanted)?;
        let is_tried = !failure.cause.contains("not tried");
        let (severity, matters) = if is_tried {
            (Severity::Error, "RDMA cannot be used there")
        } else {
            (Severity::Warning, "whether RDMA works there is not known")
        };
        let seen = format!("the test of RDMA failed: {}", failure.cause);
        let found = if failure.is_of_host {
            // It is the same for all peers.
            let host = cluster.hosts.get(probe.from)?.name;
            Finding::new(failure.finding, severity, host, seen, matters)
        } else {
            path_finding(cluster, probe, severity, failure.finding, &seen, matters)?
        };
        Some(failure.hint.iter().fold(found, Finding::advise))
    };
    one_per_link(cluster, &failed, all).into_iter().filter_map(finding).collect()
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
        path_finding(cluster, probe, Severity::Warning, id::MESH_BANDWIDTH, &seen, matters)
    };
    measured.iter().filter_map(finding).collect()
}
