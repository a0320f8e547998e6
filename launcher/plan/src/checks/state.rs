//! Whether a check ran: a check that judged nothing must not count as passed.

use super::cluster::{ProbeKind, Proof};
use super::{Check, Cluster, Needs, unread};
use crate::findings::id;

/// State of a check after an examination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckState {
    /// It judged at least one host or path.
    Ran,
    /// The cluster has nothing that it could judge.
    NotApplicable(&'static str),
    /// It lacks what this names.
    NotRun(String),
}

/// Returns the state of a check for a cluster.
pub fn state(check: &Check, cluster: &Cluster<'_>) -> CheckState {
    match check.needs {
        Needs::Nothing => return CheckState::NotApplicable("rlaunch prevents it"),
        Needs::Probes if !has_probes(check, cluster) => return without_probes(check, cluster),
        Needs::Probes | Needs::Connections => {}
        Needs::Inventories if !cluster.hosts.is_empty() => {}
        Needs::Diagnostics if cluster.diagnosed().next().is_some() => {}
        Needs::Program if cluster.program.is_some() => {}
        needs => return CheckState::NotRun(needs.words().to_owned()),
    }
    match unread::inputs(check.id, cluster) {
        unread::Inputs::Some => CheckState::Ran,
        unread::Inputs::Absent => CheckState::NotApplicable("no host has what it judges"),
        unread::Inputs::Unread(needs) => CheckState::NotRun(needs.to_owned()),
    }
}

/// Tells whether there is a probe that the check judges.
fn has_probes(check: &Check, cluster: &Cluster<'_>) -> bool {
    let judges = |kind: &ProbeKind| match check.id {
        id::NET_PAIR => matches!(kind, ProbeKind::Tcp),
        id::MESH_PROOF => matches!(kind, ProbeKind::Rdma),
        id::MESH_BANDWIDTH => matches!(kind, ProbeKind::Bandwidth { .. }),
        _ => matches!(kind, ProbeKind::Rdma | ProbeKind::PathMtu(_)),
    };
    cluster.probes.unwrap_or_default().iter().any(|probe| judges(&probe.kind))
}

fn without_probes(check: &Check, cluster: &Cluster<'_>) -> CheckState {
    if cluster.hosts.len() < 2 && cluster.unreached.is_empty() {
        return CheckState::NotApplicable("it is between hosts");
    }
    if cluster.probes.is_none() {
        return CheckState::NotRun(Needs::Probes.words().to_owned());
    }
    match &cluster.proof {
        _ if check.id == id::NET_PAIR => CheckState::NotRun("two hosts with an agent".to_owned()),
        Proof::NotApplicable(why) => CheckState::NotApplicable(why),
        Proof::NotRun(why) => CheckState::NotRun(why.clone()),
        Proof::Tried { .. } => CheckState::NotRun("probes (--probe)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster::{Probe, ProbeOutcome};
    use super::super::testing::{Machine, with_cluster};
    use super::*;
    use crate::checks::catalogue;
    use crate::testing::is_golden;
    use std::fmt::Write as _;

    fn state_of(id: &str, cluster: &Cluster<'_>) -> CheckState {
        state(crate::checks::find(id).unwrap(), cluster)
    }

    #[test]
    fn each_recorded_machine_says_which_checks_ran() {
        let names = [
            "ack-node",
            "amd-apu",
            "bond",
            "connectx3",
            "container",
            "dgx",
            "dual-port",
            "erdma-compat",
            "erdma-standard",
            "esxi-vm",
            "no-rdma",
            "rxe",
            "siw",
            "spark",
            "sriov",
        ];
        let mut text = String::new();
        for name in names {
            let machines = [Machine::recorded(name), Machine::recorded(name)];
            with_cluster(&machines, |cluster| {
                let states = catalogue().map(|check| (check.id, state(check, &cluster)));
                let (ran, others): (Vec<_>, Vec<_>) =
                    states.partition(|(_, state)| *state == CheckState::Ran);
                let _ = writeln!(text, "{name}: {} ran", ran.len());
                for (id, state) in others {
                    let _ = match state {
                        CheckState::NotApplicable(why) => {
                            writeln!(text, "  {id}  not applicable: {why}")
                        }
                        CheckState::NotRun(why) => writeln!(text, "  {id}  not run: needs {why}"),
                        CheckState::Ran => Ok(()),
                    };
                }
            });
        }
        is_golden("checks-ran", &text);
    }

    #[test]
    fn a_proof_that_was_not_made_is_not_a_check_that_passed() {
        let machines = [Machine::recorded("siw"), Machine::recorded("siw")];
        let probe = |kind| Probe {
            from: 0,
            to: 1,
            kind,
            netdev: None,
            address: None,
            outcome: ProbeOutcome::Worked(9),
        };
        let tcp = [probe(ProbeKind::Tcp)];
        let rdma = [probe(ProbeKind::Tcp), probe(ProbeKind::Rdma)];
        with_cluster(&machines, |cluster| {
            let failed = Proof::NotRun("-np is not on a, b".to_owned());
            let cluster = Cluster { probes: Some(&tcp), proof: failed, ..cluster };
            assert_eq!(state_of("net.pair", &cluster), CheckState::Ran);
            let not_run = CheckState::NotRun("-np is not on a, b".to_owned());
            assert_eq!(state_of("mesh.proof", &cluster), not_run);
            assert_eq!(state_of("mtu.path", &cluster), not_run);
            let proof = Proof::Tried { paths: 2 };
            let cluster = Cluster { probes: Some(&rdma), proof, ..cluster };
            assert_eq!(state_of("mesh.proof", &cluster), CheckState::Ran);
            let none = CheckState::NotRun("probes (--probe)".to_owned());
            assert_eq!(state_of("mesh.bandwidth", &cluster), none);
        });
    }
}
