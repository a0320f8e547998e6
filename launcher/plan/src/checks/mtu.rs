//! Packet sizes of RDMA: at one port, at both ends of a path, and on the way between them.

use super::cluster::{Probe, ProbeKind, ProbeOutcome};
use super::devices::indexed;
use super::{Check, Cluster, ClusterHost, Needs, quoted};
use crate::findings::{Finding, Fix, id};
use crate::selection::UsablePort;
use rlaunch_bootstrap::rank_table::Transport;
use rlaunch_text::text;
use std::collections::BTreeSet;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: id::MTU_RDMA,
        about: "RoCE ports use large packets",
        needs: Needs::Inventories,
        examine: small,
        causes: &[],
        explanation: "\
Symptoms: ibv_devinfo shows `active_mtu: 1024`; perftest stays some percent below the rate of the port, and 200 Gb/s ports reach 19 GB/s \
in place of 24.

RoCE packets carry 256, 512, 1024, 2048 or 4096 bytes, whichever fits the MTU of the port's interface. With the usual 1500 \
that is 1024, and each packet has 82 bytes besides: at most 92.6 percent of the rate is data. With 4096 it is 98.0 percent, and \
the card has a quarter of the packets to process. The MTU of port and interface was read from sysfs.

Raise the interface's MTU to 9000 (4200 is enough) on all hosts, and let switches carry as much. Do it on both ends of each \
cable, or mtu.mismatch follows.",
    },
    Check {
        id: id::MTU_MISMATCH,
        about: "both ends of an RDMA path have the same MTU",
        needs: Needs::Inventories,
        examine: mismatch,
        // The check is among its own effects: soft RoCE and Soft-iWARP may share an interface, so
        // that one MTU gives two findings.
        causes: &[id::MTU_MISMATCH, id::MTU_RDMA, id::MTU_PATH, id::MESH_BANDWIDTH, id::ODD_RATE],
        explanation: "\
Symptoms: `IBV_WC_LOC_LEN_ERR`; small messages arrive and large ones hang; one host is slower than the others.

The two ports of a path may use packets of different sizes. rlaunch and NCCL agree on the smaller size for each pair, so \
that the pair works but is slower; programs that do not agree fail with the first large message. The MTU of each port was \
read from its interface.

Set the interface of the smaller end to the MTU of the others, and make it permanent.",
    },
    Check {
        id: id::MTU_PATH,
        about: "large packets arrive on every RDMA path",
        needs: Needs::Probes,
        examine: path,
        causes: &[id::MESH_SILENT, id::MESH_BANDWIDTH],
        explanation: "\
Symptoms: the test of a path fails at the block of 64 KiB, NCCL hangs in its first large collective, perftest stops with \
status 12 although small sizes work; ping works.

Both ends use packets of this size, but something between them drops such packets: a switch port or a tunnel with a smaller \
MTU. RDMA packets are not fragmented. Packets of the size that RDMA sends were sent between the interfaces, with \
fragmentation forbidden: short ones came back, long ones did not.

Raise the MTU of the switch ports, to 9216 where the switch allows it, or set the interfaces at both ends to 1500. The ping in \
the fix repeats the test. If an interface at one end is itself too small for the packets, the finding names its MTU.",
    },
];

/// Bytes of a RoCE packet besides its data: Ethernet with preamble and gap, IPv4, UDP, transport header, checksums.
const OVERHEAD: u32 = 82;
/// MTU of RDMA that fits the usual MTU of Ethernet.
const SMALL: u32 = 1024;
/// MTU of interfaces that the largest RDMA packets fit, and the usual one, which everything carries.
const JUMBO: u32 = 9000;
const USUAL: u32 = 1500;
/// Drivers that another check judges (erdma), and those without hardware, whose packet size costs
/// little.
const OTHER_RULES: &[&str] = &["erdma", "rxe", "siw"];

fn small(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        for port in first_entries(cluster, index) {
            let has_other_rules = driver(host, port).is_some_and(|d| OTHER_RULES.contains(&d));
            let mtu = port.nic.mtu.filter(|mtu| *mtu <= SMALL);
            let (Some(mtu), Some(netdev)) = (mtu, &port.nic.netdev) else { continue };
            if port.nic.transport != Transport::Roce || has_other_rules {
                continue;
            }
            let of_netdev = host.inventory.netdevs.iter().find(|known| known.name == *netdev);
            let of_netdev = of_netdev.map_or(0, |netdev| netdev.mtu);
            // Rounded to the nearest tenth of a percent.
            let tenths = (10_000 * mtu / (mtu + OVERHEAD) + 5) / 10;
            let seen = format!("MTU {of_netdev} of {netdev} gives RDMA packets of {mtu} bytes");
            let matters = format!("at most {}.{} % of the rate is data", tenths / 10, tenths % 10);
            let finding = Finding::note(id::MTU_RDMA, host.name, seen, matters)
                .device(name(port))
                .fixed_by(Fix::mtu(netdev, JUMBO))
                .advise("and the same on the other hosts and in switches, if they can");
            found.push(finding);
        }
    }
    found
}

