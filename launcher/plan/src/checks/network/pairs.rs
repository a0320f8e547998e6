//! Pairs of hosts between which TCP does not work.

use super::{Cluster, ClusterHost, Finding, id};
use crate::checks::cluster::{Probe, ProbeKind, ProbeOutcome};
use crate::checks::quoted;
use crate::findings::Step;
use crate::selection::Subnet;
use rlaunch_bootstrap::inventory::net::Netdev;
use rlaunch_text::text;
use std::net::IpAddr;

/// MTU of interfaces that nobody has configured.
const COMMON_MTU: u32 = 1500;

/// Way in which a connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ConnectFailure {
    Silent,
    /// Short messages arrive, and packets as large as the MTU do not.
    OnlyShort,
    Refused,
    NoRoute,
    /// Another error, with its text.
    Other(String),
}

/// Failed probe.
#[derive(Clone, Debug)]
struct BrokenPair {
    from: usize,
    to: usize,
    address: Option<IpAddr>,
    failure: ConnectFailure,
}

/// Pairs that one finding reports: those to one host, or those from one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    To(usize),
    From(usize),
}

/// Makes as few findings as possible: each is about the host that most of the remaining pairs have in common.
pub(super) fn examine(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut left: Vec<BrokenPair> =
        cluster.probes.unwrap_or_default().iter().filter_map(broken_pair).collect();
    let mut findings = Vec::new();
    while let Some((side, failure)) = largest_group(&left, cluster.hosts.len()) {
        let (group, rest): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|pair| side.has(pair) && pair.failure == failure);
        findings.push(group_finding(cluster, side, &failure, &group));
        left = rest;
    }
    findings
}

/// Returns the pair of a TCP probe that failed.
fn broken_pair(probe: &Probe) -> Option<BrokenPair> {
    if probe.kind != ProbeKind::Tcp {
        return None;
    }
    let failure = match &probe.outcome {
        ProbeOutcome::Worked(_) | ProbeOutcome::Unproved(_) => return None,
        ProbeOutcome::Silent => ConnectFailure::Silent,
        ProbeOutcome::OnlyShort => ConnectFailure::OnlyShort,
        ProbeOutcome::Failed(cause) => ConnectFailure::from_cause(cause),
    };
    Some(BrokenPair { from: probe.from, to: probe.to, address: probe.address, failure })
}

impl ConnectFailure {
    /// Classifies an error by its text, which is that of the kernel's error code: agents report no code.
    fn from_cause(cause: &str) -> ConnectFailure {
        let lower = cause.to_ascii_lowercase();
        if lower.contains("timed out") {
            ConnectFailure::Silent
        } else if lower.contains("refused") {
            ConnectFailure::Refused
        } else if lower.contains("no route") || lower.contains("unreachable") {
            ConnectFailure::NoRoute
        } else {
            ConnectFailure::Other(cause.to_owned())
        }
    }

    fn words(&self) -> &str {
        match self {
            ConnectFailure::Silent => "no answer",
            ConnectFailure::OnlyShort => "short messages arrive, and no full packets",
            ConnectFailure::Refused => "connection refused",
            ConnectFailure::NoRoute => "no route to host",
            ConnectFailure::Other(cause) => cause,
        }
    }
}

impl Side {
    fn has(self, pair: &BrokenPair) -> bool {
        match self {
            Side::To(host) => pair.to == host,
            Side::From(host) => pair.from == host,
        }
    }
}

/// Returns the side and the failure that most pairs share. Among equals, a host that is not reached
/// comes before one that reaches no others.
fn largest_group(pairs: &[BrokenPair], hosts: usize) -> Option<(Side, ConnectFailure)> {
    let sides = (0..hosts).map(Side::To).chain((0..hosts).map(Side::From));
    let mut largest: Option<(usize, Side, ConnectFailure)> = None;
    for side in sides {
        for failure in pairs.iter().filter(|pair| side.has(pair)).map(|pair| &pair.failure) {
            let size = pairs.iter().filter(|p| side.has(p) && p.failure == *failure).count();
            if largest.as_ref().is_none_or(|(most, ..)| size > *most) {
                largest = Some((size, side, failure.clone()));
            }
        }
    }
    largest.map(|(_, side, failure)| (side, failure))
}

