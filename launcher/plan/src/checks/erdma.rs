//! Devices that need the RDMA connection manager, and eRDMA, the RDMA of Alibaba's cloud: its driver, its two modes, the ports
//! and the MTU that it needs.

use super::devices::{has_nvidia, in_container, indexed, is_used, prevented, uses_nccl};
use super::{Check, Cluster, ClusterHost, Needs};
use crate::findings::{Finding, Fix, Severity, id};
use crate::selection::{self, ConnectBy};
use rlaunch_bootstrap::inventory::diagnostics::Diagnostics;
use rlaunch_bootstrap::inventory::rdma::{NodeType, PortState, RdmaDevice};
use rlaunch_text::text;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::IWARP_CM,
        about: "iWARP devices connect by the RDMA connection manager",
        needs: Needs::Inventories,
        examine: manager,
        causes: &[id::NCCL_NET, id::MESH_SUBNET, id::MESH_PROOF],
        explanation: "\
Symptoms: `Failed to modify QP to RTS` and `Unable to Connect the HCA's through the link` from perftest without -R; \
NCCL fails with `ibv_modify_qp failed with 22 Invalid argument`.

iWARP runs over TCP, whose connections the RDMA connection manager makes. A program that exchanges the addresses of queue \
pairs by itself, as NCCL does, can move them to RTR but not to RTS. The kind of device (node type RNIC) was read from sysfs.

rlaunch connects these devices by the connection manager without being asked, and lets NCCL use TCP. Do not give --connect \
oob here; in perftest use -R.",
    },
    Check {
        id: id::IWARP_BACKLOG,
        about: "listeners of iWARP accept as many requests as there are paths",
        needs: Needs::Nothing,
        examine: prevented,
        causes: &[],
        explanation: "\
Symptom elsewhere: connections over iWARP are reset when many queue pairs connect at once.

An iWARP device refuses connect requests beyond the backlog of the listener, where a TCP socket would let them wait. \
rlaunch prevents it: listeners of the test and of the communicator have a backlog as large as the number of their paths. For \
your own programs, pass at least the number of expected queue pairs to rdma_listen.",
    },
    Check {
        id: id::RC_RECEIVE,
        about: "receive requests are there before messages arrive",
        needs: Needs::Nothing,
        examine: prevented,
        causes: &[],
        explanation: "\
Symptoms elsewhere: `status 13`, `IBV_WC_RNR_RETRY_EXC_ERR`, a rising counter `out_of_buffer`.

A reliable queue pair that gets a message without a receive request asks the sender to wait and try again, and after some \
tries the connection breaks. rlaunch prevents it: senders have credits, one for each request that the receiver has posted, \
and no queue pair sends before its peer is ready. In other programs, post more receive requests, or raise rnr_retry: 7 \
retries without limit.",
    },
    Check {
        id: id::ERDMA_DRIVER,
        about: "eRDMA has a driver that knows compat mode",
        needs: Needs::Diagnostics,
        examine: driver,
        causes: &[id::ERDMA_STANDARD, id::ERDMA_MIXED, id::NCCL_NET],
        explanation: "\
Symptom: `modprobe erdma compat_mode=Y` says `Unknown parameter`, or the device stays in standard mode whatever \
/etc/modprobe.d says.

Compat mode, which NCCL needs, exists in Alibaba's own driver only. The driver of the mainline kernel and old \
versions of Alibaba's know nothing of it. The module is loaded here without the parameter compat_mode.

Install the driver of Alibaba's page `Enable eRDMA`, installer 1.4.3 or later. On Ubuntu 24.04 remove the old module of \
dkms first, since it would be loaded instead.",
    },
    Check {
        id: id::ERDMA_STANDARD,
        about: "eRDMA is in compat mode where NCCL is used",
        needs: Needs::Inventories,
        examine: standard,
        causes: &[id::NCCL_NET, id::IWARP_CM, id::DEV_CAPS],
        explanation: "\
Symptoms: `Failed to modify QP to RTS` and `Unable to Connect the HCA's through the link` from perftest without -R; NCCL and \
TensorFlow fail with `ibv_modify_qp failed with 22 Invalid argument`.

The driver of eRDMA has two modes. In standard mode, queue pairs connect only through the RDMA connection manager, which rlaunch \
uses by itself, and NCCL cannot. In compat mode they also connect as on other RoCE devices. The mode was read from the kind of \
device (node type RNIC is standard mode) and from the module's parameter.

Set compat_mode=Y and load the module anew, on every host. That drops all eRDMA connections of the host. In a container, do it on \
the container's host.",
    },
    Check {
        id: id::ERDMA_MIXED,
        about: "eRDMA is in one mode on all hosts",
        needs: Needs::Inventories,
        examine: mixed,
        causes: &[id::ERDMA_STANDARD, id::MESH_SUBNET, id::MESH_SILENT, id::NCCL_NET, id::NCCL_EDGE],
        explanation: "\
Symptom: hosts of one group connect among each other and never to the other group; rlaunch uses TCP between the groups.

A device in compat mode and one in standard mode cannot connect, since the two modes connect differently. GPU instances and \
enterprise instances of Alibaba's cloud come with different modes. The mode of each host was read from its \
device.

Set the same mode on all hosts; NCCL needs compat mode.",
    },
    Check {
        id: id::ERDMA_PORTS,
        about: "the TCP ports of eRDMA's compat mode are free",
        needs: Needs::Diagnostics,
        examine: ports,
        causes: &[id::MESH_SILENT, id::MESH_ROUTE],
        explanation: "\
Symptom: some eRDMA connections of a host time out, after a service was started there that listens on a port near 30610.

In compat mode the driver connects queue pairs over 16 TCP ports by itself, from 30608 or its parameter reserve_ports_base on. A program has one of them. The \
listening sockets of the host were read from /proc/net/tcp, with their processes as far as this user may see them.

Let the program use another port. The first port of the driver can be moved by its parameter reserve_ports_base, to the same number \
on all hosts. rlaunch itself never listens in this range.",
    },
    Check {
        id: id::ERDMA_MTU,
        about: "the MTU of eRDMA's interface is safe for NCCL",
        needs: Needs::Inventories,
        examine: mtu,
        causes: &[id::MTU_RDMA],
        explanation: "\
Symptom: a model does not converge, or checksums of gathered tensors differ, on eRDMA only.

NCCL's protocol LL128 relies on the NIC writing 128 bytes in one piece. Alibaba asks for an MTU of 8500 where \
jumbo frames are on, and else 1400, so that eRDMA's packets keep such pieces whole; other values can corrupt data. The \
MTU of the interface was read from sysfs; hosts with GPUs are judged.

Set the MTU on all hosts, or let NCCL leave the protocol out with -x NCCL_PROTO=^LL128, at some cost for medium sizes.",
    },
];