fn driver<'a>(host: &ClusterHost<'a>, port: &UsablePort) -> Option<&'a str> {
    let device = host.inventory.rdma.iter().find(|device| device.name == port.nic.device)?;
    device.driver.as_deref()
}

fn name(port: &UsablePort) -> String {
    format!("{}/{}", port.nic.device, port.nic.port)
}

/// Lists the ports of a host once, with their preferred addresses.
fn first_entries<'c>(cluster: &Cluster<'c>, index: usize) -> Vec<&'c UsablePort> {
    let ports = cluster.plan.and_then(|plan| plan.ports.get(index));
    let mut ports: Vec<&UsablePort> = ports.into_iter().flatten().collect();
    ports.dedup_by_key(|port| port.nic.rail);
    ports
}

/// Finds ports whose packets are smaller than those of the ports that they reach. Where hosts have the same ports, each
/// is compared with its counterparts only.
fn mismatch(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, host) in indexed(cluster) {
        for port in first_entries(cluster, index) {
            let Some(own) = port.nic.mtu.filter(|_| port.nic.transport != Transport::Infiniband)
            else {
                continue;
            };
            let larger = hosts_with_larger_mtu(cluster, index, port, own);
            let (Some((_, most)), Some(netdev)) =
                (larger.iter().max_by_key(|(_, mtu)| *mtu), &port.nic.netdev)
            else {
                continue;
            };
            let peers: Vec<&str> = larger.iter().map(|(peer, _)| *peer).collect();
            let verb = if peers.len() == 1 { "sends" } else { "send" };
            let seen =
                format!("RDMA packets of {own} bytes, and {} {verb} {most}", text::list(&peers));
            let of_netdev = larger_netdev_mtu(cluster, &peers, port);
            let matters =
                "these paths use the smaller size, or fail where programs do not agree on it";
            let finding = Finding::warning(id::MTU_MISMATCH, host.name, seen, matters)
                .device(name(port))
                .fixed_by(Fix::mtu(netdev, of_netdev));
            found.push(finding);
        }
    }
    found
}

/// Lists the other hosts whose ports use larger packets than this port, whose MTU is `own`, with their MTUs.
fn hosts_with_larger_mtu<'a>(
    cluster: &Cluster<'a>,
    index: usize,
    port: &UsablePort,
    own: u32,
) -> Vec<(&'a str, u32)> {
    let mut larger = Vec::new();
    for (other, peer) in indexed(cluster).filter(|(other, _)| *other != index) {
        let peers = first_entries(cluster, other);
        let peers = peers.into_iter().filter(|peer| port.should_reach(peer));
        let peers: Vec<&UsablePort> = peers.collect();
        let has_same = peers.iter().any(|peer| peer.nic.rail == port.nic.rail);
        let compared = peers.iter().filter(|p| !has_same || p.nic.rail == port.nic.rail);
        // If one of the compared ports is as small, the larger ones have their own networks.
        let least = compared.filter_map(|peer| peer.nic.mtu).min();
        larger.extend(least.filter(|least| *least > own).map(|least| (peer.name, least)));
    }
    larger
}

/// Returns the MTU of the interfaces that reach a port from these hosts.
fn larger_netdev_mtu(cluster: &Cluster<'_>, hosts: &[&str], port: &UsablePort) -> u32 {
    let peers = indexed(cluster).filter(|(_, host)| hosts.contains(&host.name));
    let mtus = peers.flat_map(|(index, host)| {
        let reached = first_entries(cluster, index).into_iter().filter(|p| port.should_reach(p));
        reached.filter_map(move |reached| {
            let name = reached.nic.netdev.as_ref()?;
            Some(host.inventory.netdevs.iter().find(|netdev| netdev.name == *name)?.mtu)
        })
    });
    mtus.max().unwrap_or(JUMBO)
}

fn path(cluster: &Cluster<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut seen_pairs: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut seen_ends: BTreeSet<(usize, &str)> = BTreeSet::new();
    let probes = cluster.probes.unwrap_or_default().iter();
    // Those over TCP are reported by net.pair.
    let short =
        |probe: &&Probe| probe.outcome == ProbeOutcome::OnlyShort && probe.kind != ProbeKind::Tcp;
    for probe in probes.filter(short) {
        let Probe { from, to, .. } = probe;
        let (Some(host), Some(peer)) = (cluster.hosts.get(*from), cluster.hosts.get(*to)) else {
            continue;
        };
        if let Some((end, finding)) = too_small_end(cluster, probe) {
            found.extend(seen_ends.insert(end).then_some(finding));
            continue;
        }
        // Both directions, and both kinds of probes, show one fault.
        if !seen_pairs.insert((*from.min(to), *from.max(to))) {
            continue;
        }
        found.push(at_both_ends(cluster, probe, path_finding(probe, host.name, peer.name)));
    }
    found
}

