//! InfiniBand: subnet managers, and virtual functions that they configure.

use super::devices::{has_rdma, in_container, indexed, install_line, port_name, severity_of_loss};
use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, Fix, Severity, Step, id};
use crate::selection::{self, Rejection};
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::rdma::{LinkLayer, Port, PortState, RdmaDevice};
use rlaunch_text::text;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::IB_NO_SM,
        about: "a subnet manager has configured every InfiniBand port with a cable",
        needs: Needs::Inventories,
        examine: no_manager,
        causes: &[
            id::MESH_SUBNET, id::MESH_SILENT, id::NUMA_FAR, id::NCCL_NET, id::NCCL_EDGE,
            id::LOG_LINK, id::ODD_RATE,
        ],
        explanation: "\
Symptoms: ibstat shows `State: Initializing` and `Physical state: LinkUp`, `Base lid: 0`; perftest says \
`Port is not active`, NCCL `NET/IB : No device found`.

An InfiniBand port gets its address (LID) and its routes from a subnet manager. Two computers joined by one cable \
need one as well. Managed switches often run it; otherwise opensm runs on one host. The port has a physical \
link here and its state is INIT, so no subnet manager has seen it.

Install and start opensm on one host of the fabric, one only. Within seconds all ports become ACTIVE. If opensm \
runs already, its log says why it does not configure the port; under SELinux a wrong label on /var/log/opensm.log \
keeps it from starting.",
    },
    Check {
        id: id::IB_SM_MANY,
        about: "one host runs the subnet manager",
        needs: Needs::Diagnostics,
        examine: many_managers,
        causes: &[],
        explanation: "\
Several hosts run opensm. On one fabric that is allowed: the managers agree on a master, the others stand by and \
take over if it dies. It is worth knowing which is which, since a takeover can change LIDs and interrupts traffic \
for a moment, and managers with different settings (partitions, MTU, virt_enabled) change the fabric when they \
take over.

The services of every host were listed. Stop opensm on all hosts but one, or set sm_priority in \
/etc/opensm/opensm.conf (/etc/rdma/opensm.conf on RHEL) so that the master is the one that you \
expect; `sminfo` names the master. Separate fabrics need a manager each, and then nothing is to be \
done.",
    },
    Check {
        id: id::IB_VF,
        about: "virtual functions of InfiniBand adapters are configured",
        needs: Needs::Inventories,
        examine: virtual_function,
        causes: &[id::MESH_SUBNET, id::NCCL_NET, id::NUMA_FAR],
        explanation: "\
Symptoms: a port of a virtual function (SR-IOV) stays INIT or has LID 65535 while the physical function is ACTIVE; \
in a virtual machine or pod `Port is not active`.

A virtual function is a port of its own in the subnet. The subnet manager configures it only if virtualisation is \
enabled in it, and if the function has GUIDs, which the host's administrator sets through the physical function. The \
state of the port and the link between virtual and physical function were read from sysfs; in a virtual machine, where only \
the function is seen, its PCI device number tells it.

Set virt_enabled 2 in opensm.conf and restart opensm: the opensm of MLNX_OFED and DOCA has this \
option, that of distributions does not. Also give the function a node GUID and a port GUID with ip \
link, then detach and attach it again. On the host of a virtual machine, a function that no guest \
uses may stay as it is.",
    },
];

/// Line that lets opensm start under SELinux after a wrong label on its log has kept it from that.
const RELABEL: &str = "sudo restorecon -v /var/log/opensm.log; sudo systemctl restart opensm";

/// Lists the ports of a host that are not used for this reason.
fn ports_rejected_for<'a>(
    host: &ClusterHost<'a>,
    reason: &Rejection,
) -> Vec<(&'a RdmaDevice, &'a Port)> {
    let netdevs = &host.inventory.netdevs;
    let is_it = |(device, port): &(&RdmaDevice, &Port)| {
        selection::examine(device, port, netdevs).err().as_ref() == Some(reason)
    };
    host.rdma_ports().filter(is_it).collect()
}

fn no_manager(cluster: &Cluster<'_>) -> Vec<Finding> {
    let hosts = indexed(cluster).map(|(index, host)| {
        let ports = ports_rejected_for(host, &Rejection::NoSubnetManager);
        let names = ports.iter().map(|(device, port)| port_name(device, port));
        (index, host, names.collect::<Vec<String>>())
    });
    let hosts: Vec<_> = hosts.filter(|(.., names)| !names.is_empty()).collect();
    let runs_it = |host: &&ClusterHost<'_>| {
        let services = host.diagnostics.map(|diagnostics| diagnostics.services.as_slice());
        services.unwrap_or_default().iter().any(|service| service == "opensm")
    };
    let manager = cluster.hosts.iter().find(runs_it).map(|host| host.name);
    let Some((_, first, _)) = hosts.first() else { return Vec::new() };
    let finding = |(index, host, names): &(usize, &ClusterHost<'_>, Vec<String>)| {
        let verb = if names.len() == 1 { "is" } else { "are" };
        let seen = format!(
            "{} {verb} INIT: no subnet manager has configured the fabric",
            text::list(names)
        );
        let severity = severity_of_loss(cluster, *index);
        let matters = "InfiniBand carries no data without one";
        let found = Finding::new(id::IB_NO_SM, severity, host.name, seen, matters);
        let found = match &names[..] {
            [name] => found.device(name),
            _ => found,
        };
        with_manager(cluster, first, manager, found)
    };
    hosts.iter().map(finding).collect()
}