fn group_finding(
    cluster: &Cluster<'_>,
    side: Side,
    failure: &ConnectFailure,
    pairs: &[BrokenPair],
) -> Finding {
    let name = |host: usize| cluster.hosts.get(host).map_or("?", |host| host.name);
    let at = |pair: &BrokenPair| pair.address.map(|a| format!(" at {a}")).unwrap_or_default();
    let words = failure.words();
    let matters = "rlaunch's messages can take another way, and NCCL, Gloo and MPI hang or fail";
    let found = match (side, pairs) {
        (_, [pair]) => {
            let verb = match failure {
                ConnectFailure::OnlyShort => "cannot send much",
                _ => "cannot connect",
            };
            let seen = format!("{verb}{}: {words}", at(pair));
            Finding::error(id::NET_PAIR, name(pair.from), seen, matters).peer(name(pair.to))
        }
        (Side::To(host), pairs) => {
            let others: Vec<&str> = pairs.iter().map(|pair| name(pair.from)).collect();
            let place = pairs.first().map(at).unwrap_or_default();
            let seen = format!("cannot be reached{place} by {}: {words}", text::list(&others));
            Finding::error(id::NET_PAIR, name(host), seen, matters)
        }
        (Side::From(host), pairs) => {
            let others: Vec<&str> = pairs.iter().map(|pair| name(pair.to)).collect();
            let seen = format!("cannot reach {}: {words}", text::list(&others));
            Finding::error(id::NET_PAIR, name(host), seen, matters)
        }
    };
    let Some(first) = pairs.first() else { return found };
    let sender = cluster.hosts.get(first.from);
    let sends_by = sender.zip(first.address).and_then(|(host, to)| sending_interface(host, to));
    match failure {
        ConnectFailure::OnlyShort => with_sizes(found, name(first.from), first.address, sends_by),
        _ => with_search(found, failure, name(first.from), name(first.to), first.address),
    }
}

/// Returns the interface by which a host sends to `address`, as far as its own addresses tell.
fn sending_interface<'a>(host: &ClusterHost<'a>, address: IpAddr) -> Option<&'a Netdev> {
    let mut netdevs = host.inventory.netdevs.iter();
    let in_subnet = |netdev: &&Netdev| {
        netdev.addresses.iter().any(|(own, prefix)| Subnet::new(*own, *prefix).contains(address))
    };
    let has_its_own =
        |netdev: &&Netdev| netdev.addresses.iter().any(|(own, _)| Some(*own) == host.address);
    netdevs.clone().find(in_subnet).or_else(|| netdevs.find(has_its_own))
}

/// Adds lines that show and change the size of packets.
fn with_sizes(
    found: Finding,
    from: &str,
    address: Option<IpAddr>,
    sends_by: Option<&Netdev>,
) -> Finding {
    let mtu = sends_by.map_or(9000, |netdev| netdev.mtu);
    let run = |line: String| Step::RunOn(from.to_owned(), line);
    // What the headers of IP and ICMP leave for ping's data.
    let data = |address: IpAddr| mtu.saturating_sub(if address.is_ipv6() { 48 } else { 28 });
    let searches = address.into_iter().flat_map(|a| {
        let ping = format!("ping -c 3 -M do -s {} {a}  # for an MTU of {mtu}", data(a));
        [run(format!("ip route get {a}")), run(ping)]
    });
    let (advice, change) = match sends_by {
        // 50 bytes are the headers of VXLAN; IPv6 works with no less than 1280.
        Some(Netdev { name, .. }) if mtu <= COMMON_MTU => (
            format!(
                "what is between them, as a tunnel or VXLAN, carries less than the {mtu} bytes of {name}: let \
                 it carry them, or set a smaller MTU"
            ),
            Some(format!(
                "sudo ip link set {} mtu {}",
                quoted(name),
                mtu.saturating_sub(50).max(1280)
            )),
        ),
        _ => (
            "an interface has a larger MTU than what is between them carries: set both to 1500, or let \
             switches and tunnels carry it"
                .to_owned(),
            None,
        ),
    };
    searches.chain(change.map(run)).fold(found.advise(advice), Finding::step)
}

/// Adds lines that show where packets are lost.
fn with_search(
    found: Finding,
    failure: &ConnectFailure,
    from: &str,
    to: &str,
    address: Option<IpAddr>,
) -> Finding {
    let route = address.map(|a| Step::RunOn(from.to_owned(), format!("ip route get {a}")));
    let rules = Step::RunOn(
        to.to_owned(),
        "sudo nft list ruleset || sudo iptables -S  # what is dropped or rejected".to_owned(),
    );
    let owner = address.map(|a| Step::RunOn(to.to_owned(), format!("ip address show to {a}")));
    match failure {
        ConnectFailure::Silent => route.into_iter().fold(found.step(rules), Finding::step),
        ConnectFailure::Refused => owner.into_iter().fold(found.step(rules), Finding::step),
        ConnectFailure::NoRoute => route.into_iter().fold(found, Finding::step).step(rules),
        ConnectFailure::OnlyShort | ConnectFailure::Other(_) => {
            route.into_iter().fold(found, Finding::step)
        }
    }
}
