//! Folding: findings that are consequences of other findings are shown below them.

use super::{Check, find};
use crate::findings::{CheckId, Finding};
use std::collections::BTreeSet;

/// Finding, with those that it causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoldedFinding {
    pub(crate) finding: Finding,
    pub(crate) consequences: Vec<Finding>,
}

/// Folds findings into their causes and sorts what is left by severity, errors first. Findings of one severity
/// stay in the order in which they are given, which is that of the catalogue.
pub(crate) fn fold(findings: Vec<Finding>) -> Vec<FoldedFinding> {
    fold_by(findings, |id| find(id.as_str()).map_or(&[], |check: &Check| check.causes))
}

/// Folds findings; `causes` returns what a fault causes directly.
fn fold_by(
    findings: Vec<Finding>,
    causes: impl Fn(CheckId) -> &'static [CheckId],
) -> Vec<FoldedFinding> {
    // The cause of each finding: the first other one that causes it directly or through others.
    let reached: Vec<BTreeSet<CheckId>> =
        findings.iter().map(|finding| all_effects(finding.id, &causes)).collect();
    let is_cause = |cause: usize, effect: usize| {
        let (one, other) = (&findings[cause], &findings[effect]);
        cause != effect
            && reached[cause].contains(&other.id)
            // Of two that cause each other, the first is taken as the cause.
            && !(reached[effect].contains(&one.id) && cause > effect)
            && is_near(one, other)
    };
    let parent = |effect: usize| (0..findings.len()).find(|&cause| is_cause(cause, effect));
    let parents: Vec<Option<usize>> = (0..findings.len()).map(parent).collect();
    let root = |index: usize| {
        let mut at = index;
        // A chain cannot be longer than the list.
        for _ in 0..parents.len() {
            match parents[at] {
                Some(up) => at = up,
                None => break,
            }
        }
        at
    };
    let mut folded: Vec<(usize, FoldedFinding)> = Vec::new();
    for (index, finding) in findings.iter().enumerate().filter(|(i, _)| parents[*i].is_none()) {
        let effects = (0..findings.len()).filter(|&i| i != index && root(i) == index);
        let consequences = effects.map(|i| findings[i].clone()).collect();
        folded.push((index, FoldedFinding { finding: finding.clone(), consequences }));
    }
    folded.sort_by_key(|(index, folded)| (worst(folded), *index));
    folded.into_iter().map(|(_, folded)| folded).collect()
}

/// Returns the worst severity among a finding and its consequences: a cause that looks harmless is shown where
/// its effects are.
fn worst(folded: &FoldedFinding) -> crate::findings::Severity {
    let own = folded.finding.severity;
    folded.consequences.iter().map(|finding| finding.severity).fold(own, Ord::min)
}

/// Returns all that a fault causes, directly or through others.
fn all_effects(id: CheckId, causes: &impl Fn(CheckId) -> &'static [CheckId]) -> BTreeSet<CheckId> {
    let (mut found, mut open) = (BTreeSet::new(), vec![id]);
    while let Some(next) = open.pop() {
        let new = causes(next).iter().copied().filter(|effect| found.insert(*effect));
        open.extend(new.collect::<Vec<_>>());
    }
    found
}

/// Tells whether two findings are about a common host, and not about different devices of one host.
fn is_near(one: &Finding, other: &Finding) -> bool {
    let shares_host = one.hosts.iter().chain(&one.peer).any(|host| other.concerns(host));
    // A fault of the launcher concerns every host.
    (shares_host || one.hosts.is_empty() || other.hosts.is_empty()) && shares_device(one, other)
}

/// Tells whether the devices may be the same. Different checks name a device with or without its port.
fn shares_device(one: &Finding, other: &Finding) -> bool {
    let is_link = one.peer.is_some() || other.peer.is_some();
    match (&one.device, &other.device) {
        (Some(one), Some(other)) if !is_link => {
            let device = |name: &str| name.split(['/', ':']).next().map(str::to_owned);
            let is_pci = |name: &str| name.matches([':', '.']).count() >= 2;
            is_pci(one)
                || is_pci(other)
                || device(one) == device(other)
                || is_other_kind(one, other)
        }
        _ => true,
    }
}

/// Tells whether one name is that of an RDMA port and the other that of an interface; the same port has both.
fn is_other_kind(one: &str, other: &str) -> bool {
    one.contains('/') != other.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::{Severity, id};

    fn causes(id: CheckId) -> &'static [CheckId] {
        match id {
            id::DEV_MODULE => &[id::LINK_DOWN],
            id::LINK_DOWN => &[id::MESH_SUBNET],
            _ => &[],
        }
    }

    fn shown(findings: Vec<Finding>) -> Vec<String> {
        let line = |folded: FoldedFinding| {
            let effects = folded.consequences.iter().map(|f| f.id.to_string());
            format!("{} < {}", folded.finding.id, effects.collect::<Vec<_>>().join(" "))
        };
        fold_by(findings, causes).into_iter().map(line).collect()
    }

    fn finding(id: CheckId, host: &str, severity: Severity) -> Finding {
        Finding::new(id, severity, host, "", "")
    }

    #[test]
    fn consequences_are_below_their_first_cause() {
        let findings = vec![
            finding(id::LIM_SHM, "a", Severity::Note),
            finding(id::MESH_SUBNET, "a", Severity::Error).peer("b"),
            finding(id::LINK_DOWN, "b", Severity::Warning),
            finding(id::DEV_MODULE, "b", Severity::Warning),
        ];
        assert_eq!(shown(findings), ["dev.module < mesh.subnet link.down", "lim.shm < "]);
    }

    #[test]
    fn faults_of_other_hosts_and_devices_stay() {
        let link =
            |host, device: &str| finding(id::LINK_DOWN, host, Severity::Error).device(device);
        let module = finding(id::DEV_MODULE, "a", Severity::Error).device("mlx5_0");
        let alone = shown(vec![module.clone(), link("b", "mlx5_0/1"), link("a", "mlx5_1/1")]);
        assert_eq!(alone, ["dev.module < ", "link.down < ", "link.down < "]);
        assert_eq!(shown(vec![module, link("a", "mlx5_0/1")]), ["dev.module < link.down"]);
    }
}
