//! Hosts on which a check had nothing to judge, because what it reads could not be read there.

use super::cluster::ProbeKind;
use super::devices::{indexed, irdma_limit, is_used};
use super::pcie::is_passed_through;
use super::{Cluster, ClusterHost};
use crate::findings::{CheckId, id};
use crate::selection;
use rlaunch_bootstrap::inventory::pci::PciDevice;

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
        indexed(cluster).map(|(index, host)| input(check, cluster, index, host)).collect();
    let hosts = cluster.hosts.iter().zip(&inputs);
    let unread: Vec<&ClusterHost<'_>> =
        hosts.filter(|(_, input)| **input == InputState::Unread).map(|(host, _)| host).collect();
    let first = unread.first()?;
    let needs = match check {
        id::DEV_QP => "RDMA paths to prove (--probe), or irdma's parameter limits_sel",
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
pub(super) enum Inputs {
    /// Something on some host, or the check reads what is always there.
    Some,
    /// No host has such a thing.
    Absent,
    /// Nothing on those hosts that have it; the missing right or input.
    Unread(&'static str),
}

/// Tells whether a check had anything to judge on any host.
pub(super) fn inputs(check: CheckId, cluster: &Cluster<'_>) -> Inputs {
    let mut states = indexed(cluster).map(|(index, host)| input(check, cluster, index, host));
    match unread(check, cluster) {
        Some(unread) if unread.is_everywhere => Inputs::Unread(unread.needs),
        Some(_) => Inputs::Some,
        None if cluster.hosts.is_empty() || states.any(|state| state == InputState::Read) => {
            Inputs::Some
        }
        None => Inputs::Absent,
    }
}

fn input(
    check: CheckId,
    cluster: &Cluster<'_>,
    index: usize,
    host: &ClusterHost<'_>,
) -> InputState {
    let of = |is_read: bool| if is_read { InputState::Read } else { InputState::Unread };
    let diagnostics = host.diagnostics;
    match (check, check.subject()) {
        (id::GPU_ACS, _) => access_control(cluster, index, host),
        (id::GPU_ATS, _) => translation(cluster, index, host),
        (id::DEV_QP, _) => of(diagnostics.and_then(irdma_limit).is_some()
            || cluster.probes.unwrap_or_default().iter().any(|probe| {
                probe.kind == ProbeKind::Rdma && [probe.from, probe.to].contains(&index)
            })),
        (_, "fw") => of(diagnostics.is_some_and(|state| state.firewall.is_some())),
        (_, "log") => of(diagnostics.is_some_and(|state| state.kernel_log.is_some())),
        _ => InputState::Read,
    }
}

/// Lists the PCI functions of the NICs that jobs use on a host with GPUs.
fn nics<'a>(
    cluster: &Cluster<'_>,
    index: usize,
    host: &ClusterHost<'a>,
) -> impl Iterator<Item = &'a PciDevice> {
    let devices = host.inventory.rdma.iter().filter(|_| !host.inventory.gpus.is_empty());
    let used = devices
        .filter(move |device| is_used(cluster, index, device) && !selection::is_software(device));
    used.filter_map(|device| device.pci.as_ref())
}

fn access_control(cluster: &Cluster<'_>, index: usize, host: &ClusterHost<'_>) -> InputState {
    let bridges = nics(cluster, index, host).filter(|pci| !is_passed_through(pci));
    let registers: Vec<Option<bool>> =
        bridges.flat_map(|pci| pci.links.iter().skip(1).map(|link| link.acs)).collect();
    match registers.iter().any(Option::is_some) {
        _ if registers.is_empty() => InputState::Absent,
        true => InputState::Read,
        false => InputState::Unread,
    }
}

fn translation(cluster: &Cluster<'_>, index: usize, host: &ClusterHost<'_>) -> InputState {
    let nics = nics(cluster, index, host).filter(|pci| is_passed_through(pci));
    let registers: Vec<Option<bool>> = nics.map(|pci| pci.ats).collect();
    match registers.iter().any(Option::is_some) {
        _ if registers.is_empty() => InputState::Absent,
        // Root sees which NICs have the register.
        is_read if is_read || host.uid == 0 => InputState::Read,
        _ => InputState::Unread,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, with_cluster};
    use super::*;
    use rlaunch_bootstrap::inventory::diagnostics::Firewall;

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