/// Tells whether the packets that get lost would be shorter with the usual MTU.
fn are_too_long(kind: ProbeKind) -> bool {
    !matches!(kind, ProbeKind::PathMtu(size) if size <= USUAL)
}

/// Adds the usual MTU for those interfaces at both ends of a path that have a larger one, if both are known.
fn at_both_ends(cluster: &Cluster<'_>, probe: &Probe, found: Finding) -> Finding {
    if !are_too_long(probe.kind) {
        return found;
    }
    let ends = || {
        let (host, peer) = (cluster.hosts.get(probe.from)?, cluster.hosts.get(probe.to)?);
        let reached = peer.inventory.netdev_with_address(probe.address?)?;
        let mut netdevs = host.inventory.netdevs.iter();
        let own = netdevs.find(|netdev| Some(&netdev.name) == probe.netdev.as_ref())?;
        Some([(host.name, own), (peer.name, reached)])
    };
    let ends = ends().into_iter().flatten().filter(|(_, netdev)| netdev.mtu > USUAL);
    let fixes = ends.map(|(host, netdev)| Fix::mtu(&netdev.name, USUAL).on(host));
    fixes.fold(found, Finding::fixed_by)
}

/// Makes the finding of a path that drops large packets.
fn path_finding(probe: &Probe, host: &str, peer: &str) -> Finding {
    let Probe { kind, netdev, address, .. } = probe;
    let seen = match kind {
        ProbeKind::PathMtu(size) => {
            format!("short packets arrive, packets of {size} bytes do not")
        }
        _ => "short messages arrive, a block of 64 KiB does not".to_owned(),
    };
    let matters = "RDMA hangs with the first large message";
    let mut finding = Finding::error(id::MTU_PATH, host, seen, matters).peer(peer);
    if let Some(netdev) = netdev {
        finding = finding.device(netdev);
    }
    let carry = "let what is between them carry it (switches: MTU 9216)";
    finding = finding.advise(match are_too_long(*kind) {
        true => format!("{carry}, or set both interfaces to 1500"),
        false => carry.to_owned(),
    });
    if let (ProbeKind::PathMtu(size), Some(netdev), Some(address)) = (kind, netdev, address) {
        // The size of ping's data leaves out the headers of IP and ICMP.
        let header = if address.is_ipv6() { 48 } else { 28 };
        let data = size.saturating_sub(header);
        let netdev = quoted(netdev);
        finding = finding.run(format!("ping -c 3 -M do -s {data} -I {netdev} {address}"));
    }
    finding
}