/// Adds how to start a subnet manager, on the host that runs one already or else on `first`.
fn with_manager(
    cluster: &Cluster<'_>,
    first: &ClusterHost<'_>,
    manager: Option<&str>,
    found: Finding,
) -> Finding {
    let look = |found: Finding, host: &str, line: &str| {
        found.step(Step::RunOn(host.to_owned(), line.to_owned()))
    };
    if let Some(manager) = manager {
        let restart = Fix::restart_subnet_manager().on(manager);
        let found = found.advise(format!(
            "opensm runs on {manager}; its log says why it does not configure the port"
        ));
        return look(found.fixed_by(restart), manager, "journalctl -u opensm -u opensmd -n 20");
    }
    if in_container(cluster, first) {
        return found.advise("start opensm on one host of the fabric, outside of the container");
    }
    let kernel = first.diagnostics.map(|diagnostics| &diagnostics.kernel);
    let ids = kernel.map(|kernel| kernel.distribution_ids.as_slice()).unwrap_or_default();
    let install = install_line(ids, "opensm");
    let is_enforcing = kernel.is_some_and(|kernel| kernel.selinux_enforcing);
    let fix = Fix::subnet_manager(install.as_deref());
    let found = match install {
        Some(_) => found,
        None => found.advise("install opensm on one host of the fabric"),
    };
    let found = found.fixed_by(fix.on(first.name));
    let found = if is_enforcing { look(found, first.name, RELABEL) } else { found };
    look(found, first.name, "journalctl -u opensm -n 20")
}

fn many_managers(cluster: &Cluster<'_>) -> Vec<Finding> {
    let has_infiniband = |host: &ClusterHost<'_>| {
        host.rdma_ports().any(|(_, port)| port.link_layer == LinkLayer::InfiniBand)
    };
    let runs = |(host, diagnostics): (&ClusterHost<'_>, &Diagnostics)| {
        let is_there = diagnostics.services.iter().any(|service| service == "opensm");
        (is_there && has_infiniband(host)).then(|| host.name.to_owned())
    };
    let hosts: Vec<String> = cluster.diagnosed().filter_map(runs).collect();
    let Some((first, others)) = hosts.split_first() else { return Vec::new() };
    if others.is_empty() {
        return Vec::new();
    }
    let matters = "one is the master, the others stand by; sm_priority decides which";
    let mut found = Finding::note(id::IB_SM_MANY, first, "opensm runs", matters);
    found.hosts = hosts;
    vec![found]
}