/// First TCP port of compat mode unless the driver is told another, and the number of its ports.
const FIRST_PORT: u16 = 30_608;
const PORT_COUNT: u16 = 16;
/// Name of the module's parameter with the first port.
const PORTS_PARAMETER: &str = "erdma.reserve_ports_base";
/// MTUs of interfaces that Alibaba recommends.
const SAFE_MTUS: [u32; 2] = [1400, 8500];
/// Name of the module's parameter that selects the mode.
const MODE_PARAMETER: &str = "erdma.compat_mode";

/// Returns the first and the last TCP port of compat mode on a host.
pub(super) fn compat_ports(diagnostics: &Diagnostics) -> (u16, u16) {
    let mut parameters = diagnostics.module_parameters.iter();
    let moved = parameters.find(|(name, _)| name == PORTS_PARAMETER);
    let first = moved.and_then(|(_, value)| value.parse().ok()).unwrap_or(FIRST_PORT);
    (first, first.saturating_add(PORT_COUNT - 1))
}

/// Returns the first active eRDMA device of a host, or else its first.
fn device<'a>(host: &ClusterHost<'a>) -> Option<&'a RdmaDevice> {
    let is_erdma = |device: &&RdmaDevice| device.driver.as_deref() == Some("erdma");
    let is_active =
        |device: &&RdmaDevice| device.ports.iter().any(|port| port.state == PortState::Active);
    let mut devices = host.inventory.rdma.iter().filter(is_erdma);
    devices.clone().find(is_active).or_else(|| devices.next())
}

fn is_standard(device: &RdmaDevice) -> bool {
    device.node_type == NodeType::Rnic
}