/// Makes the finding of an end of a probe whose own interface is too small for the packets. Returns
/// also the end's index and the interface.
fn too_small_end<'a>(cluster: &Cluster<'a>, probe: &Probe) -> Option<((usize, &'a str), Finding)> {
    let ProbeKind::PathMtu(size) = probe.kind else { return None };
    let inventory = |index: usize| Some(cluster.hosts.get(index)?.inventory);
    let own = || {
        let mut netdevs = inventory(probe.from)?.netdevs.iter();
        netdevs.find(|netdev| Some(&netdev.name) == probe.netdev.as_ref())
    };
    let reached = || inventory(probe.to)?.netdev_with_address(probe.address?);
    let ends = [(probe.from, probe.to, own()), (probe.to, probe.from, reached())];
    let (end, peer, netdev) = ends.into_iter().find_map(|(end, peer, netdev)| {
        Some((end, peer, netdev.filter(|netdev| netdev.mtu < size)?))
    })?;
    let seen = format!(
        "packets of {size} bytes do not fit the interface's own MTU, {mtu}",
        mtu = netdev.mtu
    );
    let matters = "RDMA hangs with the first large message";
    let (host, peer) = (cluster.hosts.get(end)?.name, cluster.hosts.get(peer)?.name);
    let finding = Finding::error(id::MTU_PATH, host, seen, matters).device(&netdev.name).peer(peer);
    Some(((end, &netdev.name), finding.fixed_by(Fix::mtu(&netdev.name, JUMBO))))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Machine, line, lines, probed, with_cluster};
    use super::*;
    use crate::findings::Step;

    /// Returns a machine whose RDMA packets and interfaces have these sizes.
    fn sized(name: &str, mtu: u32, of_netdev: u32) -> Machine {
        Machine::recorded(name).change(|inventory| {
            let port = &mut inventory.rdma[0].ports[0];
            port.mtu = Some(mtu);
            let netdevs = inventory.netdevs.iter_mut();
            netdevs
                .filter(|n| Some(&n.name) == port.netdev.as_ref())
                .for_each(|n| n.mtu = of_netdev);
        })
    }

    #[test]
    fn small_packets_of_hardware_are_noted_with_their_cost() {
        let machines = vec![sized("esxi-vm", 1024, 1500); 2];
        let found = lines(small, &machines);
        let expected = "note mtu.rdma a mlx5_0/1: MTU 1500 of ens224 gives RDMA packets of 1024 bytes — at most 92.6 % of \
                        the rate is data";
        assert_eq!((found.len(), found[0].as_str()), (2, expected));
        for name in ["esxi-vm", "siw", "erdma-compat", "dgx", "connectx3", "macvlan-pod"] {
            assert!(lines(small, &vec![Machine::recorded(name); 2]).is_empty(), "{name}");
        }
    }

    #[test]
    fn the_smaller_end_is_named() {
        let machines = [
            sized("esxi-vm", 4096, 9000),
            sized("esxi-vm", 1024, 1500),
            sized("esxi-vm", 4096, 9000),
        ];
        let expected = "warn mtu.mismatch b mlx5_0/1: RDMA packets of 1024 bytes, and a, c send 4096 — these paths use the \
                        smaller size, or fail where programs do not agree on it";
        assert_eq!(lines(mismatch, &machines), [expected]);
        let fix = with_cluster(&machines, |cluster| mismatch(&cluster)[0].fix.clone());
        assert_eq!(fix, [Step::Run("sudo ip link set dev ens224 mtu 9000".into())]);
        for name in ["dual-port", "siw", "connectx3", "spark", "dgx"] {
            assert!(lines(mismatch, &vec![Machine::recorded(name); 3]).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_path_that_drops_large_packets_is_one_fault() {
        let probe = |from, to, outcome| Probe {
            from,
            to,
            kind: ProbeKind::PathMtu(4156),
            netdev: Some("ens224".into()),
            address: Some("192.168.111.11".parse().unwrap()),
            outcome,
        };
        let found = |outcome: &ProbeOutcome| {
            let probes = [probe(0, 1, outcome.clone()), probe(1, 0, outcome.clone())];
            probed(path, &vec![Machine::recorded("esxi-vm"); 2], &probes)
        };
        let findings = found(&ProbeOutcome::OnlyShort);
        let expected = "error mtu.path a ens224 → b: short packets arrive, packets of 4156 bytes do not — RDMA hangs with the \
                        first large message";
        assert_eq!(findings.iter().map(line).collect::<Vec<_>>(), [expected]);
        let ping = "ping -c 3 -M do -s 4128 -I ens224 192.168.111.11";
        assert_eq!(findings[0].fix[1], Step::Run(ping.into()));
        assert_eq!(findings[0].fixes.len(), 2, "both ends");
        let shorter =
            Probe { kind: ProbeKind::PathMtu(1084), ..probe(0, 1, ProbeOutcome::OnlyShort) };
        let found_shorter = probed(path, &vec![Machine::recorded("esxi-vm"); 2], &[shorter]);
        assert!(found_shorter[0].fixes.is_empty(), "an MTU of 1500 would not help");
        assert!(found(&ProbeOutcome::Worked(90)).is_empty());
        assert!(found(&ProbeOutcome::Silent).is_empty());
    }

    /// Nothing between the hosts is to blame for packets that an end cannot carry.
    #[test]
    fn an_end_whose_own_interface_is_too_small_is_named() {
        let probe = |from, to| Probe {
            from,
            to,
            kind: ProbeKind::PathMtu(4156),
            netdev: Some("ens224".into()),
            address: Some("192.168.111.11".parse().unwrap()),
            outcome: ProbeOutcome::OnlyShort,
        };
        let probes = [probe(0, 1), probe(1, 0)];
        let expected = |end: &str, peer: &str| {
            format!(
                "error mtu.path {end} ens224 → {peer}: packets of 4156 bytes do not fit the interface's own MTU, 1500 — \
                 RDMA hangs with the first large message"
            )
        };
        let machines = [sized("esxi-vm", 4096, 1500), Machine::recorded("esxi-vm")];
        let found = probed(path, &machines, &probes);
        assert_eq!(found.iter().map(line).collect::<Vec<_>>(), [expected("a", "b")]);
        assert_eq!(found[0].fix, [Step::Run("sudo ip link set dev ens224 mtu 9000".into())]);
        let [small, large] = machines;
        let found = probed(path, &[large, small], &probes);
        assert_eq!(found.iter().map(line).collect::<Vec<_>>(), [expected("b", "a")]);
    }
}
