//! Pairs of hosts between which TCP does not work.

use super::{Cluster, Finding, id};
use crate::checks::cluster::{Probe, ProbeKind, ProbeOutcome};
use crate::findings::Step;
use rlaunch_console::text;
use std::net::IpAddr;

/// Way in which a connection failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    Silent,
    Refused,
    NoRoute,
    /// Another error, with its text.
    Other(String),
}

/// Failed probe.
#[derive(Clone, Debug)]
struct FailedPair {
    from: usize,
    to: usize,
    address: Option<IpAddr>,
    failure: Failure,
}

/// Pairs that one finding reports: those to one host, or those from one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    To(usize),
    From(usize),
}

/// Makes as few findings as possible: each is about the host that most of the remaining pairs have in common.
pub(super) fn examine(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut left: Vec<FailedPair> =
        cluster.probes.unwrap_or_default().iter().filter_map(failed).collect();
    let mut findings = Vec::new();
    while let Some((side, failure)) = largest_group(&left, cluster.hosts.len()) {
        let (group, rest): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|pair| side.has(pair) && pair.failure == failure);
        findings.push(finding(cluster, side, &failure, &group));
        left = rest;
    }
    findings
}

fn failed(probe: &Probe) -> Option<FailedPair> {
    let failure = match &probe.outcome {
        _ if probe.kind != ProbeKind::Tcp => return None,
        ProbeOutcome::Worked(_) => return None,
        ProbeOutcome::Silent | ProbeOutcome::OnlyShort => Failure::Silent,
        ProbeOutcome::Failed(cause) => Failure::from_cause(cause),
    };
    Some(FailedPair { from: probe.from, to: probe.to, address: probe.address, failure })
}

impl Failure {
    fn from_cause(cause: &str) -> Failure {
        let lower = cause.to_ascii_lowercase();
        match () {
            () if lower.contains("timed out") => Failure::Silent,
            () if lower.contains("refused") => Failure::Refused,
            () if lower.contains("no route") || lower.contains("unreachable") => Failure::NoRoute,
            () => Failure::Other(cause.to_owned()),
        }
    }

    fn words(&self) -> &str {
        match self {
            Failure::Silent => "no answer",
            Failure::Refused => "connection refused",
            Failure::NoRoute => "no route to host",
            Failure::Other(cause) => cause,
        }
    }
}

impl Side {
    fn has(self, pair: &FailedPair) -> bool {
        match self {
            Side::To(host) => pair.to == host,
            Side::From(host) => pair.from == host,
        }
    }
}

/// Returns the host and the failure that most pairs share; of equals, the one at which connections arrive.
fn largest_group(pairs: &[FailedPair], hosts: usize) -> Option<(Side, Failure)> {
    let sides = (0..hosts).map(Side::To).chain((0..hosts).map(Side::From));
    let mut largest: Option<(usize, Side, Failure)> = None;
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

fn finding(cluster: &Cluster<'_>, side: Side, failure: &Failure, pairs: &[FailedPair]) -> Finding {
    let name = |host: usize| cluster.hosts.get(host).map_or("?", |host| host.name);
    let at = |pair: &FailedPair| pair.address.map(|a| format!(" at {a}")).unwrap_or_default();
    let words = failure.words();
    let matters = "a job with both hangs or fails at its start";
    let found = match (side, pairs) {
        (_, [pair]) => {
            let seen = format!("cannot connect{}: {words}", at(pair));
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
    cure(found, failure, (name(first.from), name(first.to), first.address))
}

/// Adds lines that show where the packets end.
fn cure(
    found: Finding,
    failure: &Failure,
    (from, to, address): (&str, &str, Option<IpAddr>),
) -> Finding {
    let route = address.map(|a| Step::RunOn(from.to_owned(), format!("ip route get {a}")));
    let rules = Step::RunOn(
        to.to_owned(),
        "sudo nft list ruleset || sudo iptables -S  # what is dropped or rejected".to_owned(),
    );
    let owner = address.map(|a| Step::RunOn(to.to_owned(), format!("ip address show to {a}")));
    match failure {
        Failure::Silent => route.into_iter().fold(found.step(rules), Finding::step),
        Failure::Refused => owner.into_iter().fold(found.step(rules), Finding::step),
        Failure::NoRoute => route.into_iter().fold(found, Finding::step).step(rules),
        Failure::Other(_) => route.into_iter().fold(found, Finding::step),
    }
}