fn driver(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, diagnostics): (&ClusterHost<'_>, &Diagnostics)| {
        let device = device(host).filter(|device| is_standard(device))?;
        let is_loaded = diagnostics.modules.iter().any(|module| module == "erdma");
        let is_new = diagnostics.module_parameters.iter().any(|(name, _)| name == MODE_PARAMETER);
        if !is_loaded || is_new || !uses_nccl(cluster) {
            return None;
        }
        let version = host.inventory.system.drivers.iter().find(|(name, _)| name == "erdma");
        let version = version.map_or(String::new(), |(_, version)| format!(" {version}"));
        let seen = format!("the erdma driver{version} has no compat mode");
        let found = Finding::warning(id::ERDMA_DRIVER, host.name, seen, "NCCL needs compat mode");
        Some(
            found.device(&*device.name).advise(
                "install Alibaba's driver (its page `Enable eRDMA`), installer 1.4.3 or later",
            ),
        )
    };
    cluster.diagnosed().filter_map(finding).collect()
}

/// Adds the lines that switch a host of the finding to compat mode.
fn with_compat(cluster: &Cluster<'_>, found: Finding, host: &ClusterHost<'_>) -> Finding {
    if in_container(cluster, host) {
        let lines = Fix::erdma_compat().lines.join("; ");
        return found.advise(format!("on the container's host: {lines}"));
    }
    found.fixed_by(Fix::erdma_compat().on(host.name))
}

fn standard(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(_, host): (usize, &ClusterHost<'_>)| {
        let device = device(host).filter(|device| is_standard(device))?;
        let parameters = host.diagnostics.map(|d| d.module_parameters.as_slice());
        let mode = parameters.unwrap_or_default().iter().find(|(name, _)| name == MODE_PARAMETER);
        let mode = mode.map_or(String::new(), |(_, value)| format!(" (compat_mode={value})"));
        let severity = if uses_nccl(cluster) { Severity::Warning } else { Severity::Note };
        let seen = format!("{} accepts only RDMA_CM{mode}", device.name);
        let matters = "NCCL needs compat mode, and uses TCP without it";
        let found = Finding::new(id::ERDMA_STANDARD, severity, host.name, seen, matters);
        let found = with_compat(cluster, found.device(&*device.name), host);
        Some(found.advise("this drops all eRDMA connections of the host"))
    };
    indexed(cluster).filter_map(finding).collect()
}

fn mixed(cluster: &Cluster<'_>) -> Vec<Finding> {
    let hosts = |wanted: bool| -> Vec<&ClusterHost<'_>> {
        let is_it = |host: &&ClusterHost<'_>| device(host).map(is_standard) == Some(wanted);
        cluster.hosts.iter().filter(is_it).collect()
    };
    let (standard, compat) = (hosts(true), hosts(false));
    if standard.is_empty() || compat.is_empty() {
        return Vec::new();
    }
    let names = |hosts: &[&ClusterHost<'_>]| -> Vec<String> {
        hosts.iter().map(|host| host.name.to_owned()).collect()
    };
    let seen =
        format!("eRDMA is in standard mode, and in compat mode on {}", text::list(&names(&compat)));
    let matters = "the two modes cannot connect";
    let mut found = Finding::new(id::ERDMA_MIXED, Severity::Error, "", seen, matters);
    found.hosts = names(&standard);
    vec![standard.iter().fold(found, |found, host| with_compat(cluster, found, host))]
}

fn ports(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(host, diagnostics): (&ClusterHost<'_>, &Diagnostics)| {
        let device = device(host).filter(|device| !is_standard(device))?;
        let (first, last) = compat_ports(diagnostics);
        // The driver's own listeners have no process.
        let taken = diagnostics.listeners.iter().find_map(|listener| {
            let (pid, name) = listener.process.as_ref()?;
            (first..=last).contains(&listener.port).then_some((listener.port, pid, name))
        });
        let (port, pid, name) = taken?;
        let seen = format!("{name} (pid {pid}) listens on TCP port {port}");
        let matters = format!("eRDMA's compat mode needs ports {first}-{last} for its connections");
        let found = Finding::error(id::ERDMA_PORTS, host.name, seen, matters);
        Some(
            found
                .device(&*device.name)
                .advise(format!("let {name} listen on another port"))
                .advise("or move the driver's ports with its parameter reserve_ports_base, on all hosts"),
        )
    };
    cluster.diagnosed().filter_map(finding).collect()
}

