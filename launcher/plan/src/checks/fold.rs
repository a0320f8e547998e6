//! Folding: findings that are consequences of other findings are shown below them.

use super::{Check, Cluster, find};
use crate::findings::{CheckId, Finding, Severity};
use std::collections::BTreeSet;

/// Finding, with those that it causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedFinding {
    pub finding: Finding,
    pub consequences: Vec<Finding>,
}

/// Folds findings into their causes and sorts what is left by severity, errors first. Findings of one severity
/// stay in the order in which they are given, which is that of the catalogue.
pub fn fold(findings: &[Finding], cluster: &Cluster<'_>) -> Vec<FoldedFinding> {
    let causes = |id: CheckId| find(id.as_str()).map_or(&[][..], |check: &Check| check.causes);
    fold_by(findings, causes, |host, device| aliases(cluster, host, device))
}

/// Folds findings. `causes` returns what a fault causes directly; `aliases` the names of a device on a host.
fn fold_by(
    findings: &[Finding],
    causes: impl Fn(CheckId) -> &'static [CheckId],
    aliases: impl Fn(&str, &str) -> BTreeSet<String>,
) -> Vec<FoldedFinding> {
    let effects: Vec<BTreeSet<CheckId>> =
        findings.iter().map(|finding| all_effects(finding.id, &causes)).collect();
    let is_cause = |cause: usize, effect: usize| {
        let (one, other) = (&findings[cause], &findings[effect]);
        cause != effect
            && effects[cause].contains(&other.id)
            // If two cause each other, the first counts as the cause.
            && !(effects[effect].contains(&one.id) && cause > effect)
            && are_near(one, other, &aliases)
    };
    let parent = |effect: usize| (0..findings.len()).find(|&cause| is_cause(cause, effect));
    let parents: Vec<Option<usize>> = (0..findings.len()).map(parent).collect();
    let root = |index: usize| {
        // A chain cannot be longer than the list.
        let chain = std::iter::successors(Some(index), |at| parents[*at]);
        chain.take(parents.len() + 1).last().unwrap_or(index)
    };
    let mut folded: Vec<FoldedFinding> = Vec::new();
    for (index, finding) in findings.iter().enumerate().filter(|(i, _)| parents[*i].is_none()) {
        let effects = (0..findings.len()).filter(|&i| i != index && root(i) == index);
        let consequences = effects.map(|i| findings[i].clone()).collect();
        folded.push(FoldedFinding { finding: finding.clone(), consequences });
    }
    folded.iter_mut().for_each(|folded| folded.finding.severity = worst(folded));
    folded.sort_by_key(|folded| folded.finding.severity);
    folded
}

/// Returns the worst severity among a finding and its consequences: a cause that looks harmless is as bad as its
/// effects, and would hide them from exit codes otherwise.
fn worst(folded: &FoldedFinding) -> Severity {
    let own = folded.finding.severity;
    folded.consequences.iter().map(|finding| finding.severity).fold(own, Ord::min)
}

/// Returns the ids of all faults that a fault causes, directly or through others.
fn all_effects(id: CheckId, causes: &impl Fn(CheckId) -> &'static [CheckId]) -> BTreeSet<CheckId> {
    let (mut found, mut open) = (BTreeSet::new(), vec![id]);
    while let Some(next) = open.pop() {
        let new = causes(next).iter().copied().filter(|effect| found.insert(*effect));
        open.extend(new.collect::<Vec<_>>());
    }
    found
}

/// Tells whether two findings are about a common host, and not about different devices of that host.
fn are_near(
    one: &Finding,
    other: &Finding,
    aliases: &impl Fn(&str, &str) -> BTreeSet<String>,
) -> bool {
    // A fault of the launcher concerns every host.
    if one.hosts.is_empty() || other.hosts.is_empty() {
        return true;
    }
    let mut hosts = one.hosts.iter().chain(&one.peer).filter(|host| other.concerns(host));
    hosts.any(|host| {
        // A finding's device belongs to its hosts, not to its peer.
        let own =
            |finding: &Finding| finding.device.clone().filter(|_| finding.hosts.contains(host));
        match (own(one), own(other)) {
            (Some(a), Some(b)) => !aliases(host, &a).is_disjoint(&aliases(host, &b)),
            _ => true,
        }
    })
}

/// Returns all names of a device: those of the RDMA device, its ports, their interfaces and its PCI function.
fn aliases(cluster: &Cluster<'_>, host: &str, device: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::from([device.to_owned()]);
    let host = cluster.hosts.iter().find(|known| known.name == host);
    for (rdma, port) in host.iter().flat_map(|host| host.rdma_ports()) {
        let own = [Some(rdma.name.clone()), Some(format!("{}/{}", rdma.name, port.number))];
        let others = [port.netdev.clone(), rdma.pci.as_ref().map(|pci| pci.address.clone())];
        let group: Vec<String> = own.into_iter().chain(others).flatten().collect();
        if group.iter().any(|name| name == device) {
            names.extend(group);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::id;

    fn causes(id: CheckId) -> &'static [CheckId] {
        match id {
            id::DEV_MODULE => &[id::LINK_DOWN],
            id::LINK_DOWN => &[id::MESH_SUBNET],
            _ => &[],
        }
    }

    /// Names a device without its port.
    fn names(_host: &str, device: &str) -> BTreeSet<String> {
        BTreeSet::from([device.split('/').next().unwrap_or_default().to_owned()])
    }

    fn shown(findings: &[Finding]) -> Vec<String> {
        let line = |folded: FoldedFinding| {
            let effects = folded.consequences.iter().map(|f| f.id.to_string());
            format!("{} < {}", folded.finding.id, effects.collect::<Vec<_>>().join(" "))
        };
        fold_by(findings, causes, names).into_iter().map(line).collect()
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
        assert_eq!(shown(&findings), ["dev.module < mesh.subnet link.down", "lim.shm < "]);
    }

    #[test]
    fn a_cause_is_as_bad_as_its_consequences() {
        let findings = [
            finding(id::LINK_DOWN, "b", Severity::Note),
            finding(id::MESH_SUBNET, "b", Severity::Error),
        ];
        let folded = fold_by(&findings, causes, names);
        assert_eq!((folded.len(), folded[0].finding.severity), (1, Severity::Error));
    }

    #[test]
    fn faults_of_other_hosts_and_devices_stay() {
        let link =
            |host, device: &str| finding(id::LINK_DOWN, host, Severity::Error).device(device);
        let module = finding(id::DEV_MODULE, "a", Severity::Error).device("mlx5_0");
        let alone = shown(&[module.clone(), link("b", "mlx5_0/1"), link("a", "mlx5_1/1")]);
        assert_eq!(alone, ["dev.module < ", "link.down < ", "link.down < "]);
        assert_eq!(shown(&[module, link("a", "mlx5_0/1")]), ["dev.module < link.down"]);
    }
}