fn virtual_function(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        let ignored = ports_rejected_for(host, &Rejection::NoVirtualPort).into_iter();
        let ignored = ignored.map(|port| {
            (port, "INIT: the subnet manager has not configured this virtual function")
        });
        // The permissive LID stands for none.
        let nameless = host.rdma_ports().filter(|(_, port)| {
            port.link_layer == LinkLayer::InfiniBand
                && port.state == PortState::Active
                && port.lid == Some(u16::MAX)
        });
        let nameless = nameless
            .map(|port| (port, "LID 65535: the subnet manager has given the port no address"));
        for ((device, port), seen) in ignored.chain(nameless) {
            let severity = if has_rdma(cluster, index) { Severity::Note } else { Severity::Error };
            let matters = match severity {
                Severity::Note => "ranks use the host's other ports",
                _ => "InfiniBand carries no data before it is configured",
            };
            let parent = device.pci.as_ref().and_then(|pci| pci.physical_function.as_deref());
            let place = match parent {
                Some(parent) => format!("through its physical function ({parent})"),
                None => "on the host of this virtual machine".to_owned(),
            };
            let finding = Finding::new(id::IB_VF, severity, host.name, seen, matters)
                .device(port_name(device, port))
                .advise(
                    "where opensm runs (that of MLNX_OFED or DOCA), set `virt_enabled 2` in \
                     opensm.conf and restart it",
                )
                .advise(format!(
                    "give the function GUIDs {place}: ip link set PF vf N node_guid GUID, and the same with \
                     port_guid; then attach it anew"
                ));
            found.push(finding);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, lines, with_cluster};
    use super::*;

    /// Returns a machine whose first port waits for a subnet manager.
    fn unmanaged() -> Machine {
        Machine::recorded("connectx3").change(|inventory| {
            let port = &mut inventory.rdma[0].ports[0];
            (port.state, port.lid, port.sm_lid) = (PortState::Init, Some(0), Some(0));
        })
    }

    #[test]
    fn a_fabric_without_a_subnet_manager_gets_one() {
        let on = |machine: Machine, ids: &[&str], selinux: bool| {
            machine.diagnosed(|diagnostics| {
                let ids = ids.iter().map(|id| (*id).to_owned()).collect();
                diagnostics.kernel.distribution_ids = ids;
                diagnostics.kernel.selinux_enforcing = selinux;
            })
        };
        let hosts = [on(unmanaged(), &["fedora"], true), on(unmanaged(), &["debian"], false)];
        let expected = |host: &str| {
            format!(
                "error ib.no-sm {host} mlx4_0/1: mlx4_0/1 is INIT: no subnet manager has configured \
                 the fabric — InfiniBand carries no data without one"
            )
        };
        assert_eq!(lines(no_manager, &hosts), [expected("a"), expected("b")]);
        let fix = with_cluster(&hosts, |cluster| no_manager(&cluster)[1].fix.clone());
        let on_a = |line: &str| Step::RunOn("a".into(), line.into());
        let expected = [
            on_a("sudo dnf install -y opensm"),
            on_a("sudo systemctl enable --now opensm"),
            on_a(RELABEL),
            on_a("journalctl -u opensm -n 20"),
        ];
        assert_eq!(fix, expected);
        let apt = install_line(&["ubuntu".into(), "debian".into()], "opensm");
        assert_eq!(apt.as_deref(), Some("sudo apt-get install -y opensm"));
        let healthy = vec![Machine::recorded("connectx3"); 2];
        assert!(lines(no_manager, &healthy).is_empty());
    }

    #[test]
    fn the_log_of_a_manager_that_runs_is_shown() {
        let manager = unmanaged().diagnosed(|d| d.services = vec!["opensm".into()]);
        let fix =
            with_cluster(&[unmanaged(), manager], |cluster| no_manager(&cluster)[0].fix.clone());
        assert!(
            fix.contains(&Step::RunOn("b".into(), "journalctl -u opensm -u opensmd -n 20".into())),
            "{fix:?}"
        );
        assert!(!fix.iter().any(|step| format!("{step:?}").contains("install")), "{fix:?}");
    }

    #[test]
    fn managers_are_counted() {
        let with = |services: &[&str]| {
            let services = services.iter().map(|name| (*name).to_owned()).collect();
            Machine::recorded("connectx3").diagnosed(|diagnostics| diagnostics.services = services)
        };
        let found =
            lines(many_managers, &[with(&["opensm"]), with(&[]), with(&["opensm", "sshd"])]);
        let expected = "note ib.sm-many a,c: opensm runs — one is the master, the others stand by; \
                        sm_priority decides which";
        assert_eq!(found, [expected]);
        assert!(lines(many_managers, &[with(&["opensm"]), with(&[])]).is_empty());
    }

    #[test]
    fn a_virtual_function_without_a_guid_is_named() {
        let found = lines(virtual_function, &[Machine::recorded("sriov")]);
        let expected = "note ib.vf a ibp65s0v0/1: INIT: the subnet manager has not configured this virtual function — \
                        ranks use the host's other ports";
        assert_eq!(found, [expected]);
        assert!(lines(no_manager, &[Machine::recorded("sriov")]).is_empty());
    }

    #[test]
    fn a_virtual_function_in_a_guest_does_not_ask_for_another_manager() {
        let guest = Machine::recorded("sriov").change(|inventory| {
            inventory.rdma.retain(|device| device.name == "ibp65s0v0");
            let pci = inventory.rdma[0].pci.as_mut().unwrap();
            (pci.physical_function, pci.vendor, pci.device) = (None, Some(0x15b3), Some(0x101c));
        });
        let guests = [guest.clone(), guest];
        let found = lines(virtual_function, &guests);
        assert!(found[0].starts_with("error ib.vf a ibp65s0v0/1: INIT"), "{found:?}");
        let fix = with_cluster(&guests, |cluster| virtual_function(&cluster)[0].fix.clone());
        let fix = format!("{fix:?}");
        assert!(
            fix.contains("virt_enabled") && fix.contains("on the host of this virtual"),
            "{fix}"
        );
        assert!(lines(no_manager, &guests).is_empty());
    }

    #[test]
    fn the_permissive_lid_is_no_address() {
        let with = |lid| {
            Machine::recorded("connectx3")
                .change(|inventory| inventory.rdma[0].ports[0].lid = Some(lid))
        };
        let found = lines(virtual_function, &[with(u16::MAX)]);
        assert!(found.len() == 1 && found[0].contains("mlx4_0/1: LID 65535: "), "{found:?}");
        assert!(lines(virtual_function, &[with(4)]).is_empty());
    }
}