fn mtu(cluster: &Cluster<'_>) -> Vec<Finding> {
    let finding = |(_, host): (usize, &ClusterHost<'_>)| {
        let device = device(host).filter(|device| !is_standard(device))?;
        let port = device.ports.iter().find(|port| port.state == PortState::Active)?;
        let netdev = host.netdev_of(port)?;
        let has_gpus = has_nvidia(host.inventory);
        if !has_gpus || SAFE_MTUS.contains(&netdev.mtu) {
            return None;
        }
        let seen = format!("MTU {} of {}", netdev.mtu, netdev.name);
        let matters =
            "NCCL's protocol LL128 may corrupt data on eRDMA unless the MTU is 8500 or 1400";
        let mtu = if netdev.mtu > SAFE_MTUS[1] { SAFE_MTUS[1] } else { SAFE_MTUS[0] };
        let found = Finding::warning(id::ERDMA_MTU, host.name, seen, matters);
        Some(
            found
                .device(&*netdev.name)
                .fixed_by(Fix::mtu(&netdev.name, mtu))
                .advise("on all hosts; or run jobs with -x NCCL_PROTO=^LL128"),
        )
    };
    indexed(cluster).filter_map(finding).collect()
}

fn manager(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        for device in &host.inventory.rdma {
            let is_active = device.ports.iter().any(|port| port.state == PortState::Active);
            let is_erdma = device.driver.as_deref() == Some("erdma");
            if device.node_type != NodeType::Rnic || !is_active || is_erdma {
                continue;
            }
            let seen = "connects queue pairs only through the RDMA connection manager";
            if cluster.ports.connect == ConnectBy::Oob {
                let matters = "it is not used with --connect oob";
                let finding = Finding::error(id::IWARP_CM, host.name, seen, matters);
                found.push(finding.device(&*device.name).advise("leave --connect oob out"));
            } else if uses_nccl(cluster)
                && is_used(cluster, index, device)
                && !selection::is_software(device)
            {
                let finding = Finding::note(
                    id::IWARP_CM,
                    host.name,
                    seen,
                    "NCCL cannot use it and takes TCP",
                );
                found.push(finding.device(&*device.name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, line, lines, with_cluster};
    use super::*;
    use crate::findings::Step;
    use crate::selection::PortOptions;
    use rlaunch_bootstrap::inventory::diagnostics::ListeningPort;

    fn compat() -> Machine {
        Machine::recorded("erdma-compat")
    }

    /// Returns a machine with eRDMA in standard mode and GPUs.
    fn standard_with_gpus() -> Machine {
        Machine::recorded("erdma-standard")
            .change(|inventory| inventory.gpus = crate::testing::inventory("ack-node").gpus)
    }

    #[test]
    fn standard_mode_matters_where_gpus_are() {
        let plain = || Machine::recorded("erdma-standard");
        let found = lines(standard, &[plain(), plain()]);
        let expected = "note erdma.standard a erdma_0: erdma_0 accepts only RDMA_CM — NCCL needs compat mode, and uses TCP \
                        without it";
        assert_eq!(found[0], expected);
        let machine = standard_with_gpus().diagnosed(|diagnostics| {
            diagnostics.module_parameters = vec![(MODE_PARAMETER.into(), "N".into())];
        });
        let machines = [machine.clone(), machine];
        let found = lines(standard, &machines);
        assert!(found[0].starts_with(
            "warn erdma.standard a erdma_0: erdma_0 accepts only RDMA_CM (compat_mode=N)"
        ));
        let fix = with_cluster(&machines, |cluster| standard(&cluster)[0].fix.clone());
        let line =
            "echo 'options erdma compat_mode=Y' | sudo tee /etc/modprobe.d/rlaunch-erdma.conf";
        assert_eq!(fix[0], Step::RunOn("a".into(), line.into()));
        assert!(lines(standard, &[compat(), compat()]).is_empty());
    }

    #[test]
    fn modes_that_differ_are_one_fault() {
        let machines = [compat(), Machine::recorded("erdma-standard"), compat()];
        let found = lines(mixed, &machines);
        let expected = "error erdma.mixed b: eRDMA is in standard mode, and in compat mode on a, c — the two modes cannot \
                        connect";
        assert_eq!(found, [expected]);
        assert!(lines(mixed, &[compat(), compat()]).is_empty());
        assert!(lines(mixed, &[compat(), Machine::recorded("siw")]).is_empty());
    }

    #[test]
    fn a_driver_without_compat_mode_is_named() {
        let with = |parameters: &[&str]| {
            standard_with_gpus().diagnosed(|diagnostics| {
                diagnostics.modules = vec!["erdma".into()];
                let parameters = parameters.iter().map(|name| ((*name).to_owned(), "N".to_owned()));
                diagnostics.module_parameters = parameters.collect();
            })
        };
        let found = lines(driver, &[with(&[]), with(&[MODE_PARAMETER])]);
        let expected = "warn erdma.driver a erdma_0: the erdma driver has no compat mode — NCCL needs compat mode";
        assert_eq!(found, [expected]);
        assert!(lines(driver, &[compat(), compat()]).is_empty());
    }

    #[test]
    fn a_program_on_the_drivers_ports_is_named() {
        let with = |port: u16, process: Option<(u32, String)>| {
            compat().diagnosed(|d| d.listeners = vec![ListeningPort { port, process }])
        };
        let nginx = Some((812, "nginx".to_owned()));
        let expected = "error erdma.ports a erdma_0: nginx (pid 812) listens on TCP port 30610 — eRDMA's compat mode needs \
                        ports 30608-30623 for its connections";
        assert_eq!(lines(ports, &[with(30_610, nginx.clone())]), [expected]);
        assert!(lines(ports, &[with(30_610, None)]).is_empty(), "the driver's own");
        assert!(lines(ports, &[with(30_624, nginx.clone())]).is_empty());
        let moved = |port| {
            with(port, nginx.clone()).diagnosed(|diagnostics| {
                diagnostics.module_parameters = vec![(PORTS_PARAMETER.into(), "40000".into())];
            })
        };
        assert!(lines(ports, &[moved(30_610)]).is_empty(), "the driver's ports were moved");
        assert!(lines(ports, &[moved(40_015)])[0].contains("needs ports 40000-40015"));
    }

    #[test]
    fn the_mtu_matters_where_nccl_runs() {
        let sized = |mtu: u32| {
            Machine::recorded("ack-node").change(|inventory| {
                let netdev = inventory.netdevs.iter_mut().find(|netdev| netdev.name == "eth0");
                netdev.unwrap().mtu = mtu;
            })
        };
        let expected = "warn erdma.mtu a eth0: MTU 1500 of eth0 — NCCL's protocol LL128 may corrupt data on eRDMA unless the MTU \
                        is 8500 or 1400";
        assert_eq!(lines(mtu, &[sized(1500)]), [expected]);
        for machine in [sized(1400), sized(8500), compat()] {
            assert!(lines(mtu, &[machine]).is_empty());
        }
    }

    #[test]
    fn out_of_band_connections_are_refused() {
        let machines = vec![Machine::recorded("siw"); 2];
        assert!(lines(manager, &machines).is_empty());
        let found = with_cluster(&machines, |mut cluster| {
            cluster.ports = PortOptions { connect: ConnectBy::Oob, ..PortOptions::default() };
            manager(&cluster).iter().map(line).collect::<Vec<_>>()
        });
        let expected = "error iwarp.cm a siw0: connects queue pairs only through the RDMA connection manager — it is not \
                        used with --connect oob";
        assert_eq!((found.len(), found[0].as_str()), (2, expected));
        assert!(lines(manager, &vec![Machine::recorded("esxi-vm"); 2]).is_empty());
    }

    #[test]
    fn nccl_does_not_use_iwarp_hardware() {
        let machine = || {
            Machine::recorded("siw").change(|inventory| {
                inventory.rdma[0].driver = Some("iw_cxgb4".into());
                inventory.gpus = crate::testing::inventory("dgx").gpus;
            })
        };
        let found = lines(manager, &[machine(), machine()]);
        assert!(found[0].starts_with("note iwarp.cm a siw0: "), "{found:?}");
    }
}
