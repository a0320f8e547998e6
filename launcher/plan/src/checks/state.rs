//! Whether a check ran, and the hosts on which it had nothing to judge, because what it reads could not be read there: a
//! check that judged nothing must not count as passed.

use super::cluster::{ProbeKind, Proof};
use super::containers::may_lack_gpus;
use super::devices::{indexed, irdma_limit, used_hardware};
use super::pcie::is_passed_through;
use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{CheckId, id};
use rlaunch_bootstrap::inventory::pci::PciDevice;

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
    match input_summary(check.id, cluster) {
        InputSummary::Some => CheckState::Ran,
        InputSummary::Absent => CheckState::NotApplicable("no host has what it judges"),
        InputSummary::Unread(needs) => CheckState::NotRun(needs.to_owned()),
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

/// Hosts on which a check had nothing to judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    pub hosts: Vec<String>,
    /// Whether these are all hosts for which the check has a meaning.
    pub is_everywhere: bool,
    /// Missing right or input, such as `root`.
    pub needs: &'static str,
}

/// State of what a check reads on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputState {
    /// It was read.
    Read,
    /// It could not be read.
    Unread,
    /// The host has no such thing.
    Absent,
}

/// Tells on which hosts a check had nothing to judge; `None` if there are none.
pub fn unread(check: CheckId, cluster: &Cluster<'_>) -> Option<Unread> {
    let inputs: Vec<InputState> =
        indexed(cluster).map(|(index, host)| input_state(check, cluster, index, host)).collect();
    let hosts = cluster.hosts.iter().zip(&inputs);
    let unread: Vec<&ClusterHost<'_>> =
        hosts.filter(|(_, input)| **input == InputState::Unread).map(|(host, _)| host).collect();
    let first = unread.first()?;
    let needs = match check {
        id::DEV_QP => "RDMA paths to test (--probe), or irdma's parameter limits_sel",
        id::CT_GPU => "the host itself, not a record of it",
        _ if first.uid != 0 => "root",
        _ => "more rights than root has there",
    };
    Some(Unread {
        hosts: unread.iter().map(|host| host.name.to_owned()).collect(),
        is_everywhere: !inputs.contains(&InputState::Read),
        needs,
    })
}

/// Summary of what a check could read on the hosts.
enum InputSummary {
    /// Something on some host, or the check reads what is always there.
    Some,
    /// No host has such a thing.
    Absent,
    /// Nothing on those hosts that have it; the missing right or input.
    Unread(&'static str),
}

/// Tells whether a check had anything to judge on any host.
fn input_summary(check: CheckId, cluster: &Cluster<'_>) -> InputSummary {
    let mut states = indexed(cluster).map(|(index, host)| input_state(check, cluster, index, host));
    match unread(check, cluster) {
        Some(unread) if unread.is_everywhere => InputSummary::Unread(unread.needs),
        Some(_) => InputSummary::Some,
        None if cluster.hosts.is_empty() || states.any(|state| state == InputState::Read) => {
            InputSummary::Some
        }
        None => InputSummary::Absent,
    }
}

fn input_state(
    check: CheckId,
    cluster: &Cluster<'_>,
    index: usize,
    host: &ClusterHost<'_>,
) -> InputState {
    let read_if = |is_read: bool| if is_read { InputState::Read } else { InputState::Unread };
    let diagnostics = host.diagnostics;
    match (check, check.subject()) {
        (id::GPU_ACS, _) => acs_registers(cluster, index, host),
        (id::GPU_ATS, _) => ats_registers(cluster, index, host),
        (id::CT_GPU, _) if !may_lack_gpus(cluster, host) => InputState::Absent,
        (id::CT_GPU, _) => read_if(diagnostics.is_some_and(|state| state.gpu_files.is_some())),
        (id::DEV_QP, _) => read_if(
            diagnostics.and_then(irdma_limit).is_some()
                || cluster.probes.unwrap_or_default().iter().any(|probe| {
                    probe.kind == ProbeKind::Rdma && [probe.from, probe.to].contains(&index)
                }),
        ),
        (_, "fw") => read_if(diagnostics.is_some_and(|state| state.firewall.is_some())),
        (_, "log") => read_if(diagnostics.is_some_and(|state| state.kernel_log.is_some())),
        _ => InputState::Read,
    }
}

/// Lists the PCI functions of the NICs that jobs use on a host with GPUs.
fn nics<'a>(
    cluster: &Cluster<'a>,
    index: usize,
    host: &ClusterHost<'a>,
) -> impl Iterator<Item = &'a PciDevice> {
    let used = used_hardware(cluster, index, host).filter(|_| !host.inventory.gpus.is_empty());
    used.filter_map(|device| device.pci.as_ref())
}

/// Tells whether the registers were read that gpu.acs judges.
fn acs_registers(cluster: &Cluster<'_>, index: usize, host: &ClusterHost<'_>) -> InputState {
    let bridges = nics(cluster, index, host).filter(|pci| !is_passed_through(pci));
    let registers: Vec<Option<bool>> =
        bridges.flat_map(|pci| pci.links.iter().skip(1).map(|link| link.acs)).collect();
    if registers.is_empty() {
        InputState::Absent
    } else if registers.iter().any(Option::is_some) {
        InputState::Read
    } else {
        InputState::Unread
    }
}

/// Tells whether the registers were read that gpu.ats judges.
fn ats_registers(cluster: &Cluster<'_>, index: usize, host: &ClusterHost<'_>) -> InputState {
    let nics = nics(cluster, index, host).filter(|pci| is_passed_through(pci));
    let registers: Vec<Option<bool>> = nics.map(|pci| pci.ats).collect();
    if registers.is_empty() {
        InputState::Absent
    } else if registers.iter().any(Option::is_some) || host.uid == 0 {
        // Root sees which NICs have the register.
        InputState::Read
    } else {
        InputState::Unread
    }
}

#[cfg(test)]
mod tests {
    use super::super::cluster::{Probe, ProbeOutcome};
    use super::super::testing::{Machine, with_cluster};
    use super::*;
    use crate::checks::catalogue;
    use crate::testing::is_golden;
    use rlaunch_bootstrap::inventory::diagnostics::Firewall;
    use std::fmt::Write as _;

    fn state_of(id: &str, cluster: &Cluster<'_>) -> CheckState {
        state(crate::checks::find(id).unwrap(), cluster)
    }

    #[test]
    fn each_recorded_machine_says_which_checks_ran() {
        let names = "\
            ack-node amd-apu bond connectx3 container dgx dual-port erdma-compat erdma-standard \
            esxi-vm no-rdma rxe siw spark sriov";
        let mut text = String::new();
        for name in names.split(' ') {
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

    fn needs(check: CheckId, machines: &[Machine]) -> Option<(String, bool, &'static str)> {
        let unread = with_cluster(machines, |cluster| unread(check, &cluster))?;
        Some((unread.hosts.join(","), unread.is_everywhere, unread.needs))
    }

    fn with_rules(uid: u32) -> Machine {
        let rules = |machine: Machine| {
            machine.diagnosed(|diagnostics| diagnostics.firewall = Some(Firewall::default()))
        };
        rules(Machine::recorded("siw")).uid(uid)
    }

    #[test]
    fn rules_and_the_log_need_root() {
        let user = || Machine::recorded("siw").uid(1000);
        let all = |hosts: &str| Some((hosts.to_owned(), true, "root"));
        for check in [id::FW_PORTS, id::FW_ROCE, id::LOG_XID] {
            assert_eq!(needs(check, &[user(), user()]), all("a,b"), "{check}");
        }
        let some = Some(("a".to_owned(), false, "root"));
        assert_eq!(needs(id::FW_PORTS, &[user(), with_rules(0)]), some);
        assert_eq!(needs(id::FW_PORTS, &[with_rules(0)]), None);
        let container = needs(id::FW_PORTS, &[Machine::recorded("siw")]).unwrap();
        assert_eq!(container.2, "more rights than root has there");
        assert_eq!(needs(id::LIM_SHM, &[user()]), None);
    }

    #[test]
    fn registers_need_root_where_there_are_any() {
        let root = Machine::recorded("dgx");
        let user = root.clone().uid(1000).change(|inventory| {
            let nics = inventory.rdma.iter_mut().filter_map(|device| device.pci.as_mut());
            nics.flat_map(|pci| &mut pci.links).for_each(|link| link.acs = None);
        });
        assert_eq!(needs(id::GPU_ACS, &[root]), None);
        assert_eq!(needs(id::GPU_ACS, &[user]), Some(("a".into(), true, "root")));
        assert_eq!(needs(id::GPU_ACS, &[Machine::recorded("siw").uid(1000)]), None, "no GPUs");
        let guest = |uid| {
            Machine::recorded("esxi-vm")
                .uid(uid)
                .change(|inventory| inventory.rdma[0].pci.as_mut().unwrap().ats = None)
        };
        assert_eq!(needs(id::GPU_ATS, &[guest(1000)]), Some(("a".into(), true, "root")));
        assert_eq!(needs(id::GPU_ATS, &[guest(0)]), None);
    }

    #[test]
    fn queue_pairs_are_counted_by_the_proof_or_a_parameter() {
        let plain = || Machine::recorded("esxi-vm");
        let parameter = plain().diagnosed(|diagnostics| {
            diagnostics.module_parameters = vec![("irdma.limits_sel".into(), "3".into())];
        });
        assert!(needs(id::DEV_QP, &[plain()]).unwrap().1);
        assert_eq!(needs(id::DEV_QP, &[parameter]), None);
    }
}
